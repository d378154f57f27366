//! Defines a decoded request of the binary protocol.

use super::command::TyrantCommand;
use super::fields::FieldList;

/// The option of `misc` that keeps the call out of the update log.
pub const MISC_NOT_LOGGED: u32 = 1;

/// The option of `restore` and `setmst` that ends the work at the first record whose outcome
/// differs from the logged outcome.
pub const CHECKS_OUTCOMES: u32 = 1;

/// The commands whose requests have a key and a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TyrantPutMode {
    /// `put`: stores always.
    Put,
    /// `putkeep`: stores only if no record exists.
    Keep,
    /// `putcat`: appends to the old value, if there is one.
    Cat,
    /// `putnr`: stores always, and is never answered.
    NoReply,
}

/// A request. Keys, values, prefixes and names are arbitrary bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TyrantRequest<'a> {
    /// `put`, `putkeep`, `putcat` and `putnr`.
    Put {
        /// The command.
        mode: TyrantPutMode,
        /// The key.
        key: &'a [u8],
        /// The value, or the bytes to append.
        value: &'a [u8],
    },
    /// `putshl`: appends to the value, and keeps only the end of the result.
    PutShl {
        /// The key.
        key: &'a [u8],
        /// The bytes to append.
        value: &'a [u8],
        /// The number of bytes to keep, if there was a value.
        width: u32,
    },
    /// `out`: removes a record.
    Out {
        /// The key.
        key: &'a [u8],
    },
    /// `get`: reads a record.
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// `mget`: reads several records.
    MGet {
        /// The keys.
        keys: FieldList<'a>,
    },
    /// `vsiz`: reads the length of a value.
    VSiz {
        /// The key.
        key: &'a [u8],
    },
    /// `iterinit`: moves the iterator of the database to its first record.
    IterInit,
    /// `iternext`: reads the next key of the iterator.
    IterNext,
    /// `fwmkeys`: searches for keys by their beginning.
    FwmKeys {
        /// The beginning of the keys, or an interval in a database of fixed-length records.
        prefix: &'a [u8],
        /// The largest number of keys to return; `None` for all.
        limit: Option<u32>,
    },
    /// `addint`: adds to an integer of 4 bytes.
    AddInt {
        /// The key.
        key: &'a [u8],
        /// The number to add.
        delta: i32,
    },
    /// `adddouble`: adds to a real number of 8 bytes.
    AddDouble {
        /// The key.
        key: &'a [u8],
        /// The number to add.
        delta: f64,
    },
    /// `ext`: calls a function of the server's script.
    Ext {
        /// The name of the function.
        name: &'a [u8],
        /// Bit 0: lock the record; bit 1: lock all records.
        options: u32,
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// `sync`: writes the database to its files.
    Sync,
    /// `optimize`: changes the tuning of the database.
    Optimize {
        /// The tuning, in the form in which it follows the name of a database.
        tuning: &'a [u8],
    },
    /// `vanish`: removes all records.
    Vanish,
    /// `copy`: copies the database.
    Copy {
        /// The path of the copy on the server, or `@` and a command.
        path: &'a [u8],
    },
    /// `restore`: applies the records of an update log.
    Restore {
        /// The directory of the log on the server.
        path: &'a [u8],
        /// The time stamp of the first record to apply, in microseconds since 1970.
        since_micros: u64,
        /// [`CHECKS_OUTCOMES`] or 0.
        options: u32,
    },
    /// `setmst`: makes the server follow a master.
    SetMst {
        /// The host of the master, or empty to follow no master.
        host: &'a [u8],
        /// The port of the master, or 0 to follow no master.
        port: u32,
        /// The time stamp of the last update that the replica has, in microseconds since 1970. 0
        /// keeps the stored time stamp.
        since_micros: u64,
        /// [`CHECKS_OUTCOMES`] or 0.
        options: u32,
    },
    /// `rnum`: reads the number of records.
    RNum,
    /// `size`: reads the size of the database.
    Size,
    /// `stat`: reads the statistics.
    Stat,
    /// `misc`: calls a function of the database by its name.
    Misc {
        /// The name of the function.
        name: &'a [u8],
        /// [`MISC_NOT_LOGGED`] or 0.
        options: u32,
        /// The arguments.
        arguments: FieldList<'a>,
    },
    /// `repl`: begins a stream of updates for a replica.
    Repl {
        /// The time stamp of the first update to send, in microseconds since 1970.
        since_micros: u64,
        /// The ID of the replica.
        server_id: u32,
    },
}

impl TyrantRequest<'_> {
    /// Returns the command of the request.
    #[inline]
    pub fn command(&self) -> TyrantCommand {
        match self {
            TyrantRequest::Put { mode, .. } => match mode {
                TyrantPutMode::Put => TyrantCommand::Put,
                TyrantPutMode::Keep => TyrantCommand::PutKeep,
                TyrantPutMode::Cat => TyrantCommand::PutCat,
                TyrantPutMode::NoReply => TyrantCommand::PutNr,
            },
            TyrantRequest::PutShl { .. } => TyrantCommand::PutShl,
            TyrantRequest::Out { .. } => TyrantCommand::Out,
            TyrantRequest::Get { .. } => TyrantCommand::Get,
            TyrantRequest::MGet { .. } => TyrantCommand::MGet,
            TyrantRequest::VSiz { .. } => TyrantCommand::VSiz,
            TyrantRequest::IterInit => TyrantCommand::IterInit,
            TyrantRequest::IterNext => TyrantCommand::IterNext,
            TyrantRequest::FwmKeys { .. } => TyrantCommand::FwmKeys,
            TyrantRequest::AddInt { .. } => TyrantCommand::AddInt,
            TyrantRequest::AddDouble { .. } => TyrantCommand::AddDouble,
            TyrantRequest::Ext { .. } => TyrantCommand::Ext,
            TyrantRequest::Sync => TyrantCommand::Sync,
            TyrantRequest::Optimize { .. } => TyrantCommand::Optimize,
            TyrantRequest::Vanish => TyrantCommand::Vanish,
            TyrantRequest::Copy { .. } => TyrantCommand::Copy,
            TyrantRequest::Restore { .. } => TyrantCommand::Restore,
            TyrantRequest::SetMst { .. } => TyrantCommand::SetMst,
            TyrantRequest::RNum => TyrantCommand::RNum,
            TyrantRequest::Size => TyrantCommand::Size,
            TyrantRequest::Stat => TyrantCommand::Stat,
            TyrantRequest::Misc { .. } => TyrantCommand::Misc,
            TyrantRequest::Repl { .. } => TyrantCommand::Repl,
        }
    }
}
