//! The file that a dump writes.
//!
//! Invariant: under its final name, the file is either the previous one or the complete new one.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

const BUFFER: usize = 1 << 18;

/// The destination of the records.
pub(super) enum OutputFile {
    /// A destination that cannot be replaced by a rename: standard output, a pipe, a device.
    Stream(BufWriter<Box<dyn Write>>),
    /// A temporary file beside the final one. It is renamed when it is complete, and removed
    /// otherwise.
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
        // If the path is a symbolic link, its target is replaced.
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
            // This fails for a file of another owner. The dump is still valid.
            let _ = part.as_file().set_permissions(before.permissions());
        }
        Ok(OutputFile::Part(BufWriter::with_capacity(BUFFER, part), path))
    }

    /// Overwrites the first bytes of the file. Does nothing for a stream.
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

/// Returns the error without the temporary name, which the user does not know.
fn unnamed(error: &io::Error, directory: Option<&Path>) -> io::Error {
    match (error.kind(), directory) {
        (kind @ io::ErrorKind::NotFound, Some(directory)) => {
            io::Error::new(kind, format!("the directory {} does not exist", directory.display()))
        }
        (kind, _) => kind.into(),
    }
}

/// Returns the permissions that a new file gets, without those that the umask removes.
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
