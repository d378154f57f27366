//! A database in the reach of scripts.

use crate::trouble::{Done, Trouble};
use crate::turn::Turn;
use crate::world::{Abort, World};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;
use todana::kyoto::KyotoRecords;
use todana::{Database, Db, Name, Records, RecordsHandle, Transaction};
use todana_core::Result;

/// How long a script waits for the transaction of a client's call, which is short, before it looks again.
const TRY_AGAIN: Duration = Duration::from_micros(100);

/// A database that scripts may be given.
pub trait Source: Records + Send + Sync {
    /// The database.
    fn database(&self) -> &Database;

    /// What it was opened by.
    fn name(&self) -> &Name;

    /// Begins a transaction, without waiting: `None` if there is another one.
    fn try_begin(&self) -> Result<Option<Transaction<'static>>>;

    /// Removes all records.
    fn clear(&self) -> Result<()>;

    /// What there is to tell of it, by the names that scripts read.
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

/// What it is called.
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

/// A transaction that the script has open.
struct Open {
    transaction: Transaction<'static>,
    /// Behind it, as it ends first.
    _turn: Arc<Turn>,
}

/// A database with the transaction that the script has open there, in which all is done as long as it is open.
struct Base {
    source: Arc<dyn Source>,
    open: Mutex<Option<Open>>,
}

impl Abort for Base {
    fn abort(&self) -> bool {
        self.open.lock().take().is_some()
    }
}

/// A reference to it. What is shown by a call may not call it again.
#[derive(Clone)]
pub(crate) struct Reach(Arc<Base>);

impl Reach {
    /// The world keeps an eye on it, for what is left open.
    pub(crate) fn new(source: Arc<dyn Source>, world: &World) -> Reach {
        let base = Arc::new(Base { source, open: Mutex::default() });
        let weak: Weak<Base> = Arc::downgrade(&base);
        world.watch(weak);
        Reach(base)
    }

    pub(crate) fn source(&self) -> &dyn Source {
        &*self.0.source
    }

    /// Its records as Kyoto Tycoon's users mean them.
    pub(crate) fn kyoto(&self) -> KyotoRecords<Reach> {
        KyotoRecords::new(self.clone(), self.source().name().tuning.persistent)
    }

    /// What it is called.
    pub(crate) fn path(&self) -> String {
        path(self.source().name())
    }

    pub(crate) fn is_in_transaction(&self) -> bool {
        self.0.open.lock().is_some()
    }

    /// Begins a transaction, once there is no other one.
    pub(crate) fn begin(&self, world: &World) -> mlua::Result<Done<()>> {
        if self.is_in_transaction() {
            return Ok(Err(Trouble::IN_TRANSACTION));
        }
        let Some(turn) = world.turns.get(&world.deadline) else {
            return world.deadline.check().map(|()| Err(Trouble::RESTLESS));
        };
        loop {
            match self.0.source.try_begin() {
                Ok(Some(transaction)) => {
                    *self.0.open.lock() = Some(Open { transaction, _turn: turn });
                    return Ok(Ok(()));
                }
                Ok(None) => std::thread::sleep(TRY_AGAIN),
                Err(error) => return Ok(Err(Trouble::of(&error))),
            }
            world.deadline.check()?;
        }
    }

    /// Ends the transaction.
    pub(crate) fn end(&self, commits: bool) -> Done<()> {
        let open = self.0.open.lock().take();
        let Open { transaction, _turn } = open.ok_or(Trouble::NO_TRANSACTION)?;
        if commits { transaction.commit().map_err(|error| Trouble::of(&error)) } else { Ok(()) }
    }

    /// Runs within a transaction: the one that is open, or one that is committed if all went well.
    pub(crate) fn atomically<T>(
        &self,
        world: &World,
        run: impl FnOnce() -> mlua::Result<Done<T>>,
    ) -> mlua::Result<Done<T>> {
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

impl RecordsHandle for Reach {
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
