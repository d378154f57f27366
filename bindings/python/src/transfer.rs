//! Adapts Python file objects, so that the library can read and write them.

use parking_lot::Mutex;
use pyo3::exceptions::{PyBlockingIOError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::io::{self, Read, Write};

/// A Python file object in binary mode. No lock of the library is held while it is read or written.
pub(crate) struct PyFile<'f> {
    object: &'f Py<PyAny>,
    /// The exception that the file object raised.
    raised: &'f Mutex<Option<PyErr>>,
}

impl<'f> PyFile<'f> {
    pub(crate) fn new(object: &'f Py<PyAny>, raised: &'f Mutex<Option<PyErr>>) -> PyFile<'f> {
        PyFile { object, raised }
    }

    fn call<T>(&self, run: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> io::Result<T> {
        Python::attach(|py| {
            run(self.object.bind(py)).map_err(|error| {
                let io_error = io::Error::other(error.to_string());
                *self.raised.lock() = Some(error);
                io_error
            })
        })
    }
}

impl Write for PyFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.call(|file| {
            let written = file.call_method1("write", (PyBytes::new(file.py(), bytes),))?;
            if !written.is_none() {
                // A raw file may write fewer bytes than it receives.
                return Ok(written.extract::<usize>()?.min(bytes.len()));
            }
            // If a raw file of Python returns None, nothing was written. Other objects may return
            // None after they wrote all bytes.
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

impl Read for PyFile<'_> {
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
