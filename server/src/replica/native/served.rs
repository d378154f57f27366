//! The thread that serves a replica in Todana's own protocol.

use super::master_side::{HeartbeatTimes, LoggedDatabase, MasterSide};
use super::promotion;
use crate::replica::connected_replica::ConnectedReplica;
use crate::replica::options::MasterProtocol;
use crate::replica::replica_stream::ReplicaStream;
use crate::shared::SharedState;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana::Clock;
use todana::update_log::Epoch;
use todana_protocol::replication::{
    DatabaseRequest, FrameDecoder, MasterWelcome, ReplicaHello, ReplicaMessage,
};

/// The interval between heartbeats without changes.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// The replica is disconnected if it states no position for this time.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// The pause between two looks at the logs. Each look with new changes syncs them.
const PAUSE: Duration = Duration::from_millis(10);
/// The pause if replies wait for replicas.
const ACK_PAUSE: Duration = Duration::from_millis(1);

/// Serves a replica until it or the server ends.
pub(in crate::replica) fn serve(
    shared: &Arc<SharedState>,
    mut stream: ReplicaStream,
    hello: &ReplicaHello,
    has_room: bool,
    replica: &ConnectedReplica,
) -> io::Result<()> {
    let server_id = hello.server_id;
    let find = |number: u16| match has_room {
        true => logged_database(shared, number),
        false => Err("too many replicas".into()),
    };
    let mut out = Vec::new();
    let own = shared.options.databases.replication.server_id;
    let options = &shared.options.databases.replication;
    let follows = options.master.is_some() && options.protocol == MasterProtocol::Native;
    let epoch = promotion::server_epoch(shared);
    let is_fenced = hello.epoch > epoch.0 && (!follows || promotion::is_promoted(shared));
    if is_fenced && is_related(shared, hello) {
        promotion::supersede(shared, Epoch(hello.epoch)).map_err(io::Error::other)?;
    }
    let accepted = match promotion::superseded_by(shared) {
        Some(_) if hello.epoch <= epoch.0 && !follows => {
            let why = "another server has become the master";
            MasterWelcome::put_refusal(why, &mut out);
            Err(why.into())
        }
        _ => MasterSide::accept(hello, own, epoch.0, &find, &mut out),
    };
    stream.send(&out)?;
    if hello.databases.is_empty() {
        // A promoted server has stated its epoch.
        return Ok(());
    }
    let mut side = match accepted {
        Ok(side) => side,
        Err(why) => {
            tracing::warn!(server_id, "replica: refused: {why}");
            return Ok(());
        }
    };
    replica.note_lag(side.lag_bytes(), Instant::now());
    replica.accept();
    match side.copies() {
        0 => tracing::info!(server_id, "replica: connected; continues in the log"),
        copies => tracing::info!(server_id, copies, "replica: connected; receives all records"),
    }
    let numbers: Vec<u16> = side.databases.iter().map(|sent| sent.number).collect();
    let pause = if shared.acks.is_needed() { ACK_PAUSE } else { PAUSE };
    let age_us = || match shared.master_link.follows_originals() {
        true => u64::MAX,
        false => shared.master_link.followed.age_us(&numbers, server_id),
    };
    let (mut input, mut statements) = (Vec::new(), ReplicaStatements::default());
    let (mut spoke_at, mut heard_at) = (None::<Instant>, Instant::now());
    while stream.is_running() {
        let began_at = Instant::now();
        let removal_s = side.removal_s(shared.clock.now());
        let mut times = HeartbeatTimes { time_ms: unix_ms(), removal_s, age_us: age_us() };
        let is_due = side.send_due(&mut |bytes| {
            stream.send(bytes)?;
            stream.receive_within(Duration::ZERO, &mut input)?;
            statements.push(&mut input)
        });
        let is_due = is_due.map_err(io::Error::other)?;
        if age_us() == u64::MAX {
            // A full copy of this server's own records may have begun among the changes.
            times.age_us = u64::MAX;
        }
        if is_due || spoke_at.is_none_or(|at| at.elapsed() >= HEARTBEAT_INTERVAL) {
            out.clear();
            side.put_heartbeat(&times, &mut out);
            stream.send(&out)?;
            spoke_at = Some(began_at);
        }
        stream.receive_within(pause, &mut input)?;
        statements.push(&mut input)?;
        if let Some(statement) = statements.take() {
            side.note(statement).map_err(|_| malformed())?;
            heard_at = Instant::now();
            let position = side.databases.first().map_or(0, |sent| sent.applied);
            replica.note_position(position);
            let mut has_more = false;
            for sent in &side.databases {
                has_more |= shared.acks.note(server_id, usize::from(sent.number), sent.applied);
            }
            if has_more {
                shared.wake_queues.log_advanced();
            }
        }
        replica.note_lag(side.lag_bytes(), Instant::now());
        if heard_at.elapsed() >= SILENCE_MAX {
            return Err(io::Error::other("no message for 30 seconds"));
        }
        if let Some(left) = pause.checked_sub(began_at.elapsed()).filter(|_| is_due) {
            std::thread::sleep(left);
        }
    }
    Ok(())
}

/// Reads the messages of a replica, and keeps the last statement of its positions.
#[derive(Default)]
struct ReplicaStatements {
    frames: FrameDecoder,
    last: Option<ReplicaMessage>,
}

impl ReplicaStatements {
    /// Reads bytes, and removes them.
    fn push(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        self.frames.push(bytes);
        bytes.clear();
        while let Some(content) = self.frames.next_content().map_err(|_| malformed())? {
            self.last = Some(ReplicaMessage::read(content).map_err(|_| malformed())?);
        }
        Ok(())
    }

    fn take(&mut self) -> Option<ReplicaMessage> {
        self.last.take()
    }
}

/// Returns true if the epoch of a greeting may be one of this server's own records. That of another
/// cluster, whose replica has been given a wrong address, must not end the changes here. A promoted
/// server states its epoch without databases to the master of its options, even to one that has
/// lost its records, and so its log.
fn is_related(shared: &SharedState, hello: &ReplicaHello) -> bool {
    let shares_log = |request: &DatabaseRequest| {
        let own = logged_database(shared, request.number).ok();
        own.is_some_and(|own| own.shares_log(&request.path))
    };
    hello.databases.is_empty() || hello.databases.iter().any(shares_log)
}

fn malformed() -> io::Error {
    io::Error::other("a message is malformed")
}

fn logged_database(shared: &SharedState, number: u16) -> Result<LoggedDatabase, String> {
    let index = usize::from(number);
    let Some(served) = shared.databases.get(index) else {
        return Err(format!("there is no database {number}"));
    };
    let directory = shared.persistence.exports.directory(index).filter(|_| served.database.log().is_some());
    let Some(directory) = directory else {
        return Err(format!(
            "database {number} has no update log; databases in memory have one with --data-dir, and trees always"
        ));
    };
    Ok(LoggedDatabase { database: Arc::clone(&served.database), directory })
}

/// Returns the time in Unix milliseconds.
pub(super) fn unix_ms() -> u64 {
    crate::process::unix_time().as_millis() as u64
}
