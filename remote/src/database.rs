//! The handle of a database on a cluster, which any thread can use.

use crate::cluster::{Cluster, NewRow};
use crate::key_queue::KeyQueues;
use crate::near_cache::NearCache;
use crate::outcome::RequestFailure;
use crate::record_change::{execute_on_record, version_of};
use crate::row::{RowLifetime, StoredRow};
use crate::scan::{HashScan, OrderedWalk};
use crate::token::RowToken;
use crate::turn_queue::TurnQueue;
use std::ops::{Bound, ControlFlow};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use todana::{ClusterName, DatabaseName, DetachedChange, Records, ScanDirection, execute_detached};
use todana_core::{
    Error, ErrorKind, Get, Operation, OwnedOperation, OwnedReply, Record, RefusalReason, Reply, Result,
    ScanPosition, StaleMarks, Store, StoreMode, StoredReply, Ttl, Visitor,
};
use tokio::runtime::{Builder, Runtime};

/// The longest key of Cassandra.
const KEY_LEN_MAX: usize = 65_535;
/// The most bytes of keys and values that wait for the cluster at the same time. A single operation
/// may be longer.
const BYTES_MAX: usize = 64 << 20;

/// The number of operations that may be in the server, executed or waiting, for each that may be
/// executed.
const OPERATIONS_PER_TURN: usize = 16;

/// Receives the reply to an operation, on a thread of the driver. It must be brief.
pub type ReplyCallback = Box<dyn FnOnce(OwnedReply) + Send>;

/// A database on a cluster of Apache Cassandra or ScyllaDB.
///
/// [`submit`](Self::submit) never waits. The methods of [`Records`] wait for the cluster, so they
/// are for threads that serve no connections.
pub struct RemoteDatabase {
    shared: Arc<RemoteShared>,
    /// Ended in the background, because the last owner may be one of its own threads.
    runtime: Option<Runtime>,
}

struct RemoteShared {
    cluster: Arc<Cluster>,
    is_strict: bool,
    turns: TurnQueue<QueuedOperation>,
    in_flight_max: usize,
    in_flight: AtomicUsize,
    bytes: AtomicUsize,
    queues: KeyQueues<QueuedOperation>,
    cache: Option<NearCache>,
    /// The replies that are passed on together.
    replies: Mutex<Vec<(ReplyCallback, OwnedReply)>>,
}

/// An operation that waits for its turn or its reply. Dropping it ends its share of the limits.
struct QueuedOperation {
    shared: Arc<RemoteShared>,
    operation: OwnedOperation,
    len: usize,
    done: Option<ReplyCallback>,
}

impl QueuedOperation {
    fn finish(mut self, reply: OwnedReply) {
        if let Some(done) = self.done.take() {
            self.shared.reply(done, reply);
        }
    }

    fn refuse(mut self, refusal: RefusalReason) {
        if let Some(done) = self.done.take() {
            done(OwnedReply::new(Reply::Refused(refusal)));
        }
    }
}

/// Passes on the replies of a database when it is dropped, also if the runtime ends before.
struct ReplyBatch(Arc<RemoteShared>);

impl Drop for ReplyBatch {
    fn drop(&mut self) {
        let mut replies = self.0.replies.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = std::mem::take(&mut *replies);
        drop(replies);
        taken.into_iter().for_each(|(done, reply)| done(reply));
    }
}

impl Drop for QueuedOperation {
    fn drop(&mut self) {
        self.shared.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.shared.bytes.fetch_sub(self.len, Ordering::Relaxed);
        if let Some(done) = self.done.take() {
            // The runtime has ended before the operation.
            done(OwnedReply::new(Reply::Refused(RefusalReason::OutcomeUnknown)));
        }
    }
}

impl Drop for RemoteDatabase {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
            // The operations own a reference to their queue.
            drop(self.shared.turns.take_all());
        }
    }
}

/// Returns the number of bytes that an operation keeps.
fn len_of(operation: &Operation<'_>) -> usize {
    let value_len = match operation {
        Operation::Store(store) => store.value.len(),
        Operation::Modify(modify) => match modify.change {
            todana_core::ValueChange::Append(piece) => piece.len(),
            todana_core::ValueChange::Swap { old, new } => {
                old.map_or(0, <[u8]>::len) + new.map_or(0, <[u8]>::len)
            }
            _ => 0,
        },
        _ => 0,
    };
    operation.key().map_or(0, <[u8]>::len) + value_len
}

/// Returns true if the operation only reads, unless the record has marks.
fn is_read(operation: &Operation<'_>) -> bool {
    match operation {
        Operation::Get(get) => get.touch.is_none() && get.vivify.is_none(),
        Operation::Inspect(_) => true,
        _ => false,
    }
}

/// Returns the store if it is one that overwrites any record.
fn overwriting_store<'o>(operation: &Operation<'o>) -> Option<Store<'o>> {
    match operation {
        Operation::Store(store) if store.mode == StoreMode::Set && store.compare.is_none() => Some(*store),
        _ => None,
    }
}

impl RemoteDatabase {
    /// Connects to the cluster, and creates the tables if they are missing. Fails with `Invalid` if
    /// the name is not that of a database on a cluster, or if something is missing on the cluster
    /// and cannot be created; the error says what. Fails with `Unavailable` if the cluster cannot
    /// be reached.
    pub fn open(name: &DatabaseName) -> Result<RemoteDatabase> {
        let problem = |error: Error| Error::new(error.kind(), format!("database \"{name}\": {error}"));
        let cluster: &ClusterName = name
            .cluster
            .as_deref()
            .ok_or_else(|| problem(Error::new(ErrorKind::Invalid, "is not on a cluster")))?;
        let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(4));
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("cassandra")
            .enable_all()
            .build()
            .map_err(|error| problem(Error::new(ErrorKind::Unavailable, error.to_string())))?;
        let cache = match cluster.cache_bytes {
            Some(bytes) => Some(NearCache::new(bytes, cluster.cache_ttl_s).map_err(problem)?),
            None => None,
        };
        let connected = wait(&runtime, Cluster::connect(cluster)).map_err(problem)?;
        let shared = RemoteShared {
            cluster: Arc::new(connected),
            is_strict: cluster.is_strict,
            turns: TurnQueue::new(cluster.in_flight_max as usize),
            in_flight_max: cluster.in_flight_max as usize * OPERATIONS_PER_TURN,
            in_flight: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            queues: KeyQueues::new(),
            cache,
            replies: Mutex::default(),
        };
        Ok(RemoteDatabase { shared: Arc::new(shared), runtime: Some(runtime) })
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("the runtime lives as long as the handle")
    }

    /// Passes the reply to `reply` if the near cache has it. Returns false otherwise.
    pub fn reply_from_cache(&self, operation: &Operation<'_>, reply: &mut dyn FnMut(Reply<'_>)) -> bool {
        let (Some(cache), Operation::Get(get)) = (&self.shared.cache, operation) else { return false };
        if !is_cacheable(get) {
            return false;
        }
        let now = self.shared.cluster.now();
        let Some(row) = cache.get(get.key, now) else { return false };
        let (owned, change) = execute_detached(operation, Some(row.record()), now, 0);
        let is_whole = change == DetachedChange::Keep;
        if is_whole {
            reply(owned.borrowed());
        }
        is_whole
    }

    /// Executes an operation, and passes its reply to `done`. If too many operations wait for the
    /// cluster, the reply is an error at once.
    pub fn submit(&self, operation: OwnedOperation, done: ReplyCallback) {
        let shared = &self.shared;
        let borrowed = operation.borrowed();
        let len = len_of(&borrowed);
        let (before, bytes) = (
            shared.in_flight.fetch_add(1, Ordering::Relaxed),
            shared.bytes.fetch_add(len, Ordering::Relaxed),
        );
        let queued = QueuedOperation { shared: Arc::clone(shared), operation, len, done: Some(done) };
        let is_full = before >= shared.in_flight_max || bytes > 0 && bytes + len > BYTES_MAX;
        let refusal = match queued.operation.borrowed().key() {
            _ if is_full => Some(RefusalReason::Overloaded),
            Some(key) if key.is_empty() || key.len() > KEY_LEN_MAX => Some(RefusalReason::TooLarge),
            _ => None,
        };
        match refusal {
            Some(refusal) => queued.refuse(refusal),
            None if shared.turns.add(queued) => drop(self.runtime().spawn(take_turns(Arc::clone(shared)))),
            None => {}
        }
    }
}

fn is_cacheable(get: &Get<'_>) -> bool {
    get.touch.is_none()
        && get.vivify.is_none()
        && get.recache_below_s.is_none()
        && !get.needs.version
        && !get.needs.access
}

/// Executes one operation after the other. A task that continues costs much less than a new one,
/// because the futures of the driver are large.
async fn take_turns(shared: Arc<RemoteShared>) {
    while let Some(operation) = shared.turns.next().await {
        operation.execute(&shared).await;
    }
}

impl QueuedOperation {
    async fn execute(self, shared: &Arc<RemoteShared>) {
        let operation = self.operation.borrowed();
        if is_read(&operation) {
            if let Some(reply) = shared.read(&operation).await {
                return self.finish(reply);
            }
        } else if let Operation::Flush { at } = operation {
            let reply = shared.flush(at).await;
            return self.finish(OwnedReply::new(reply));
        } else if operation.key().is_none() {
            return self.finish(OwnedReply::new(Reply::Done));
        } else if !shared.is_strict
            && let Some(store) = overwriting_store(&operation)
            && !shared.queues.is_busy(store.key)
        {
            let reply = shared.overwrite(&store).await;
            return self.finish(OwnedReply::new(reply));
        }
        // The futures of conditional writes are large. The tasks of other operations stay small.
        Box::pin(self.execute_in_order(shared)).await;
    }

    /// Executes an operation after those that wait for the same record.
    async fn execute_in_order(self, shared: &RemoteShared) {
        let key = self.operation.borrowed().key().unwrap_or_default().to_vec();
        let Some((first, mut turn)) = shared.queues.enter(&key, self) else { return };
        let mut batch = vec![first];
        while !batch.is_empty() {
            let operations: Vec<&OwnedOperation> = batch.iter().map(|one| &one.operation).collect();
            shared.note_write(&key);
            let replies = execute_on_record(&shared.cluster, &key, &operations).await;
            shared.note_write(&key);
            for (queued, reply) in batch.into_iter().zip(replies) {
                queued.finish(reply);
            }
            batch = turn.next();
        }
    }
}

impl RemoteShared {
    /// Passes a reply on, together with those of the other tasks that can continue now. The thread
    /// that takes the replies is then woken once for all of them.
    fn reply(self: &Arc<Self>, done: ReplyCallback, reply: OwnedReply) {
        let mut replies = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        replies.push((done, reply));
        if replies.len() > 1 {
            return;
        }
        drop(replies);
        let batch = ReplyBatch(Arc::clone(self));
        tokio::spawn(async move {
            tokio::task::yield_now().await;
            drop(batch);
        });
    }

    fn note_write(&self, key: &[u8]) {
        if let Some(cache) = &self.cache {
            cache.note_write(key);
        }
    }

    /// Executes a read. Returns `None` if it changes the record, for example because its client
    /// wins the right to recompute a stale value.
    async fn read(&self, operation: &Operation<'_>) -> Option<OwnedReply> {
        let key = operation.key().unwrap_or_default();
        let began = self.cache.as_ref().map(|cache| cache.begin_read(key, self.cluster.now()));
        let row = match self.cluster.read(key, false).await {
            Ok(row) => row,
            Err(failure) => return Some(OwnedReply::new(Reply::Refused(failure.refusal()))),
        };
        let now = self.cluster.now();
        if let (Some(cache), Some(began), Some(row)) = (&self.cache, began, &row) {
            cache.put(key, row, began);
        }
        let (reply, change) = execute_detached(operation, row.as_ref().map(StoredRow::record), now, 0);
        (change == DetachedChange::Keep).then_some(reply)
    }

    /// Stores a record in place of any other, without Paxos.
    async fn overwrite(&self, store: &Store<'_>) -> Reply<'static> {
        let asked = version_of(&self.cluster, store.version)
            .and_then(|version| Ok((version, RowLifetime::asked(store.ttl, self.cluster.now())?)));
        let (version, lifetime) = match asked {
            Ok(asked) => asked,
            Err(refusal) => return Reply::Refused(refusal),
        };
        let token = RowToken::new(version, 0, StaleMarks::default());
        let row = NewRow { value: store.value, flags: store.flags, token, lifetime };
        self.note_write(store.key);
        let written = self.cluster.write(store.key, &row).await;
        self.note_write(store.key);
        match written {
            Ok(()) => Reply::Stored(StoredReply { version, value_len: store.value.len() as u64 }),
            Err(failure) => Reply::Refused(failure.refusal()),
        }
    }

    async fn flush(&self, at: Ttl) -> Reply<'static> {
        if !matches!(at, Ttl::Never | Ttl::Expired) {
            return Reply::Refused(RefusalReason::NoPlans);
        }
        let removed = self.cluster.truncate().await;
        if let Some(cache) = &self.cache {
            cache.clear();
        }
        match removed {
            Ok(()) => Reply::Done,
            Err(failure) => Reply::Refused(failure.refusal()),
        }
    }
}

fn error_of(failure: RequestFailure) -> Error {
    let (kind, message) = match failure {
        RequestFailure::NotExecuted => (ErrorKind::Unavailable, "the cluster has not executed the request"),
        RequestFailure::Unknown => {
            (ErrorKind::Unavailable, "the cluster has not answered in time; a write may have been executed")
        }
        RequestFailure::Refused => {
            (ErrorKind::Invalid, "the cluster refuses the key or the value; is it too long?")
        }
    };
    Error::new(kind, message)
}

impl Records for RemoteDatabase {
    fn execute(&self, command: &Operation<'_>, reply: &mut dyn FnMut(Reply<'_>)) -> Result<()> {
        if self.reply_from_cache(command, reply) {
            return Ok(());
        }
        let (sender, receiver) = channel();
        self.submit(OwnedOperation::new(command), Box::new(move |owned| drop(sender.send(owned))));
        let owned = receiver.recv().map_err(|_| error_of(RequestFailure::Unknown))?;
        reply(owned.borrowed());
        Ok(())
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        self.shared.note_write(key);
        let visited = self.wait(crate::record_change::visit(&self.shared.cluster, key, visitor));
        self.shared.note_write(key);
        visited.map_err(error_of)
    }

    fn is_ordered(&self) -> bool {
        self.shared.cluster.buckets.is_some()
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        let after = match &from {
            Some(ScanPosition::Key(key)) => Some(&key[..]),
            _ => None,
        };
        let mut last = None;
        let mut see = |key: &[u8], row: &StoredRow| {
            last = Some(ScanPosition::Key(key.into()));
            see(key, row.record())
        };
        let has_ended = match self.is_ordered() {
            true => {
                self.walk_rows(ScanDirection::Up, after.map_or(Bound::Unbounded, Bound::Excluded), &mut see)?
            }
            false => self.scan_rows(after, &mut see)?,
        };
        Ok(last.filter(|_| !has_ended))
    }

    fn walk(
        &self,
        direction: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        if !self.is_ordered() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the keys have no order; add #ordered=BUCKETS to the name of a new database",
            ));
        }
        self.walk_rows(direction, from, &mut |key, row| see(key, row.record())).map(drop)
    }
}

/// Waits for a future. It is boxed, because the code of an unboxed one is in the executable once
/// for each kind of runtime.
fn wait<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    let boxed: Pin<Box<dyn Future<Output = T> + '_>> = Box::pin(future);
    runtime.block_on(boxed)
}

/// Receives the rows of a scan.
type SeeRow<'s> = &'s mut dyn FnMut(&[u8], &StoredRow) -> ControlFlow<()>;

impl RemoteDatabase {
    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        wait(self.runtime(), future)
    }

    /// Passes the rows after a key. Returns true at the end, false after `see` breaks.
    fn scan_rows(&self, after: Option<&[u8]>, see: SeeRow<'_>) -> Result<bool> {
        let mut scan = HashScan::new(&self.shared.cluster, after);
        while let Some(page) = self.wait(scan.next_page())? {
            for (key, row) in &page {
                if see(key, row).is_break() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Passes the rows from a key on, in order. Returns true at the end, false after `see` breaks.
    fn walk_rows(&self, direction: ScanDirection, from: Bound<&[u8]>, see: SeeRow<'_>) -> Result<bool> {
        let mut walk = OrderedWalk::new(&self.shared.cluster, direction, from);
        while let Some((key, row)) = self.wait(walk.next())? {
            if see(&key, &row).is_break() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
