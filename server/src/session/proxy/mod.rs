//! The session of a client of the proxy.
//!
//! ```text
//! proxy_session    decodes requests, and returns replies in their order
//! request_routing  decides where requests go, and sends them
//! request_starts   the times at which requests began
//! waiting_request  a request whose reply is not complete
//! key_lines        a line with several keys, whose values come from several servers
//! loss_reply       the reply in place of one that does not come
//! client_login     the login of a client
//! client_upload    a long value that is passed on as it arrives
//! moved_read       a read with a very long value
//! client_request   the bytes of a request that is answered later
//! route_plan       which servers a routed request goes to, and which answer counts
//! route_run        sends the requests of a plan in the dialects of the servers
//! statistics       statistics and the version;  moxi_statistics: `stats proxy` with moxi's names
//! server_poll      questions to all servers about themselves, with one reply
//! record_runs      operations of clients of other protocols
//! record_run       one of them: an operation becomes one request, or reads and conditional writes
//! ```
//!
//! Requests to different servers run at the same time. Replies leave in the order of the requests.

mod client_login;
mod client_request;
mod client_upload;
mod key_lines;
mod loss_reply;
mod moved_read;
mod moxi_statistics;
mod proxy_session;
mod record_run;
mod record_runs;
mod request_routing;
mod request_starts;
mod route_plan;
mod route_run;
mod server_poll;
mod statistics;
mod waiting_request;

pub(crate) use proxy_session::{ProxySession, ProxySessionWorker};
pub(crate) use record_runs::RecordRuns;
