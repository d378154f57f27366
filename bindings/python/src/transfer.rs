//! Files of Python's as the library reads and writes them.

use parking_lot::Mutex;
use pyo3::exceptions::{PyBlockingIOError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::io::{self, Read, Write};

/// A file object of Python's, in binary mode. No lock of the library's is held while it is read from or written to.
pub(crate) struct File<'f> {
    object: &'f Py<PyAny>,
    /// What it has raised.
    raised: &'f Mutex<Option<PyErr>>,
}

impl<'f> File<'f> {
    pub(crate) fn new(object: &'f Py<PyAny>, raised: &'f Mutex<Option<PyErr>>) -> File<'f> {
        File { object, raised }
    }

    fn call<T>(&self, run: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> io::Result<T> {
        Python::attach(|py| {
            run(self.object.bind(py)).map_err(|error| {
                let told = io::Error::other(error.to_string());
                *self.raised.lock() = Some(error);
                told
            })
        })
    }
}

impl Write for File<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.call(|file| {
            let written = file.call_method1("write", (PyBytes::new(file.py(), bytes),))?;
            if !written.is_none() {
                // Raw files take as much as they like.
                return Ok(written.extract::<usize>()?.min(bytes.len()));
            }
            // Where Python's own say nothing they have taken nothing; others say nothing at all.
            if file.is_instance(&file.py().import("io")?.getattr("RawIOBase")?)? {
                return Err(PyBlockingIOError::new_err("the file does not block, and takes no more now"));
            }
            Ok(bytes.len())
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.call(|file| match file.getattr_opt("flush")? {
            Some(flush) => flush.call0().map(|_| ()),
            None => Ok(()),
        })
    }
}

impl Read for File<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.call(|file| {
            let read = file.call_method1("read", (bytes.len(),))?;
            if read.is_none() {
                return Err(PyBlockingIOError::new_err("the file does not block, and has no more now"));
            }
            let read: &[u8] = read.extract()?;
            let Some(room) = bytes.get_mut(..read.len()) else {
                let message = format!("read({}) has returned {} bytes", bytes.len(), read.len());
                return Err(PyValueError::new_err(message));
            };
            room.copy_from_slice(read);
            Ok(read.len())
        })
    }
}
