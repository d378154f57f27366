//! An engine under test, and the few things that all tests do with one.

use crate::model::{Decided, Decision, owned};
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Deref};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;
use todana_core::{Attributes, Engine, Place, Result};

/// How an engine is opened.
#[derive(Clone, Copy)]
pub(crate) struct Subject {
    /// What it holds is there again when it is opened in the same directory.
    pub(crate) keeps: bool,
    /// Opens it in a directory: an empty one, or one that it has used before.
    pub(crate) open: fn(&Path) -> Result<Box<dyn Engine>>,
}

impl Subject {
    /// An empty one in a directory of its own.
    pub(crate) fn fresh(&self) -> Opened {
        let directory = TempDir::new().expect("a directory for the test");
        let engine = (self.open)(directory.path()).expect("an empty directory can be opened");
        Opened { subject: *self, engine: Some(engine), directory }
    }
}

/// An open engine and its directory, which goes with it.
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
    /// Closes it and opens it again; nothing, if it does not keep its records.
    pub(crate) fn reopen(&mut self) {
        if self.subject.keeps {
            if let Some(checkpointed) = self.checkpointed() {
                checkpointed.checkpoint(checkpointed.mark() + 1).expect("a checkpoint can be made");
            }
            drop(self.engine.take());
            self.engine =
                Some((self.subject.open)(self.directory.path()).expect("what was closed can be opened"));
        }
    }
}

/// All records of a model or an engine.
pub(crate) type Map = BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>;

/// Stores a record, and sees to it that the engine says so.
pub(crate) fn put(engine: &dyn Engine, key: &[u8], value: &[u8], attributes: Attributes) {
    let mut visitor = Decided::new(Decision::Put(value.to_vec(), attributes));
    engine.visit(key, &mut visitor).expect("there is room");
    let applied = visitor.applied.expect("a put is applied").expect("and leaves a record");
    assert!(applied.0 == value && applied.1 == attributes, "what is applied is what was put");
}

/// Removes a record; returns whether there was one.
pub(crate) fn remove(engine: &dyn Engine, key: &[u8]) -> bool {
    let mut visitor = Decided::new(Decision::Remove);
    engine.visit(key, &mut visitor).expect("a removal needs no room");
    assert_eq!(visitor.applied.is_some(), visitor.seen.is_some(), "a removal applies to what is there");
    visitor.seen.is_some()
}

/// The record of a key.
pub(crate) fn view(engine: &dyn Engine, key: &[u8]) -> Option<(Vec<u8>, Attributes)> {
    let mut seen = None;
    let found = engine.view(key, &mut |record| seen = Some(owned(record))).expect("reads do not fail");
    assert_eq!(found, seen.is_some());
    seen
}

/// All records, `piece` of them at a time. Nothing may be written meanwhile: each must come exactly once.
pub(crate) fn scan(engine: &dyn Engine, piece: usize) -> Map {
    let mut found = Map::new();
    let mut place: Option<Place> = None;
    loop {
        let mut left = piece;
        let next = engine.scan(place, &mut |key, record| {
            assert!(found.insert(key.to_vec(), owned(record)).is_none(), "shown once as nothing is written");
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match next.expect("a scan does not fail") {
            Some(next) => place = Some(next),
            None => return found,
        }
    }
}

/// Fails with the first key at which the two differ, as all the bytes of both would be too much to read.
pub(crate) fn assert_same(found: &Map, model: &Map, what: &str) {
    for (key, record) in model {
        let other = found.get(key);
        assert!(other == Some(record), "{what}: {} differs or is missing", name(key));
    }
    let extra = found.keys().find(|key| !model.contains_key(*key));
    assert!(extra.is_none(), "{what}: {} should not be there", name(extra.expect("some")));
}

/// The first bytes of a key, and how long it is.
pub(crate) fn name(key: &[u8]) -> String {
    format!("key \"{}\" of {} bytes", key[..key.len().min(40)].escape_ascii(), key.len())
}

/// Lets other threads end, also when the one that has it fails.
pub(crate) struct Ends<'d>(pub(crate) &'d AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Fewer cases where each is slow (sanitizers, valgrind) or more for a long run: `TODANA_CASES`.
pub(crate) fn cases(default: u32) -> u32 {
    std::env::var("TODANA_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default)
}
