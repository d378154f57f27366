//! Where commands go: those about data to the database, the server's own stay here.

use crate::connection::{Execute, Flow, answer};
use crate::logging::set_verbosity;
use crate::output::Output;
use crate::server::Shared;
use crate::statistics;
use crate::tls::Tls;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use todana::Lane;
use todana_core::{ClockShift, Command, Place, Refusal, Reply};
use todana_protocol::memcached::{Form, Request, encode};

/// The version that clients are told: they choose their features by memcached's.
pub(crate) const MEMCACHED_VERSION: &str = "1.6.45";

/// memcached's bounds for `cache_memlimit`, in MiB.
const MEMORY_LIMIT_MIN_MIB: u64 = 8;
const MEMORY_LIMIT_MAX_MIB: u64 = 1_000_000_000;

/// A list of keys goes out in pieces of this size.
const LIST_BYTES: usize = 64 << 10;

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
    fn execute(&mut self, request: &Request<'_>, output: &mut Output) -> Flow {
        let mut reply = |reply: Reply<'_>| answer(request, &reply, output);
        match &request.command {
            Command::Quit => return Flow::Close,
            Command::List => {
                reply(Reply::Done);
                return Flow::List;
            }
            Command::Stats { group } => statistics::answer(&self.shared, group, &mut reply),
            Command::Version => reply(Reply::Version(MEMCACHED_VERSION)),
            Command::Verbosity(verbosity) => {
                set_verbosity(*verbosity);
                reply(Reply::Done);
            }
            Command::MemoryLimit { mebibytes } => reply(self.set_memory_limit(*mebibytes)),
            Command::RefreshCertificates => self.refresh_certificates(&mut reply),
            Command::ShiftClock(shift) => {
                match *shift {
                    ClockShift::Pause => self.shared.clock.pause(),
                    ClockShift::Resume => self.shared.clock.resume(),
                    ClockShift::Forward { seconds } => self.shared.clock.advance(seconds),
                }
                reply(Reply::Done);
            }
            Command::Shutdown { graceful } => {
                if !self.shared.options.shutdown_allowed {
                    reply(Reply::Refused(Refusal::NotEnabled));
                    return Flow::Continue;
                }
                tracing::info!(graceful, "stopping: a client asked for it");
                self.shared.handle.stop();
                return Flow::Close;
            }
            command => self.shared.database.execute(&self.lane, command, &mut reply),
        }
        if request.form.closes() { Flow::Close } else { Flow::Continue }
    }

    fn list(&mut self, from: Option<Place>, output: &mut Output) -> Option<Place> {
        let next = self.shared.database.list(from, &mut |key, inspection| {
            // The line needs nothing of its request.
            encode(&Form::LINE, &Reply::Listed { key, inspection }, output);
            if output.len() < LIST_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        match next {
            Ok(Some(place)) => Some(place),
            Ok(None) | Err(_) => {
                encode(&Form::LINE, &Reply::End, output);
                None
            }
        }
    }
}

impl Service {
    #[cold]
    fn refresh_certificates(&self, reply: &mut dyn FnMut(Reply<'_>)) {
        match self.shared.tls.as_deref().map(Tls::refresh) {
            None => reply(Reply::Faulty("Error TLS not enabled")),
            Some(Ok(())) => reply(Reply::Done),
            Some(Err(error)) => reply(Reply::Faulty(&error.to_string())),
        }
    }

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
