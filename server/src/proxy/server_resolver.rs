//! Resolves the names of servers again and again, on a thread of its own.

use super::live_proxy::LiveProxy;
use crate::options::PoolOptions;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};

/// The thread that resolves the names of servers. It ends when this value is dropped.
pub(crate) struct ServerResolver {
    _ends: Sender<()>,
}

impl ServerResolver {
    /// Starts the thread.
    pub(crate) fn start(live: &Arc<LiveProxy>) -> io::Result<ServerResolver> {
        let (ends, is_over) = channel();
        let live = Arc::clone(live);
        std::thread::Builder::new().name("resolver".into()).spawn(move || {
            loop {
                let state = live.state();
                state.resolve_all(false);
                let interval = state.pools.iter().map(|pool| pool.options.dns).min();
                drop(state);
                let interval = interval.unwrap_or(PoolOptions::default().dns);
                if is_over.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(ServerResolver { _ends: ends })
    }
}
