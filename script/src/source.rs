//! A database that scripts can access.

use crate::error::{CallResult, ScriptError};
use crate::turn::TransactionTurn;
use crate::world::{AbortOpenTransaction, ScriptContext};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;
use todana::kyoto::KyotoRecords;
use todana::{Database, Db, Name, Records, RecordsHandle, Transaction};
use todana_core::Result;

/// The interval at which a script retries while a client's call holds the transaction. Such calls
/// are short.
const TRY_AGAIN: Duration = Duration::from_micros(100);

/// A database that can be made available to scripts.
pub trait Source: Records + Send + Sync {
    /// Returns the database.
    fn database(&self) -> &Database;

    /// Returns the name by which it was opened.
    fn name(&self) -> &Name;

    /// Begins a transaction without waiting; returns `None` if another one is open.
    fn try_begin(&self) -> Result<Option<Transaction<'static>>>;

    /// Removes all records.
    fn clear(&self) -> Result<()>;

    /// Returns the status of the database under the names that scripts use.
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

/// Returns the path of a database, or its label if it has none.
fn path(name: &Name) -> String {
    name.path.as_ref().map_or_else(|| name.label().to_owned(), |path| path.display().to_string())
}

impl Source for Db {
    fn database(&self) -> &Database {
        Db::database(self)
    }

    fn name(&self) -> &Name {
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
    /// Declared after the transaction because it must be dropped later.
    _turn: Arc<TransactionTurn>,
}

/// A database and the transaction that the script has open there. All operations use the
/// transaction while it is open.
struct SharedDatabase {
    source: Arc<dyn Source>,
    open: Mutex<Option<OpenTransaction>>,
}

impl AbortOpenTransaction for SharedDatabase {
    fn abort(&self) -> bool {
        self.open.lock().take().is_some()
    }
}

/// A shared reference to the database. A function that is shown a record must not call it again.
#[derive(Clone)]
pub(crate) struct DatabaseHandle(Arc<SharedDatabase>);

impl DatabaseHandle {
    /// Creates a reference that `world` watches, so that an open transaction is aborted after the
    /// call.
    pub(crate) fn new(source: Arc<dyn Source>, world: &ScriptContext) -> DatabaseHandle {
        let base = Arc::new(SharedDatabase { source, open: Mutex::default() });
        let weak: Weak<SharedDatabase> = Arc::downgrade(&base);
        world.watch(weak);
        DatabaseHandle(base)
    }

    pub(crate) fn source(&self) -> &dyn Source {
        &*self.0.source
    }

    /// Returns its records with Kyoto Tycoon's semantics.
    pub(crate) fn kyoto(&self) -> KyotoRecords<DatabaseHandle> {
        KyotoRecords::new(self.clone(), self.source().name().tuning.persistent)
    }

    /// Returns its path or label.
    pub(crate) fn path(&self) -> String {
        path(self.source().name())
    }

    pub(crate) fn is_in_transaction(&self) -> bool {
        self.0.open.lock().is_some()
    }

    /// Begins a transaction when no other one is open.
    pub(crate) fn begin(&self, world: &ScriptContext) -> mlua::Result<CallResult<()>> {
        if self.is_in_transaction() {
            return Ok(Err(ScriptError::IN_TRANSACTION));
        }
        let Some(turn) = world.turns.get(&world.deadline) else {
            return world.deadline.check().map(|()| Err(ScriptError::RESTLESS));
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
            world.deadline.check()?;
        }
    }

    /// Ends the transaction.
    pub(crate) fn end(&self, commits: bool) -> CallResult<()> {
        let open = self.0.open.lock().take();
        let OpenTransaction { transaction, _turn } = open.ok_or(ScriptError::NO_TRANSACTION)?;
        if commits { transaction.commit().map_err(|error| ScriptError::of(&error)) } else { Ok(()) }
    }

    /// Runs within the open transaction, or within a new one that is committed on success.
    pub(crate) fn atomically<T>(
        &self,
        world: &ScriptContext,
        run: impl FnOnce() -> mlua::Result<CallResult<T>>,
    ) -> mlua::Result<CallResult<T>> {
        if self.is_in_transaction() {
            return run();
        }
        if let Err(trouble) = self.begin(world)? {
            return Ok(Err(trouble));
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
