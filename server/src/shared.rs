//! What all threads of a server share.

use crate::conversation_log::{ConversationLog, Entry};
use crate::counters::{ConnectionCounters, WorkerCounters, WorkerSums};
use crate::crawler::Crawler;
use crate::databases::{Served, when_full};
use crate::exports::Exports;
use crate::handle::{Handle, Stopping};
use crate::janitor;
use crate::kyoto::{AnswerMemory, Errands, Heads, MessageKeys, Scripts, Signals};
use crate::login::Logins;
use crate::observers::Observers;
use crate::options::{Kyoto, Options};
use crate::patience::Pulse;
use crate::process;
use crate::replica::{Link, Replicas};
use crate::roster::Roster;
use crate::settling::Settling;
use crate::snapshots::History;
use crate::statistics::Baseline;
use crate::tls::Tls;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use todana::{CachedClock, Catalog, Database};
use todana_core::MemoryLimit;
use todana_protocol::memcached::{Choice, Limits};

/// What connections may keep together where there is no memory limit.
const HELD_MAX: u64 = 1 << 30;

/// What all threads of a server share.
pub(crate) struct Shared {
    pub(crate) options: Options,
    /// The first one, that memcached's protocols use.
    pub(crate) database: Arc<Database>,
    /// All of them, in their order.
    pub(crate) databases: Vec<Served>,
    /// The same by number and name, for protocols whose clients choose.
    pub(crate) catalog: Catalog,
    pub(crate) clock: Arc<CachedClock>,
    pub(crate) handle: Handle,
    /// Of the disk of the databases.
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) started: Instant,
    pub(crate) started_at: u64,
    pub(crate) connections: ConnectionCounters,
    pub(crate) workers: Vec<WorkerCounters>,
    /// What they had counted at the last `stats reset`.
    pub(crate) at_reset: Mutex<WorkerSums>,
    pub(crate) scripts: Scripts,
    pub(crate) logins: Logins,
    pub(crate) memory_limit_mib: AtomicU64,
    /// The highest limit that the engine's shards can fill. How many there are is settled at the start.
    pub(crate) memory_reach_mib: u64,
    pub(crate) verbosity: AtomicU32,
    /// Where requests are told, if they may be.
    pub(crate) conversation: Option<ConversationLog>,
    pub(crate) roster: Roster,
    pub(crate) crawler: Crawler,
    /// Rounds of the janitor.
    pub(crate) housekeepings: AtomicU64,
    /// What had been counted when the statistics were last reset.
    pub(crate) baseline: Baseline,
    pub(crate) observers: Arc<Observers>,
    /// What the process held besides the engine when last measured, or estimated.
    pub(crate) outside_bytes: AtomicU64,
    /// The same, but never an estimate.
    pub(crate) measured_bytes: AtomicU64,
    /// What the process holds cannot be measured.
    pub(crate) is_unmeasured: AtomicBool,
    /// Workers that wait for the update log.
    pub(crate) settling: Arc<Settling>,
    /// Checkpoints, backups and logs under way to clients.
    pub(crate) exports: Arc<Exports>,
    /// Who waits for signals of Kyoto's clients, and for messages.
    pub(crate) signals: Signals,
    /// The keys of messages.
    pub(crate) message_keys: MessageKeys,
    /// Where queues begin.
    pub(crate) queue_heads: Heads,
    /// Procedures of Kyoto's that take long.
    pub(crate) errands: Errands,
    /// Scripts.
    pub(crate) script_errands: Errands,
    /// The memory of their long answers.
    pub(crate) answers: AnswerMemory,
    /// Replicas that follow this server, and whom it follows itself.
    pub(crate) replicas: Replicas,
    pub(crate) link: Link,
    /// What has become of snapshots.
    pub(crate) snapshots: History,
    /// What is kept is being read back.
    pub(crate) is_loading: AtomicBool,
    /// It could not be.
    pub(crate) has_not_loaded: AtomicBool,
    /// What connections keep between their turns.
    pub(crate) held_bytes: AtomicU64,
    pub(crate) tcp_port: u16,
    pub(crate) udp_port: u16,
    pub(crate) listening_on: Vec<String>,
    pub(crate) tls: Option<Arc<Tls>>,
}

impl Shared {
    /// The first database, that memcached's protocols use.
    #[inline]
    pub(crate) fn first(&self) -> &Served {
        &self.databases[0]
    }

    /// Does this to each database.
    pub(crate) fn each(&self, act: impl Fn(&Database)) {
        self.databases.iter().for_each(|served| act(&served.database));
    }

    pub(crate) fn stopping(&self) -> Stopping {
        self.handle.stopping()
    }

    /// The dialect of connections that have come where this one is spoken. Where clients have to log in, how they do that
    /// decides instead: no listener lets them in by another dialect without.
    pub(crate) fn choice(&self, of_listener: Option<Choice>) -> Choice {
        self.logins.limits(of_listener.unwrap_or(self.options.protocol)).choice
    }

    /// Whether Kyoto Tycoon's protocols are spoken beside memcached's: not where one of these alone is asked for. Who has to log in
    /// may do so by HTTP, whatever it leaves of memcached's.
    pub(crate) fn speaks_kyoto(&self, of_listener: Option<Choice>) -> bool {
        let asked = of_listener.unwrap_or(self.options.protocol);
        self.options.kyoto == Kyoto::Beside && asked == Choice::Auto
    }

    /// What requests may be; no long value is received apart.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            item_size_max: self.options.item_size_max,
            flush_allowed: self.options.flush_allowed,
            negative_is_sliding: self.options.negative_is_sliding,
            debug_commands: self.options.debug_commands,
            ..self.logins.limits(self.options.protocol)
        }
    }

    /// Whether requests are told.
    pub(crate) fn is_aloud(&self) -> bool {
        self.conversation.is_some() && self.verbosity.load(Ordering::Relaxed) > 1
    }

    /// Tells a part of the conversation.
    #[cold]
    pub(crate) fn tell(&self, write: impl FnOnce(&mut Entry<'_>)) {
        if let Some(log) = &self.conversation {
            log.tell(write);
        }
    }

    /// How much is logged: nothing twice, where requests and connections are told.
    pub(crate) fn log_verbosity(&self) -> u32 {
        let verbosity = self.verbosity.load(Ordering::Relaxed);
        if self.conversation.is_some() { verbosity.min(1) } else { verbosity }
    }

    /// What the workers have counted since the last reset.
    pub(crate) fn worker_sums(&self) -> WorkerSums {
        // Read under the lock, so that no reset comes in between.
        let at_reset = self.at_reset.lock().unwrap_or_else(PoisonError::into_inner);
        WorkerSums::of(&self.workers).since(*at_reset)
    }

    pub(crate) fn reset_worker_sums(&self) {
        let mut at_reset = self.at_reset.lock().unwrap_or_else(PoisonError::into_inner);
        *at_reset = WorkerSums::of(&self.workers);
    }

    pub(crate) fn connection_closed(&self) {
        self.connections.current.fetch_sub(1, Ordering::Relaxed);
    }

    /// The limit of the process's anonymous memory in bytes, `None` for none.
    pub(crate) fn memory_limit_bytes(&self) -> Option<u64> {
        Some(self.memory_limit_mib.load(Ordering::Relaxed)).filter(|&mib| mib != 0).map(|mib| mib << 20)
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// What all connections together keep of requests that are not whole, long values among it.
    pub(crate) fn unfinished_bytes(&self) -> u64 {
        self.workers.iter().fold(0, |sum, worker| worker.partial_bytes.get().wrapping_add(sum))
    }

    pub(crate) fn held_changed(&self, before: u64, now: u64) {
        // Wraps around where it shrinks.
        self.held_bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// What all connections together may keep besides long values, which are the engine's.
    pub(crate) fn held_max(&self) -> u64 {
        self.memory_limit_bytes().map_or(HELD_MAX, |limit| limit / 4)
    }

    /// What a connection that keeps `own` bytes may keep.
    pub(crate) fn held_room(&self, own: u64) -> usize {
        let others = self.held_bytes().saturating_sub(own);
        usize::try_from(self.held_max().saturating_sub(others)).unwrap_or(usize::MAX)
    }

    pub(crate) fn is_loading(&self) -> bool {
        self.is_loading.load(Ordering::Relaxed)
    }

    pub(crate) fn has_not_loaded(&self) -> bool {
        self.has_not_loaded.load(Ordering::Relaxed)
    }

    /// Measures what the process holds besides the engine, and gives the engine the rest.
    pub(crate) fn measure_memory(&self) {
        if self.memory_limit_bytes().is_some() {
            // Those on disk, too: what they hold is theirs besides the limit, and takes nothing from those in memory.
            let committed = || {
                let all = self.databases.iter().map(|served| served.database.engine());
                all.map(|engine| engine.status().committed_bytes).sum()
            };
            let before = committed();
            let last = self.measured_bytes.load(Ordering::Relaxed);
            // It cannot be read without a descriptor left, or without /proc.
            let outside = if let Some(anonymous) = process::anonymous_bytes() {
                self.is_unmeasured.store(false, Ordering::Relaxed);
                let outside = janitor::outside_bytes(last, anonymous, before, committed());
                self.measured_bytes.store(outside, Ordering::Relaxed);
                outside
            } else {
                self.tell_unmeasured();
                janitor::unmeasured_bytes(last, self.held_bytes() + self.answers.taken())
            };
            self.outside_bytes.store(outside, Ordering::Relaxed);
            self.apply_memory_limit();
        }
    }

    /// Says once that the memory of the process cannot be measured.
    fn tell_unmeasured(&self) {
        if !self.is_unmeasured.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "memory limit: /proc/self cannot be read; the limit is kept by what the databases count, and the \
                 rest of the process is estimated"
            );
        }
    }

    /// Tells the engine its limit.
    pub(crate) fn apply_memory_limit(&self) {
        let outside = self.outside_bytes.load(Ordering::Relaxed);
        let bounded = || {
            let bounded = |served: &'_ Served| served.database.engine().bounded().is_some();
            self.databases.iter().filter(move |served| bounded(served))
        };
        // Those in memory share alike.
        let count = bounded().count().max(1) as u64;
        let share = self.memory_limit_bytes().map(|limit| janitor::engine_limit(limit, outside) / count);
        for served in bounded() {
            let bytes = share.into_iter().chain(served.name.tuning.bytes_max).min();
            if let Some(bounded) = served.database.engine().bounded() {
                bounded.set_limit(MemoryLimit { bytes, when_full: when_full(&self.options) });
            }
        }
    }
}
