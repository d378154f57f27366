//! The file that records are written to.
//!
//! Always true: the file under its final name is either the one that was there before or a complete one.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

const BUFFER: usize = 1 << 18;

/// Where the records go.
pub(super) enum OutputFile {
    /// What has no content to lose: standard output, a pipe, a device.
    Stream(BufWriter<Box<dyn Write>>),
    /// A file beside the one that is meant, which takes its name when it is whole, and is removed if it never is.
    Part(BufWriter<NamedTempFile>, PathBuf),
}

impl OutputFile {
    pub(super) fn create(path: &Path) -> io::Result<OutputFile> {
        let stream = |out: Box<dyn Write>| Ok(OutputFile::Stream(BufWriter::with_capacity(BUFFER, out)));
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
            .tempfile_in(directory.unwrap_or(Path::new(".")))
            .map_err(|error| unnamed(&error, directory))?;
        if let Some(before) = before {
            // It may be another's file, and then have permissions that cannot be had.
            let _ = part.as_file().set_permissions(before.permissions());
        }
        Ok(OutputFile::Part(BufWriter::with_capacity(BUFFER, part), path))
    }

    /// Writes what it begins with anew, where that can be done.
    pub(super) fn rewrite_head(&mut self, head: &[u8]) -> io::Result<()> {
        match self {
            OutputFile::Stream(_) => Ok(()),
            OutputFile::Part(out, _) => {
                out.seek(SeekFrom::Start(0))?;
                out.write_all(head)?;
                out.seek(SeekFrom::End(0)).map(drop)
            }
        }
    }

    pub(super) fn finish(self) -> io::Result<()> {
        match self {
            OutputFile::Stream(mut out) => out.flush(),
            OutputFile::Part(out, path) => {
                let part = out.into_inner().map_err(io::IntoInnerError::into_error)?;
                File::sync_all(part.as_file())?;
                part.persist(path)?;
                Ok(())
            }
        }
    }
}

/// The same error without the temporary name, of which nobody has heard.
fn unnamed(error: &io::Error, directory: Option<&Path>) -> io::Error {
    match (error.kind(), directory) {
        (kind @ io::ErrorKind::NotFound, Some(directory)) => {
            io::Error::new(kind, format!("there is no directory {}", directory.display()))
        }
        (kind, _) => kind.into(),
    }
}

/// Those of a file that any program makes; the umask takes from them.
fn usual_permissions() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o666)
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            OutputFile::Stream(out) => out.write(bytes),
            OutputFile::Part(out, _) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            OutputFile::Stream(out) => out.flush(),
            OutputFile::Part(out, _) => out.flush(),
        }
    }
}
