//! Map and reduce with functions of Python's.
//!
//! On one thread, which holds the interpreter: Python would let no second one run. It holds it between the calls, too, while records are read
//! and sorted: to give it up around each would mean to wait for up to 5 ms to get it back where another thread computes, for every record.

use crate::conversion::{Form, Octets, octets};
use crate::error::raised;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::path::PathBuf;
use todana::{Db, Error, ErrorKind, MapReduce, Result};

/// What functions of Python's have raised, on its way past the library.
#[derive(Default)]
struct Raised(Mutex<Option<PyErr>>);

impl Raised {
    fn keep<T>(&self, outcome: PyResult<T>) -> Result<T> {
        outcome.map_err(|error| {
            self.0.lock().get_or_insert(error);
            called_off()
        })
    }

    /// A combination, which cannot fail by itself, may have failed.
    fn must_be_none(&self) -> Result<()> {
        if self.0.lock().is_some() { Err(called_off()) } else { Ok(()) }
    }
}

fn called_off() -> Error {
    Error::new(ErrorKind::Closed, "a function has raised an exception")
}

pub(crate) struct Options {
    pub(crate) memory_max: Option<usize>,
    pub(crate) temp_dir: Option<PathBuf>,
}

/// A dict of what `reduce` has returned for each key.
pub(crate) fn run<'py>(
    py: Python<'py>,
    db: &Db,
    form: Form,
    map: &Py<PyAny>,
    reduce: &Py<PyAny>,
    combine: Option<&Py<PyAny>>,
    options: Options,
) -> PyResult<Bound<'py, PyDict>> {
    let (kept, answer) = (Raised::default(), PyDict::new(py));
    let combined = |key: &[u8], values: &mut dyn Iterator<Item = &[u8]>, out: &mut Vec<u8>| {
        let Some(combine) = combine else { return };
        let made = Python::attach(|py| -> PyResult<()> {
            let list = PyList::empty(py);
            for value in values {
                list.append(form.show(py, value)?)?;
            }
            let made = combine.bind(py).call1((form.show(py, key)?, list))?;
            out.extend_from_slice(&octets(&made)?);
            Ok(())
        });
        // The map or reduction that comes next is told of it.
        let _ = kept.keep(made);
    };
    let mut work = MapReduce::new().threads(1);
    if let Some(bytes) = options.memory_max {
        work = work.memory_max(bytes);
    }
    if let Some(directory) = &options.temp_dir {
        work = work.temp_dir(directory);
    }
    if combine.is_some() {
        work = work.combine(&combined);
    }
    let outcome = work.run(
        db,
        &|key, record, emitter| {
            kept.must_be_none()?;
            kept.keep(Python::attach(|py| {
                let pairs = map.bind(py).call1((form.show(py, key)?, form.show(py, record.value)?))?;
                if pairs.is_none() {
                    return Ok(());
                }
                for pair in pairs.try_iter()? {
                    let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair?.extract()?;
                    let (key, value): (Octets<'_>, Octets<'_>) = (octets(&key)?, octets(&value)?);
                    emitter.emit(&key, &value);
                }
                Ok(())
            }))
        },
        &mut |key, values| {
            kept.must_be_none()?;
            let list = PyList::empty(py);
            while let Some(value) = values.next()? {
                kept.keep(form.show(py, value).and_then(|value| list.append(value)))?;
            }
            kept.keep(form.show(py, key).and_then(|key| {
                let reduced = reduce.bind(py).call1((&key, list))?;
                answer.set_item(key, reduced)
            }))
        },
    );
    match (kept.0.into_inner(), outcome) {
        (Some(error), _) => Err(error),
        (None, Err(error)) => Err(raised(error)),
        (None, Ok(())) => Ok(answer),
    }
}
