//! The replicas that follow this server: a thread for each, which its worker has given the connection to.

use super::outgoing::Outgoing;
use super::wire::Wire;
use crate::listener::Stream;
use crate::shared::Shared;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use todana_protocol::kyoto::binary::Hello;
use todana_protocol::kyoto::replication::{put_accepted, put_caught_up, put_refused};

/// Replicas at once.
const REPLICAS_MAX: usize = 16;
/// How long one may take to read, or to say that it has.
const PATIENCE: Duration = Duration::from_secs(30);
/// Those who have caught up hear so about as often.
const INTERVAL: Duration = Duration::from_millis(100);
/// What says that a replica has read that it has caught up.
const ACKNOWLEDGED: u8 = 0xB1;

/// All of them.
#[derive(Default)]
pub(crate) struct Replicas(Mutex<Vec<JoinHandle<()>>>);

impl Replicas {
    /// Serves a replica from now on. One too many is refused.
    pub(crate) fn start(&self, shared: &Arc<Shared>, stream: Stream, hello: Hello) {
        let mut threads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        let has_room = threads.len() < REPLICAS_MAX;
        let shared = Arc::clone(shared);
        let thread = std::thread::Builder::new().name("replica".into()).spawn(move || {
            match run(shared, stream, hello, has_room) {
                Ok(()) => {}
                Err(error) => tracing::info!(server_id = hello.server_id, "a replica is gone: {error}"),
            }
        });
        match thread {
            Ok(thread) => threads.push(thread),
            Err(error) => tracing::error!("no thread for a replica: {error}"),
        }
    }

    /// Waits for all of them, who find out by themselves that the server stops, until `gives_up` says so.
    pub(crate) fn end(&self, gives_up: &dyn Fn() -> bool) {
        let threads = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if crate::databases::has_ended(&thread, gives_up) && thread.join().is_err() {
                tracing::error!("the thread of a replica ended by a panic");
            }
        }
    }
}

fn run(shared: Arc<Shared>, stream: Stream, hello: Hello, has_room: bool) -> io::Result<()> {
    let mut wire = Wire::new(stream, Arc::clone(&shared), PATIENCE)?;
    let mut out = Vec::new();
    let outgoing = match has_room {
        true => Outgoing::new(&shared, hello).map_err(|error| error.to_string()),
        false => Err("there are too many".into()),
    };
    let mut outgoing = match outgoing {
        Ok(outgoing) => outgoing,
        Err(why) => {
            tracing::warn!(server_id = hello.server_id, "a replica is refused: {why}");
            put_refused(&mut out);
            return wire.send(&out);
        }
    };
    let own = shared.options.replication.server_id;
    drop(shared);
    tracing::info!(server_id = hello.server_id, from = hello.timestamp, "a replica follows");
    if hello.server_id == own && !hello.wants_only {
        tracing::warn!(
            server_id = own,
            "a replica has this server's own id, so it is sent nothing that is born here: each needs one of its own"
        );
    }
    put_accepted(&mut out);
    wire.send(&out)?;
    while wire.goes_on() {
        let before = outgoing.begin_round().map_err(io::Error::other)?;
        loop {
            out.clear();
            let goes_on = outgoing.take(&mut out).map_err(io::Error::other)?;
            if !goes_on {
                break;
            }
            wire.send(&out)?;
        }
        out.clear();
        put_caught_up(outgoing.last(before), &mut out);
        wire.send(&out)?;
        if wire.receive()? != ACKNOWLEDGED {
            return Err(io::Error::other("it does not speak the protocol"));
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}
