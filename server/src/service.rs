//! Where commands go: those about data to the database, the server's own stay here.

use crate::connection::{Execute, answer};
use crate::output::Output;
use crate::server::Shared;
use crate::statistics;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use todana::Lane;
use todana_core::{Command, Refusal, Reply};
use todana_protocol::memcached::Request;

/// The version that clients are told: they choose their features by memcached's.
pub(crate) const MEMCACHED_VERSION: &str = "1.6.45";

/// memcached's bounds for `cache_memlimit`, in MiB.
const MEMORY_LIMIT_MIN_MIB: u64 = 8;
const MEMORY_LIMIT_MAX_MIB: u64 = 1_000_000_000;

/// One worker's way to the database.
pub(crate) struct Service {
    pub(crate) shared: Arc<Shared>,
    pub(crate) lane: Arc<Lane>,
}

impl Execute for Service {
    #[inline]
    fn prefetch(&self, key: &[u8]) {
        self.shared.database.engine().prefetch(key);
    }

    #[inline]
    fn execute(&mut self, request: &Request<'_>, output: &mut Output) -> bool {
        let mut reply = |reply: Reply<'_>| answer(request, &reply, output);
        match &request.command {
            Command::Quit => return false,
            Command::Stats { group } => statistics::answer(&self.shared, group, &mut reply),
            Command::Version => reply(Reply::Version(MEMCACHED_VERSION)),
            Command::Verbosity(_) => reply(Reply::Done),
            Command::MemoryLimit { mebibytes } => reply(self.set_memory_limit(*mebibytes)),
            Command::Shutdown { graceful } => {
                if !self.shared.options.shutdown_allowed {
                    reply(Reply::Refused(Refusal::NotEnabled));
                    return true;
                }
                tracing::info!(graceful, "stopping: a client asked for it");
                self.shared.handle.stop();
                return false;
            }
            command => self.shared.database.execute(&self.lane, command, &mut reply),
        }
        true
    }
}

impl Service {
    fn set_memory_limit(&self, mebibytes: u64) -> Reply<'static> {
        if mebibytes < MEMORY_LIMIT_MIN_MIB {
            return Reply::Refused(Refusal::LimitTooSmall);
        }
        if mebibytes > MEMORY_LIMIT_MAX_MIB {
            return Reply::Refused(Refusal::LimitInBytes);
        }
        self.shared.memory_limit_mib.store(mebibytes, Ordering::Relaxed);
        self.shared.apply_memory_limit();
        Reply::Done
    }
}
