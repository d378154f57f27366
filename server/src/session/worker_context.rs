//! Defines the state that all sessions of one worker share, in every dialect.

use super::wake::WaitingConnections;
use crate::execution::AnyExecutor;
use crate::observation::spans::open_spans::OpenSpans;
use crate::proxy::ProxyWorker;
use crate::shared::SharedState;
use std::sync::Arc;

/// The state that the sessions of one worker share.
pub(crate) struct WorkerContext {
    pub(crate) shared: Arc<SharedState>,
    pub(crate) worker: usize,
    pub(crate) executor: AnyExecutor,
    /// The connections to other servers, if this server is a proxy.
    pub(crate) proxy: Option<ProxyWorker>,
    /// The connections that wait with a ticket.
    pub(crate) waits: WaitingConnections,
    /// The spans of requests, if requests are traced.
    pub(crate) spans: Option<OpenSpans>,
    /// The descriptor of the connection that is being served.
    pub(crate) descriptor: i32,
    /// True if requests are logged. The setting is read once in each turn.
    pub(crate) logs_requests: bool,
}

impl WorkerContext {
    pub(crate) fn new(shared: &Arc<SharedState>, worker: usize) -> WorkerContext {
        WorkerContext {
            executor: AnyExecutor::new(shared, worker),
            proxy: None,
            waits: WaitingConnections::new(Arc::clone(&shared.wake_queues), worker),
            spans: None,
            shared: Arc::clone(shared),
            worker,
            descriptor: -1,
            logs_requests: false,
        }
    }

    /// Begins the turn of a connection to the listener with this number.
    pub(crate) fn serve(&mut self, connection: usize, listener: usize, descriptor: i32) {
        if let AnyExecutor::Routed(executor) = &mut self.executor {
            executor.serve(connection, listener);
        }
        self.waits.connection = connection;
        self.descriptor = descriptor;
        self.logs_requests = self.shared.observation.logs_requests();
    }
}
