//! The replicas that follow this server. Each has a thread, to which its worker has passed the
//! connection.

use super::connected_replica::ConnectedReplica;
use super::outgoing_changes::OutgoingChanges;
use super::replica_stream::ReplicaStream;
use crate::shared::Shared;
use crate::transport::listener::Stream;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use todana::Clock;
use todana_protocol::kyoto::binary::ReplicaRequest;
use todana_protocol::kyoto::replication::{put_accepted, put_caught_up, put_refused};

/// The number of replicas that may follow at once.
const REPLICAS_MAX: usize = 16;
/// How long a replica may take to read, or to acknowledge.
const REPLY_TIME_MAX: Duration = Duration::from_secs(30);
/// The interval at which a replica without new changes is sent its position.
const INTERVAL: Duration = Duration::from_millis(100);
/// The byte by which a replica acknowledges a complete round.
const ACKNOWLEDGED: u8 = 0xB1;

/// The replicas that follow this server.
#[derive(Default)]
pub(crate) struct ReplicaTable {
    served: Mutex<Vec<(JoinHandle<()>, Arc<ConnectedReplica>)>>,
    /// The records that were sent without their client flags since the start.
    flags_lost: AtomicU64,
}

impl ReplicaTable {
    fn served(&self) -> MutexGuard<'_, Vec<(JoinHandle<()>, Arc<ConnectedReplica>)>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a replica from now on. Refuses it if there are too many.
    pub(crate) fn start(&self, shared: &Arc<Shared>, stream: Stream, address: String, hello: ReplicaRequest) {
        let mut served = self.served();
        served.retain(|(thread, _)| !thread.is_finished());
        let has_room = served.len() < REPLICAS_MAX;
        let shared = Arc::clone(shared);
        let replica = Arc::new(ConnectedReplica::new(hello, address, shared.clock.now().0));
        let its_own = Arc::clone(&replica);
        let thread = std::thread::Builder::new().name("replica".into()).spawn(move || {
            match run(shared, stream, hello, has_room, &its_own) {
                Ok(()) => {}
                Err(error) => tracing::info!(server_id = hello.server_id, "replica: disconnected: {error}"),
            }
            if its_own.flags_lost() > 0 {
                tracing::warn!(
                    server_id = hello.server_id,
                    records = its_own.flags_lost(),
                    "replica: was sent records without their client flags before it disconnected"
                );
            }
        });
        match thread {
            Ok(thread) => served.push((thread, replica)),
            Err(error) => tracing::error!("replica: cannot start a thread: {error}"),
        }
    }

    /// Returns the replicas that follow now.
    pub(crate) fn connected(&self) -> Vec<Arc<ConnectedReplica>> {
        let served = self.served();
        let follows = served.iter().filter(|(thread, one)| !thread.is_finished() && one.has_been_accepted());
        follows.map(|(_, replica)| Arc::clone(replica)).collect()
    }

    /// Returns the number of records that were sent without their client flags since the start.
    pub(crate) fn flags_lost(&self) -> u64 {
        self.flags_lost.load(Ordering::Relaxed)
    }

    /// Waits for the threads of all replicas, which end by themselves when the server stops, until
    /// `gives_up` returns true.
    pub(crate) fn end(&self, gives_up: &dyn Fn() -> bool) {
        let served = std::mem::take(&mut *self.served());
        for (thread, _) in served {
            if crate::databases::has_ended(&thread, gives_up) && thread.join().is_err() {
                tracing::error!("replica: its thread panicked");
            }
        }
    }
}

fn run(
    shared: Arc<Shared>,
    stream: Stream,
    hello: ReplicaRequest,
    has_room: bool,
    replica: &ConnectedReplica,
) -> io::Result<()> {
    let mut stream_out = ReplicaStream::new(stream, Arc::clone(&shared), REPLY_TIME_MAX)?;
    let mut out = Vec::new();
    let outgoing = match has_room {
        true => OutgoingChanges::new(&shared, hello).map_err(|error| error.to_string()),
        false => Err("too many replicas".into()),
    };
    let mut outgoing = match outgoing {
        Ok(outgoing) => outgoing,
        Err(why) => {
            tracing::warn!(server_id = hello.server_id, "replica: refused: {why}");
            put_refused(&mut out);
            return stream_out.send(&out);
        }
    };
    let own = shared.options.databases.replication.server_id;
    tracing::info!(server_id = hello.server_id, from = hello.timestamp, "replica: connected");
    if hello.server_id == own && !hello.wants_only {
        tracing::warn!(
            server_id = own,
            "replica: it has this server's own ID and so receives no changes of this server's clients; give each server its own ID"
        );
    }
    put_accepted(&mut out);
    stream_out.send(&out)?;
    replica.accept();
    while stream_out.is_running() {
        let began_at = Instant::now();
        let before = outgoing.begin_round().map_err(io::Error::other)?;
        loop {
            out.clear();
            let goes_on = outgoing.take(&mut out).map_err(io::Error::other)?;
            let flags_lost = outgoing.take_flags_lost();
            shared.replicas.flags_lost.fetch_add(flags_lost, Ordering::Relaxed);
            if replica.count_lost_flags(flags_lost) {
                tracing::warn!(
                    server_id = hello.server_id,
                    "replica: receives records without their client flags, which the protocol does not carry; \
                     clients that keep the types of values in flags read other types there"
                );
            }
            if !goes_on {
                break;
            }
            stream_out.send(&out)?;
        }
        out.clear();
        let position = outgoing.last(before);
        put_caught_up(position, &mut out);
        stream_out.send(&out)?;
        if stream_out.receive()? != ACKNOWLEDGED {
            return Err(io::Error::other("invalid acknowledgement"));
        }
        replica.note_complete_round(position, began_at);
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}
