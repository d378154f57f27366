//! Serves the replicas that follow this server. Each replica has a thread, to which its worker
//! passes the connection.

use super::connected_replica::ConnectedReplica;
use super::native;
use super::outgoing_changes::OutgoingChanges;
use super::replica_request::ReplicaRequest;
use super::replica_stream::ReplicaStream;
use crate::shared::SharedState;
use crate::transport::listener::ClientStream;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use todana::Clock;
use todana_protocol::kyoto::replication::put_caught_up;
use todana_protocol::replication::ReplicaHello;
use todana_protocol::tyrant::replication::put_idle;

/// The maximum number of replicas that may follow at one time.
const REPLICAS_MAX: usize = 16;
/// The maximum number of threads for connections of replicas, of which all above `REPLICAS_MAX` are
/// refused with the reason. Further connections are closed.
const THREADS_MAX: usize = 2 * REPLICAS_MAX;
/// The time within which a replica must read what it was sent, and must acknowledge a round.
const REPLY_TIME_MAX: Duration = Duration::from_secs(30);
/// The interval at which a position is sent to a replica for which there are no new changes.
const INTERVAL: Duration = Duration::from_millis(100);
/// The interval at which an idle replica of Tokyo Tyrant's protocol is sent a byte.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// The byte with which a replica acknowledges a complete round.
const ACKNOWLEDGED: u8 = 0xB1;

/// The first message of a replica.
pub(crate) enum ReplicaGreeting {
    /// A request in Kyoto Tycoon's or Tokyo Tyrant's protocol.
    Stamped(ReplicaRequest),
    /// The greeting of Todana's own protocol.
    Native(ReplicaHello),
}

/// The replicas that follow this server.
#[derive(Default)]
pub(crate) struct ReplicaTable {
    served: Mutex<Vec<(JoinHandle<()>, Arc<ConnectedReplica>)>>,
    /// The number of records that were sent without their client flags since the start.
    flags_lost: AtomicU64,
}

impl ReplicaTable {
    fn served(&self) -> MutexGuard<'_, Vec<(JoinHandle<()>, Arc<ConnectedReplica>)>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread that serves this replica. Refuses the replica if there are too many, and
    /// closes its connection if many are being refused already.
    pub(crate) fn start(
        &self,
        shared: &Arc<SharedState>,
        stream: ClientStream,
        address: String,
        greeting: ReplicaGreeting,
    ) {
        let mut served = self.served();
        served.retain(|(thread, _)| !thread.is_finished());
        if served.len() >= THREADS_MAX {
            tracing::warn!("replica: {address} is disconnected: too many replicas");
            return;
        }
        let has_room = served.len() < REPLICAS_MAX;
        let shared = Arc::clone(shared);
        let replica = Arc::new(match &greeting {
            ReplicaGreeting::Stamped(request) => {
                ConnectedReplica::new(request, address, shared.clock.now().0)
            }
            ReplicaGreeting::Native(hello) => ConnectedReplica::native(hello, address),
        });
        let its_own = Arc::clone(&replica);
        let server_id = replica.server_id;
        let thread = std::thread::Builder::new().name("replica".into()).spawn(move || {
            let outcome = ReplicaStream::new(stream, Arc::clone(&shared), REPLY_TIME_MAX);
            let outcome = outcome.and_then(|stream| match greeting {
                ReplicaGreeting::Stamped(request) => run(shared, stream, request, has_room, &its_own),
                ReplicaGreeting::Native(hello) => native::serve(&shared, stream, &hello, has_room, &its_own),
            });
            match outcome {
                Ok(()) => {}
                Err(error) => tracing::info!(server_id, "replica: disconnected: {error}"),
            }
            if its_own.values_lost() > 0 {
                tracing::warn!(
                    server_id,
                    records = its_own.values_lost(),
                    "replica: was sent records with only the first of several values before it disconnected"
                );
            }
            if its_own.flags_lost() > 0 {
                tracing::warn!(
                    server_id,
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

    /// Waits for the threads of all replicas to end, which they do by themselves when the server
    /// stops. Gives up once `gives_up` returns true.
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
    shared: Arc<SharedState>,
    mut stream_out: ReplicaStream,
    request: ReplicaRequest,
    has_room: bool,
    replica: &ConnectedReplica,
) -> io::Result<()> {
    let mut out = Vec::new();
    let (server_id, own) = (request.server_id(), shared.options.databases.replication.server_id);
    let outgoing = match has_room {
        true => OutgoingChanges::new(&shared, request).map_err(|error| error.to_string()),
        false => Err("too many replicas".into()),
    };
    let mut outgoing = match outgoing {
        Ok(outgoing) => outgoing,
        Err(why) => {
            tracing::warn!(server_id, "replica: refused: {why}");
            request.put_refused(own, &mut out);
            return stream_out.send(&out);
        }
    };
    tracing::info!(server_id, from = request.position(), "replica: connected");
    if request.conflicts_with(own) {
        tracing::warn!(
            server_id = own,
            "replica: it has this server's own ID and so receives no changes of this server's clients; give each server its own ID"
        );
    }
    request.put_accepted(own, &mut out);
    stream_out.send(&out)?;
    replica.accept();
    let mut idle_since = Instant::now();
    while stream_out.is_running() {
        let began_at = Instant::now();
        let before = outgoing.begin_round().map_err(io::Error::other)?;
        loop {
            out.clear();
            let may_continue = outgoing.take(&mut out).map_err(io::Error::other)?;
            let lost = outgoing.take_lost();
            shared.replicas.flags_lost.fetch_add(lost.flags, Ordering::Relaxed);
            if replica.count_lost_values(lost.values) {
                tracing::warn!(
                    server_id,
                    "replica: receives only the first of several values of a key, because it does not know lists of \
                     values"
                );
            }
            if replica.count_lost_flags(lost.flags) {
                tracing::warn!(
                    server_id,
                    "replica: receives records without their client flags, which the protocol does not carry; \
                     clients that keep the types of values in flags read other types there"
                );
            }
            if !may_continue {
                break;
            }
            stream_out.send(&out)?;
            idle_since = Instant::now();
        }
        out.clear();
        let position = outgoing.end_round(before, &mut out);
        match request {
            ReplicaRequest::Kyoto(_) => {
                put_caught_up(position, &mut out);
                stream_out.send(&out)?;
                if stream_out.receive()? != ACKNOWLEDGED {
                    return Err(io::Error::other("invalid acknowledgement"));
                }
            }
            ReplicaRequest::Tyrant { .. } => {
                if idle_since.elapsed() >= IDLE_INTERVAL {
                    put_idle(&mut out);
                    idle_since = Instant::now();
                }
                stream_out.send(&out)?;
            }
        }
        replica.note_complete_round(position, began_at);
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}
