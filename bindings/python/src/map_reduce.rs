//! Runs map-reduce with Python functions.
//!
//! The functions run on one thread that holds the interpreter, because Python would not run a
//! second thread at the same time. The thread also holds the interpreter between the calls, while
//! records are read and sorted. Releasing the interpreter for each record would cost up to 5 ms
//! each time while another thread computes.

use crate::conversion::{ObjectBytes, OutputForm, octets};
use crate::error::raised;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::path::PathBuf;
use todana::{Db, Error, ErrorKind, MapReduce, Result};

/// The first exception of a Python function. It is kept here, because the library cannot carry it.
#[derive(Default)]
struct RaisedException(Mutex<Option<PyErr>>);

impl RaisedException {
    fn keep<T>(&self, outcome: PyResult<T>) -> Result<T> {
        outcome.map_err(|error| {
            self.0.lock().get_or_insert(error);
            called_off()
        })
    }

    /// Fails if an exception is pending. A `combine` function cannot return an error itself.
    fn must_be_none(&self) -> Result<()> {
        if self.0.lock().is_some() { Err(called_off()) } else { Ok(()) }
    }
}

fn called_off() -> Error {
    Error::new(ErrorKind::Closed, "a function has raised an exception")
}

pub(crate) struct MapReduceOptions {
    pub(crate) memory_max: Option<usize>,
    pub(crate) temp_dir: Option<PathBuf>,
}

/// Returns a dict of the results of `reduce` by key.
pub(crate) fn run<'py>(
    py: Python<'py>,
    db: &Db,
    form: OutputForm,
    map: &Py<PyAny>,
    reduce: &Py<PyAny>,
    combine: Option<&Py<PyAny>>,
    options: MapReduceOptions,
) -> PyResult<Bound<'py, PyDict>> {
    let (kept, answer) = (RaisedException::default(), PyDict::new(py));
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
        // The next call of `map` or `reduce` reports the exception.
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
                    let (key, value): (ObjectBytes<'_>, ObjectBytes<'_>) = (octets(&key)?, octets(&value)?);
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
