//! Exports databases: opening by name, closing, and operations on all records.

use crate::conversion::OutputForm;
use crate::error::raised;
use crate::interruption;
use crate::map_reduce;
use crate::pace::{CallPace, DiskPace};
use crate::records::Records;
use crate::source::{PythonDatabase, RecordsSource};
use crate::transaction::{Snapshot, Transaction};
use crate::transfer::PyFile;
use parking_lot::Mutex;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyTuple};
use std::io::{self, BufReader, BufWriter};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use todana::update_log::SyncPolicy;
use todana::{DataOptions, Db, DbOptions, DumpedValues, MergePolicy, WhenFull};

/// An open database, which works like a dict that all threads share.
#[pyclass(name = "DB", module = "todana", extends = Records, subclass, frozen, generic, weakref)]
pub(crate) struct PyDatabase {
    database: Arc<PythonDatabase>,
}

#[pymethods]
impl PyDatabase {
    #[new]
    #[pyo3(signature = (name, *, data_dir=None, sync=None, memory_max=None, when_full="evict", read_only=false, text=false, original_names=false))]
    #[allow(clippy::too_many_arguments)] // They are Python's, by name.
    fn new(
        py: Python<'_>,
        name: PathBuf,
        data_dir: Option<PathBuf>,
        sync: Option<&Bound<'_, PyAny>>,
        memory_max: Option<u64>,
        when_full: &str,
        read_only: bool,
        text: bool,
        original_names: bool,
    ) -> PyResult<PyClassInitializer<Self>> {
        let name = text_of(&name)?;
        let mut options = DbOptions::default().original_names(original_names);
        if read_only {
            options = options.read_only();
        }
        if let Some(directory) = &data_dir {
            options = options.data_dir(directory);
        }
        if let Some(sync) = sync {
            let mut data = DataOptions::default();
            data.log.sync = sync_of(sync)?;
            options = options.data_options(data);
        }
        if let Some(bytes) = memory_max {
            options = options.memory_max(bytes);
        }
        options = options.when_full(match when_full {
            "evict" => WhenFull::Evict,
            "refuse" => WhenFull::Refuse,
            _ => return Err(PyValueError::new_err("when_full is \"evict\" or \"refuse\"")),
        });
        py.import("todana._processes")?.call_method0("close_at_end")?;
        // A signal handler may close the database for which its thread waits.
        let waited_for = Arc::new(OnceLock::<Weak<PythonDatabase>>::new());
        let known = Arc::clone(&waited_for);
        options =
            options.while_waiting(interruption::EVERY, move || match known.get().and_then(Weak::upgrade) {
                Some(database) => database.calling(interruption::check_signals),
                None => interruption::check_signals(),
            });
        let db = py.detach(|| options.open(name)).map_err(raised)?;
        let form = if text { OutputForm::Text } else { OutputForm::Bytes };
        let is_in_memory = db.name().kind.is_in_memory();
        let reads = if is_in_memory { CallPace::Memory } else { CallPace::Disk(DiskPace::default()) };
        let writes = if is_in_memory && data_dir.is_none() { CallPace::Memory } else { CallPace::Waits };
        let database = PythonDatabase::new(db, form, reads, writes);
        let _ = waited_for.set(Arc::downgrade(&database));
        let records = Records::new(RecordsSource::Database(Arc::clone(&database)));
        Ok(PyClassInitializer::from(records).add_subclass(PyDatabase { database }))
    }

    /// The name by which the database was opened.
    #[getter]
    fn name(&self) -> &str {
        &self.database.name
    }

    /// True if the database has been closed.
    #[getter]
    fn closed(&self) -> bool {
        !self.database.is_open()
    }

    /// Closes the database after the calls of other threads have returned. Aborts open
    /// transactions. A second call has no effect.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.database.close(py)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let closed = if self.database.is_open() { "" } else { ", closed" };
        format!("<todana.DB {:?}{closed}>", self.database.name)
    }

    /// Returns the number of records, including expired records that are not removed yet. Does not
    /// scan.
    fn __len__(&self) -> PyResult<usize> {
        let count = self.database.db().map_err(raised)?.count();
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Begins a transaction after no other transaction is open: `with db.transaction() as t:`
    fn transaction(&self, py: Python<'_>) -> PyResult<Py<Transaction>> {
        Py::new(py, Transaction::begin(py, &self.database)?)
    }

    /// Returns a snapshot: a view of the database as it is now, which later writes do not change.
    fn snapshot(&self, py: Python<'_>) -> PyResult<Py<Snapshot>> {
        Py::new(py, Snapshot::take(py, &self.database)?)
    }

    /// Removes all records.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let db = self.database.db().map_err(raised)?;
        py.detach(|| db.clear()).map_err(raised)
    }

    /// Returns when all earlier writes are on disk. Has no effect if the database is not stored on
    /// disk.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let db = self.database.db().map_err(raised)?;
        py.detach(|| db.sync()).map_err(raised)
    }

    /// Writes a checkpoint if the database is stored on disk. The next opening then reads only the
    /// log after the checkpoint.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
        let db = self.database.db().map_err(raised)?;
        py.detach(|| db.checkpoint()).map_err(raised)
    }

    /// Returns the statistics of the database by name.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let db = self.database.db().map_err(raised)?;
        let (status, kind) = py.detach(|| (db.status(), db.name().kind.word()));
        // The calls below may run Python's garbage collection, which may close this database.
        drop(db);
        let answer = PyDict::new(py);
        answer.set_item("name", &self.database.name)?;
        answer.set_item("kind", kind)?;
        answer.set_item("records", status.records)?;
        answer.set_item("live_bytes", status.live_bytes)?;
        answer.set_item("memory_bytes", status.committed_bytes)?;
        answer.set_item("evictions", status.evictions)?;
        Ok(answer)
    }

    /// Copies the records of other databases into this database. Returns the number of stored
    /// records. `mode` states how existing records are treated: "set" replaces them, "add" keeps
    /// them, "replace" replaces them and adds no new records, "append" appends the other value.
    #[pyo3(signature = (*sources, mode="set"))]
    fn merge(&self, py: Python<'_>, sources: &Bound<'_, PyTuple>, mode: &str) -> PyResult<u64> {
        let mode = match mode {
            "set" => MergePolicy::Set,
            "add" => MergePolicy::Add,
            "replace" => MergePolicy::Replace,
            "append" => MergePolicy::Append,
            _ => return Err(PyValueError::new_err("mode is \"set\", \"add\", \"replace\" or \"append\"")),
        };
        let sources: Vec<_> = sources
            .iter()
            .map(|source| source.cast::<PyDatabase>()?.get().database.db().map_err(raised))
            .collect::<PyResult<_>>()?;
        let db = self.database.db().map_err(raised)?;
        py.detach(|| db.merge(&sources.iter().map(|source| &***source).collect::<Vec<&Db>>(), mode))
            .map_err(raised)
    }

    /// Copies all records, as of one moment, into a new database on disk. Returns their number.
    fn copy(&self, py: Python<'_>, name: PathBuf) -> PyResult<u64> {
        let db = self.database.db().map_err(raised)?;
        let name = text_of(&name)?;
        py.detach(|| db.copy(name)).map_err(raised)
    }

    /// Writes all records as tab-separated text to a path or a file in binary mode. Returns their
    /// number.
    fn dump(&self, py: Python<'_>, file: &Bound<'_, PyAny>) -> PyResult<u64> {
        let path = file.extract::<PathBuf>();
        let db = self.database.db().map_err(raised)?;
        if let Ok(path) = path {
            let outcome = py.detach(|| -> io::Result<_> {
                let mut file = BufWriter::new(std::fs::File::create(path)?);
                Ok(db.dump(&mut file))
            })?;
            return outcome.map_err(raised);
        }
        through(py, &self.database, file, |file| db.dump(&mut BufWriter::with_capacity(BUFFER_LEN, file)))
    }

    /// Stores the records of text that `dump` wrote. Returns their number. Skips expired records.
    fn load(&self, py: Python<'_>, file: &Bound<'_, PyAny>) -> PyResult<u64> {
        let path = file.extract::<PathBuf>();
        let db = self.database.db().map_err(raised)?;
        if let Ok(path) = path {
            let outcome = py.detach(|| -> io::Result<_> {
                let mut file = BufReader::new(std::fs::File::open(path)?);
                Ok(db.load(&mut file))
            })?;
            return outcome.map(|loaded| loaded.stored).map_err(raised);
        }
        through(py, &self.database, file, |file| {
            db.load(&mut BufReader::with_capacity(BUFFER_LEN, file)).map(|loaded| loaded.stored)
        })
    }

    /// Writes all records, as of one moment, as a snapshot in Kyoto Cabinet's format (.kcss) to a
    /// path or a file in binary mode. Returns their number. A file at the path is replaced after
    /// the snapshot is complete. With `timed`, each value follows its expiry time, as in Kyoto
    /// Tycoon.
    #[pyo3(signature = (file, *, timed=false))]
    fn dump_snapshot(&self, py: Python<'_>, file: &Bound<'_, PyAny>, timed: bool) -> PyResult<u64> {
        let (values, db) = (values_of(timed), self.database.db().map_err(raised)?);
        if let Ok(path) = file.extract::<PathBuf>() {
            return py.detach(|| db.dump_snapshot_file(&path, values)).map_err(raised);
        }
        through(py, &self.database, file, |mut file| db.dump_snapshot(&mut file, values))
    }

    /// Stores the records of a snapshot in Kyoto Cabinet's format, and replaces existing records.
    /// Returns their number. If a file at a path is damaged or incomplete, it is refused before
    /// anything is stored. From an open file, the records before the damage are stored.
    #[pyo3(signature = (file, *, timed=false))]
    fn load_snapshot(&self, py: Python<'_>, file: &Bound<'_, PyAny>, timed: bool) -> PyResult<u64> {
        let (values, db) = (values_of(timed), self.database.db().map_err(raised)?);
        if let Ok(path) = file.extract::<PathBuf>() {
            let outcome = py.detach(|| db.load_snapshot_file(&path, values));
            return outcome.map(|loaded| loaded.stored).map_err(raised);
        }
        through(py, &self.database, file, |mut file| {
            db.load_snapshot(&mut file, values).map(|loaded| loaded.stored)
        })
    }

    /// Calls `map` with the key and value of each record. Then calls `reduce`, in the order of the
    /// keys, with each key of the returned pairs and a list of its values. Returns a dict of the
    /// results of `reduce`. Pairs that do not fit into memory are sorted on disk. `combine` is
    /// called with a key and some of its values, and replaces them by one value to save memory.
    #[pyo3(signature = (map, reduce, *, combine=None, memory_max=None, temp_dir=None))]
    fn map_reduce<'py>(
        &self,
        py: Python<'py>,
        map: Py<PyAny>,
        reduce: Py<PyAny>,
        combine: Option<Py<PyAny>>,
        memory_max: Option<usize>,
        temp_dir: Option<PathBuf>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let db = self.database.db().map_err(raised)?;
        let options = map_reduce::MapReduceOptions { memory_max, temp_dir };
        let form = self.database.form;
        self.database.calling(|| map_reduce::run(py, &db, form, &map, &reduce, combine.as_ref(), options))
    }
}

/// The number of bytes that are read from or written to a file object at once.
const BUFFER_LEN: usize = 64 << 10;

fn text_of(name: &std::path::Path) -> PyResult<&str> {
    name.to_str().ok_or_else(|| PyValueError::new_err(format!("\"{}\" is no text", name.display())))
}

/// Runs `run` with a file object. Raises the exceptions of the file object unchanged.
fn through(
    py: Python<'_>,
    database: &PythonDatabase,
    file: &Bound<'_, PyAny>,
    run: impl FnOnce(PyFile<'_>) -> todana::Result<u64> + Send,
) -> PyResult<u64> {
    let (file, file_error) = (file.clone().unbind(), Mutex::new(None));
    let outcome = database.calling(|| py.detach(|| run(PyFile::new(&file, &file_error))));
    match file_error.into_inner() {
        Some(error) => Err(error),
        None => outcome.map_err(raised),
    }
}

fn values_of(timed: bool) -> DumpedValues {
    if timed { DumpedValues::Timed } else { DumpedValues::Bare }
}

/// Reads `"always"`, `"never"`, or a number of seconds.
fn sync_of(object: &Bound<'_, PyAny>) -> PyResult<SyncPolicy> {
    let wrong = || PyValueError::new_err("sync is \"always\", \"never\" or a number of seconds");
    if let Ok(word) = object.extract::<&str>() {
        return match word {
            "always" => Ok(SyncPolicy::Always),
            "never" => Ok(SyncPolicy::Never),
            _ => Err(wrong()),
        };
    }
    if object.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err("sync is \"always\", \"never\" or a number of seconds"));
    }
    let seconds: f64 = object.extract()?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(interval) if !interval.is_zero() => Ok(SyncPolicy::Every(interval)),
        _ => Err(wrong()),
    }
}
