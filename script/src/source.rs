//! Gives scripts access to a database and to transactions.

use crate::context::{AbortOpenTransaction, ScriptContext};
use crate::error::{CallResult, ScriptError};
use crate::transaction_turn::TransactionTurn;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;
use todana::kyoto::KyotoRecords;
use todana::{Database, DatabaseName, Db, Records, RecordsHandle, Transaction};
use todana_core::Result;

/// The interval at which a script tries again to begin a transaction, while the call of a client
/// has one. Such calls are short.
const TRY_AGAIN: Duration = Duration::from_micros(100);

/// A database that can be made available to scripts.
pub trait ScriptDatabase: Records + Send + Sync {
    /// Returns the database.
    fn database(&self) -> &Database;

    /// Returns the name by which the database was opened.
    fn name(&self) -> &DatabaseName;

    /// Begins a transaction without waiting. Returns `None` if another transaction is open.
    fn try_begin(&self) -> Result<Option<Transaction<'static>>>;

    /// Removes all records.
    fn clear(&self) -> Result<()>;

    /// Returns the status of the database, with the names that scripts use.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let (status, tuning) = (self.database().status(), &self.name().tuning);
        let capacity = |limit: Option<u64>| limit.map_or("-1".into(), |limit| limit.to_string());
        vec![
            ("count", status.records.to_string()),
            ("size", status.committed_bytes.to_string()),
            ("path", path(self.name())),
            ("ktopts", if tuning.persistent { "2" } else { "0" }.into()),
            ("ktcapcnt", capacity(tuning.records_max)),
            ("ktcapsiz", capacity(tuning.bytes_max)),
        ]
    }
}

/// Returns the path of a database, or its label if it has no path.
fn path(name: &DatabaseName) -> String {
    name.path.as_ref().map_or_else(|| name.label().to_owned(), |path| path.display().to_string())
}

impl ScriptDatabase for Db {
    fn database(&self) -> &Database {
        Db::database(self)
    }

    fn name(&self) -> &DatabaseName {
        Db::name(self)
    }

    fn try_begin(&self) -> Result<Option<Transaction<'static>>> {
        self.try_begin_owned()
    }

    fn clear(&self) -> Result<()> {
        Db::clear(self)
    }
}

/// An open transaction of the script.
struct OpenTransaction {
    transaction: Transaction<'static>,
    /// The turn of the script. It is declared after the transaction, because it must be dropped
    /// later.
    _turn: Arc<TransactionTurn>,
}

/// A database and the transaction that the script has opened in it. All operations use the
/// transaction while it is open.
struct SharedDatabase {
    source: Arc<dyn ScriptDatabase>,
    open: Mutex<Option<OpenTransaction>>,
}

impl AbortOpenTransaction for SharedDatabase {
    fn abort(&self) -> bool {
        self.open.lock().take().is_some()
    }
}

/// A shared reference to a database. A function that is shown a record must not use the reference.
#[derive(Clone)]
pub(crate) struct DatabaseHandle(Arc<SharedDatabase>);

impl DatabaseHandle {
    /// Creates a reference. `context` remembers it, to abort a transaction that is still open after
    /// the call.
    pub(crate) fn new(source: Arc<dyn ScriptDatabase>, context: &ScriptContext) -> DatabaseHandle {
        let base = Arc::new(SharedDatabase { source, open: Mutex::default() });
        let weak: Weak<SharedDatabase> = Arc::downgrade(&base);
        context.watch(weak);
        DatabaseHandle(base)
    }

    pub(crate) fn source(&self) -> &dyn ScriptDatabase {
        &*self.0.source
    }

    /// Returns the records of the database with the semantics of Kyoto Tycoon.
    pub(crate) fn kyoto(&self) -> KyotoRecords<DatabaseHandle> {
        KyotoRecords::new(self.clone(), self.source().name().tuning.persistent)
    }

    /// Returns the path of the database, or its label if it has no path.
    pub(crate) fn path(&self) -> String {
        path(self.source().name())
    }

    pub(crate) fn is_in_transaction(&self) -> bool {
        self.0.open.lock().is_some()
    }

    /// Waits until no other transaction is open, and begins a transaction.
    pub(crate) fn begin(&self, context: &ScriptContext) -> mlua::Result<CallResult<()>> {
        if self.is_in_transaction() {
            return Ok(Err(ScriptError::IN_TRANSACTION));
        }
        let Some(turn) = context.turns.get(&context.deadline) else {
            return context.deadline.check().map(|()| Err(ScriptError::RESTLESS));
        };
        loop {
            match self.0.source.try_begin() {
                Ok(Some(transaction)) => {
                    *self.0.open.lock() = Some(OpenTransaction { transaction, _turn: turn });
                    return Ok(Ok(()));
                }
                Ok(None) => std::thread::sleep(TRY_AGAIN),
                Err(error) => return Ok(Err(ScriptError::of(&error))),
            }
            context.deadline.check()?;
        }
    }

    /// Ends the transaction.
    pub(crate) fn end(&self, commits: bool) -> CallResult<()> {
        let open = self.0.open.lock().take();
        let OpenTransaction { transaction, _turn } = open.ok_or(ScriptError::NO_TRANSACTION)?;
        if commits { transaction.commit().map_err(|error| ScriptError::of(&error)) } else { Ok(()) }
    }

    /// Runs a function in the open transaction. If there is none, runs it in a new transaction,
    /// which is committed if the function succeeds.
    pub(crate) fn atomically<T>(
        &self,
        context: &ScriptContext,
        run: impl FnOnce() -> mlua::Result<CallResult<T>>,
    ) -> mlua::Result<CallResult<T>> {
        if self.is_in_transaction() {
            return run();
        }
        if let Err(error) = self.begin(context)? {
            return Ok(Err(error));
        }
        let outcome = run();
        let ended = self.end(matches!(outcome, Ok(Ok(_))));
        outcome.map(|outcome| outcome.and_then(|value| ended.map(|()| value)))
    }
}

impl RecordsHandle for DatabaseHandle {
    fn with_records<T>(&self, run: impl FnOnce(&dyn Records) -> Result<T>) -> Result<T> {
        let open = self.0.open.lock();
        match &*open {
            Some(open) => run(&open.transaction),
            None => {
                drop(open);
                run(&*self.0.source)
            }
        }
    }

    fn has_order(&self) -> bool {
        self.0.source.is_ordered()
    }
}
