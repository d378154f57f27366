//! Counts the requests of clients: by pool and command, and those that take a special way.

use super::tallies::{Tallies, Tally, TallySums};
use todana_core::{ArithmeticDirection, Operation, StoreMode};

/// A command of clients. Those of the binary and the meta protocol count as the command of the text
/// protocol that does the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientCommand {
    Get,
    Gat,
    Inspect,
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
    Incr,
    Decr,
    Delete,
    Touch,
    Flush,
}

impl ClientCommand {
    pub(crate) const ALL: [ClientCommand; 14] = {
        use ClientCommand::{
            Add, Append, Cas, Decr, Delete, Flush, Gat, Get, Incr, Inspect, Prepend, Replace, Set, Touch,
        };
        [Get, Gat, Inspect, Set, Add, Replace, Append, Prepend, Cas, Incr, Decr, Delete, Touch, Flush]
    };

    /// Returns the command of an operation.
    #[inline]
    pub(crate) fn of(operation: &Operation<'_>) -> ClientCommand {
        match operation {
            Operation::Get(get) if get.touch.is_some() => ClientCommand::Gat,
            Operation::Get(_) => ClientCommand::Get,
            Operation::Store(store) => match store.mode {
                StoreMode::Set if store.compare.is_some() => ClientCommand::Cas,
                StoreMode::Set => ClientCommand::Set,
                StoreMode::Add => ClientCommand::Add,
                StoreMode::Replace => ClientCommand::Replace,
                StoreMode::Append => ClientCommand::Append,
                StoreMode::Prepend => ClientCommand::Prepend,
            },
            Operation::Arithmetic(arithmetic) => match arithmetic.direction {
                ArithmeticDirection::Increment => ClientCommand::Incr,
                ArithmeticDirection::Decrement => ClientCommand::Decr,
            },
            Operation::Delete(_) => ClientCommand::Delete,
            Operation::Touch(_) => ClientCommand::Touch,
            Operation::Flush { .. } => ClientCommand::Flush,
            _ => ClientCommand::Inspect,
        }
    }

    /// Returns the word of the text protocol.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            ClientCommand::Get => "get",
            ClientCommand::Gat => "gat",
            ClientCommand::Inspect => "me",
            ClientCommand::Set => "set",
            ClientCommand::Add => "add",
            ClientCommand::Replace => "replace",
            ClientCommand::Append => "append",
            ClientCommand::Prepend => "prepend",
            ClientCommand::Cas => "cas",
            ClientCommand::Incr => "incr",
            ClientCommand::Decr => "decr",
            ClientCommand::Delete => "delete",
            ClientCommand::Touch => "touch",
            ClientCommand::Flush => "flush_all",
        }
    }
}

const COMMANDS: usize = ClientCommand::ALL.len();
/// The counter of lines with several keys.
const LINES: usize = 2 * COMMANDS;
/// The counter of the keys of these lines.
const LINE_KEYS: usize = LINES + 1;
/// The counter of the parts of these lines.
const LINE_PARTS: usize = LINE_KEYS + 1;
const POOL_LEN: usize = LINE_PARTS + 1;

/// The requests for a pool in all workers, and the times until their replies could be sent.
pub(crate) type PoolCounters = Tallies<POOL_LEN>;

/// The requests for a pool in one worker.
pub(super) type PoolTally = Tally<POOL_LEN>;

impl PoolTally {
    /// Counts a request. `is_quiet` means that the client does not want every reply.
    #[inline]
    pub(super) fn count_request(&self, command: ClientCommand, is_quiet: bool) {
        self.add(command as usize + if is_quiet { COMMANDS } else { 0 }, 1);
    }

    /// Counts a line with several keys.
    pub(super) fn count_line(&self, keys: usize, parts: usize) {
        self.add(LINES, 1);
        self.add(LINE_KEYS, keys as u64);
        self.add(LINE_PARTS, parts as u64);
    }
}

/// The sums of the counters of a pool.
pub(crate) type PoolSums = TallySums<POOL_LEN>;

impl PoolSums {
    /// Returns the number of requests that want each reply, and of the others.
    pub(crate) fn requests(&self, command: ClientCommand) -> [u64; 2] {
        [self.counts[command as usize], self.counts[command as usize + COMMANDS]]
    }

    /// Returns the number of keys that were read.
    pub(crate) fn read_keys(&self) -> u64 {
        let reads = [ClientCommand::Get, ClientCommand::Gat].map(|command| self.requests(command));
        let requests = reads.as_flattened().iter().sum::<u64>();
        (requests + self.line_keys()).saturating_sub(self.counts[LINES])
    }

    /// Returns the number of keys of lines with several keys.
    pub(crate) fn line_keys(&self) -> u64 {
        self.counts[LINE_KEYS]
    }

    /// Returns the number of parts of lines with several keys.
    pub(crate) fn line_parts(&self) -> u64 {
        self.counts[LINE_PARTS]
    }
}

/// A counter of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyCount {
    /// Requests that were sent again after their connection was lost.
    Retries,
    /// Replies that came after their requests were given up.
    LateReplies,
    /// Keys of lines with several keys.
    MultigetKeys,
    /// Requests to servers for these lines.
    MultigetRequests,
    /// Copies of requests that were sent to the pool of a `shadow` route.
    ShadowSent,
    /// Copies that were not sent, because their server was down or had too many requests.
    ShadowDropped,
    /// Records that were found in the old pool of a `warm-up` or `migrate` route.
    WarmupHits,
}

const PROXY_LEN: usize = ProxyCount::WarmupHits as usize + 1;

/// The counters of the proxy in all workers.
pub(crate) type ProxyCounters = Tallies<PROXY_LEN>;

/// The counters of the proxy in one worker.
pub(super) type ProxyTally = Tally<PROXY_LEN>;

/// The sums of the counters of the proxy.
pub(crate) type ProxySums = TallySums<PROXY_LEN>;

impl ProxySums {
    pub(crate) fn of(&self, count: ProxyCount) -> u64 {
        self.counts[count as usize]
    }
}
