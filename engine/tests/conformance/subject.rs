//! An engine under test, with helpers for all tests.

use crate::model::{Decided, Decision};
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;
use todana_core::{Attributes, Engine, Result};

/// How an engine is opened.
#[derive(Clone, Copy)]
pub(crate) struct Subject {
    /// Its records exist again after reopening it in the same directory.
    pub(crate) keeps: bool,
    /// Opens it in a directory that is empty or that it has used before.
    pub(crate) open: fn(&Path) -> Result<Box<dyn Engine>>,
}

impl Subject {
    /// Opens an empty engine in a new directory.
    pub(crate) fn fresh(&self) -> Opened {
        let directory = TempDir::new().expect("a directory for the test");
        let engine = (self.open)(directory.path()).expect("an empty directory can be opened");
        Opened { subject: *self, engine: Some(engine), directory }
    }
}

/// An open engine and its directory, which is removed with it.
pub(crate) struct Opened {
    subject: Subject,
    // `None` only between closing and opening.
    engine: Option<Box<dyn Engine>>,
    directory: TempDir,
}

impl Deref for Opened {
    type Target = dyn Engine;

    fn deref(&self) -> &Self::Target {
        &**self.engine.as_ref().expect("it is open")
    }
}

impl Opened {
    /// Closes and reopens the engine; does nothing if it does not keep its records.
    pub(crate) fn reopen(&mut self) {
        if self.subject.keeps {
            if let Some(checkpointed) = self.checkpointed() {
                checkpointed.checkpoint(checkpointed.log_position() + 1).expect("a checkpoint can be made");
            }
            drop(self.engine.take());
            self.engine =
                Some((self.subject.open)(self.directory.path()).expect("what was closed can be opened"));
        }
    }
}

/// Stores a record and asserts that the engine reports it.
pub(crate) fn put(engine: &dyn Engine, key: &[u8], value: &[u8], attributes: Attributes) {
    let mut visitor = Decided::new(Decision::Put(value.to_vec(), attributes));
    engine.visit(key, &mut visitor).expect("there is room");
    let applied = visitor.applied.expect("a put is applied").expect("and leaves a record");
    assert!(applied.0 == value && applied.1 == attributes, "what is applied is what was put");
}

/// Removes a record. Returns true if there was one.
pub(crate) fn remove(engine: &dyn Engine, key: &[u8]) -> bool {
    let mut visitor = Decided::new(Decision::Remove);
    engine.visit(key, &mut visitor).expect("a removal needs no room");
    assert_eq!(visitor.applied.is_some(), visitor.seen.is_some(), "a removal applies to what is there");
    visitor.seen.is_some()
}

/// StopOnDrop other threads, even if the thread that owns this fails.
pub(crate) struct StopOnDrop<'d>(pub(crate) &'d AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the number of cases: the variable `TODANA_CASES` sets fewer for slow runs (sanitizers,
/// valgrind) or more for long ones.
pub(crate) fn cases(default: u32) -> u32 {
    std::env::var("TODANA_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default)
}
