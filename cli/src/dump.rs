//! `todana dump`: all records of a server as tab-separated text.
//!
//! A dump is no access: it reads by meta commands that keep no record alive. Only a server that has none, as memcached before
//! 1.6, is read by `get`.
//!
//! Always true: the file under its final name is either what was there before or a whole dump.

use crate::data::{Server, progress};
use crate::{Failure, tsv};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use todana_client::{Connection, Error, Found};

/// Keys that are asked for at once.
const KEYS_AT_ONCE: usize = 64;
const BUFFER: usize = 1 << 18;

/// A key and when its record dies.
type Listed = (Vec<u8>, tsv::Expiry);

pub(crate) fn dump(server: &Server, path: &Path) -> Result<(), Failure> {
    let mut keys = server.connect()?;
    let mut values = server.connect()?;
    let total = values.stats("")?.into_iter().find(|(name, _)| name == "curr_items");
    let total = total.and_then(|(_, value)| value.parse().ok());
    let reads = if values.takes_meta()? { Reads::Peeks } else { Reads::Gets };
    let output = Output::create(path).map_err(|error| named(path, error))?;
    let mut dump = Dump { output, path, reads, written: 0, left_out: 0, example: None };
    let bar = progress(total, "{wide_bar} {pos}/{len} records {per_sec} eta {eta}");

    let (mut batch, mut failure) = (Vec::new(), None);
    let listed = keys.metadump(|line| {
        batch.push(read_listed(line).ok_or(Error::Malformed)?);
        if batch.len() < KEYS_AT_ONCE {
            return Ok(());
        }
        let outcome = dump.take(&mut values, &mut batch);
        bar.set_position(dump.written);
        outcome.map_err(|error| {
            failure = Some(error);
            // Only to end the listing.
            io::Error::from(io::ErrorKind::Interrupted).into()
        })
    });
    if let Some(failure) = failure {
        return Err(failure);
    }
    listed?;
    dump.take(&mut values, &mut batch)?;
    dump.output.finish().map_err(|error| named(path, error))?;
    bar.finish_and_clear();
    eprintln!("{} records written", dump.written);
    match dump.example {
        None => Ok(()),
        Some(example) => {
            Err(Failure::trouble(format!("{} records are left out; one is {example}", dump.left_out)))
        }
    }
}

/// How values are read.
enum Reads {
    /// By what is no access.
    Peeks,
    Gets,
}

struct Dump<'a> {
    output: Output,
    path: &'a Path,
    reads: Reads,
    written: u64,
    left_out: u64,
    /// A key that was left out, and why.
    example: Option<String>,
}

impl Dump<'_> {
    /// Writes the records of these keys. One that was removed since it was listed is not there, and not missed.
    fn take(&mut self, values: &mut Connection, batch: &mut Vec<Listed>) -> Result<(), Failure> {
        let keys: Vec<&[u8]> = batch.iter().map(|(key, _)| key.as_slice()).collect();
        let mut outcome = Ok(());
        let see = |at: usize, found: Result<Found<'_>, Error>| {
            let (key, expiry) = &batch[at];
            match found {
                _ if outcome.is_err() => {}
                Ok(Found { value, flags }) => {
                    outcome = tsv::put(&mut self.output, key, value, flags, *expiry);
                    self.written += 1;
                }
                Err(error) => {
                    self.left_out += 1;
                    let reason = match error {
                        Error::Invalid(_) => "no request can carry it".to_string(),
                        error => error.to_string(),
                    };
                    self.example.get_or_insert_with(|| format!("\"{}\": {reason}", key.escape_ascii()));
                }
            }
        };
        match self.reads {
            Reads::Peeks => values.peek_any(&keys, see)?,
            Reads::Gets => values.read_any(&keys, see)?,
        }
        batch.clear();
        outcome.map_err(|error| named(self.path, error))
    }
}

pub(crate) fn named(path: &Path, error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::from(error),
        _ => Failure::trouble(format!("{}: {error}", path.display())),
    }
}

/// Where the records go.
pub(crate) enum Output {
    /// What has no content to lose: standard output, a pipe, a device.
    Stream(BufWriter<Box<dyn Write>>),
    /// A file beside the one that is meant, which takes its name when it is whole, and is removed if it never is.
    Part(BufWriter<NamedTempFile>, PathBuf),
}

impl Output {
    pub(crate) fn create(path: &Path) -> io::Result<Output> {
        let stream = |out: Box<dyn Write>| Ok(Output::Stream(BufWriter::with_capacity(BUFFER, out)));
        if path == Path::new("-") {
            return stream(Box::new(io::stdout()));
        }
        let before = path.metadata().ok();
        if before.as_ref().is_some_and(|metadata| !metadata.is_file()) {
            return stream(Box::new(OpenOptions::new().write(true).open(path)?));
        }
        // A link stays one: it is its target that is replaced.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let part = tempfile::Builder::new()
            .prefix(&format!(".{name}."))
            .suffix(".part")
            .permissions(usual_permissions())
            .tempfile_in(directory.unwrap_or(Path::new(".")))?;
        if let Some(before) = before {
            // It may be another's file, and then have permissions that cannot be had.
            let _ = part.as_file().set_permissions(before.permissions());
        }
        Ok(Output::Part(BufWriter::with_capacity(BUFFER, part), path))
    }

    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            Output::Stream(mut out) => out.flush(),
            Output::Part(out, path) => {
                let part = out.into_inner().map_err(io::IntoInnerError::into_error)?;
                File::sync_all(part.as_file())?;
                part.persist(path)?;
                Ok(())
            }
        }
    }
}

/// Those of a file that any program makes; the umask takes from them.
fn usual_permissions() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o666)
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Output::Stream(out) => out.write(bytes),
            Output::Part(out, _) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Stream(out) => out.flush(),
            Output::Part(out, _) => out.flush(),
        }
    }
}

/// A line of a metadump.
fn read_listed(line: &str) -> Option<Listed> {
    let field = |name| line.split(' ').find_map(|word| word.strip_prefix(name));
    let at = field("exp=").and_then(|text| text.parse().ok()).unwrap_or(0);
    let span_s = field("sliding=").and_then(|text| text.parse().ok()).unwrap_or(0);
    Some((decode_uri(field("key=")?)?, tsv::Expiry { at, span_s }))
}

fn decode_uri(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        bytes.push((digit()? * 16 + digit()?) as u8);
    }
    Some(bytes)
}
