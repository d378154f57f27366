//! Transactions: this thread's, kept for it until it commits or aborts, or ends.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{TODANA_OK, answer, invalid};
use crate::home::{self, Database, Dependent, Home};
use std::cell::RefCell;
use std::ffi::c_int;
use std::rc::Rc;
use std::sync::Arc;
use todana::{Error, ErrorKind, Records, Result, Transaction};

pub(crate) struct Own {
    transaction: Transaction<'static>,
    /// Dropped last: the database must not be closed before.
    home: Dependent,
}

impl Own {
    pub(crate) fn records(&self) -> &dyn Records {
        &self.transaction
    }
}

thread_local! {
    /// One of a database at most; rarely more than one.
    static OPEN: RefCell<Vec<Rc<Own>>> = const { RefCell::new(Vec::new()) };
}

/// The transaction of this database that this thread has open.
pub(crate) fn of_this_thread(number: usize) -> Option<Rc<Own>> {
    // A thread that is about to end has none.
    OPEN.try_with(|open| open.borrow().iter().find(|own| own.home.number() == number).cloned()).ok().flatten()
}

/// Begins a transaction, once no other thread has one open. From now on all that this thread does with the database belongs to it, until
/// todana_commit() or todana_abort(); others read what was there before, and wait before they write. A thread that ends aborts it.
/// TODANA_BUSY: this thread has one open already.
#[unsafe(no_mangle)]
pub extern "C" fn todana_begin(db: *mut Database) -> c_int {
    answer(|| {
        home::with(db, |home: &Arc<Home>| {
            home.with_db(|db| {
                let transaction = db.begin_owned()?;
                keep(Rc::new(Own { transaction, home: Dependent::new(home) }))?;
                Ok(TODANA_OK)
            })
        })
    })
}

/// Makes all changes of this thread's transaction at once, or none if it fails; in either case it is over.
#[unsafe(no_mangle)]
pub extern "C" fn todana_commit(db: *mut Database) -> c_int {
    answer(|| {
        let Own { transaction, home } = home::with(db, |home| home.with_db(|_| take(home.number)))?;
        transaction.commit()?;
        drop(home);
        Ok(TODANA_OK)
    })
}

/// Leaves everything as it was before this thread's transaction.
#[unsafe(no_mangle)]
pub extern "C" fn todana_abort(db: *mut Database) -> c_int {
    answer(|| {
        drop(home::with(db, |home| home.with_db(|_| take(home.number)))?);
        Ok(TODANA_OK)
    })
}

/// Aborts this thread's transaction, if it has one open.
pub(crate) fn abort_own(number: usize) {
    drop(take(number));
}

fn take(number: usize) -> Result<Own> {
    let own = OPEN.try_with(|open| {
        let mut open = open.borrow_mut();
        let at = open.iter().position(|own| own.home.number() == number)?;
        Some(open.swap_remove(at))
    });
    let own =
        own.ok().flatten().ok_or_else(|| invalid("this thread has no transaction of the database open"))?;
    Rc::try_unwrap(own).map_err(|own| match keep(own) {
        Ok(()) => Error::new(ErrorKind::Busy, "the transaction is at work"),
        Err(error) => error,
    })
}

/// Keeps a transaction for this thread; aborts it if the thread keeps nothing any more.
fn keep(own: Rc<Own>) -> Result<()> {
    OPEN.try_with(|open| open.borrow_mut().push(own))
        .map_err(|_| invalid("the thread ends: it keeps no transaction open"))
}
