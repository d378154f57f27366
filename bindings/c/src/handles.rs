//! Defines handles, which are numbers of open objects. A closed handle is invalid, and no number is
//! used twice.

use parking_lot::RwLock;
use std::collections::HashMap;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use todana::{Error, ErrorKind, Result};

/// All open objects of one type.
pub(crate) struct HandleTable<T>(LazyLock<RwLock<HashMap<usize, Arc<T>>>>);

/// The next number. The numbers look like addresses at which there cannot be an object.
static NEXT: AtomicUsize = AtomicUsize::new(16);

/// Returns the number for a new object.
pub(crate) fn new_number() -> usize {
    NEXT.fetch_add(16, Ordering::Relaxed)
}

impl<T> HandleTable<T> {
    pub(crate) const fn new() -> HandleTable<T> {
        HandleTable(LazyLock::new(RwLock::default))
    }

    pub(crate) fn insert(&self, number: usize, open: Arc<T>) {
        self.0.write().insert(number, open);
    }

    pub(crate) fn find(&self, number: usize, what: &str) -> Result<Arc<T>> {
        match self.0.read().get(&number) {
            Some(open) => Ok(Arc::clone(open)),
            None => Err(unknown(number, what)),
        }
    }

    pub(crate) fn remove(&self, number: usize, what: &str) -> Result<Arc<T>> {
        self.0.write().remove(&number).ok_or_else(|| unknown(number, what))
    }
}

fn unknown(number: usize, what: &str) -> Error {
    if number == 0 {
        return Error::new(ErrorKind::Invalid, format!("the {what} is NULL"));
    }
    Error::new(ErrorKind::Closed, format!("the {what} was closed, or is none"))
}

/// Returns the number in the form that C receives: an address that is never dereferenced.
pub(crate) fn shown<H>(number: usize) -> *mut H {
    ptr::without_provenance_mut(number)
}
