//! The session of a client of the proxy.
//!
//! ```text
//! proxy_session    decodes requests, sends them to servers, and returns replies in order
//! waiting_request  a request whose reply is not complete
//! key_lines        a line with several keys, whose values come from several servers
//! loss_reply       the reply in place of one that does not come
//! ```
//!
//! Requests to different servers run at the same time. Replies leave in the order of the requests.

mod key_lines;
mod loss_reply;
mod proxy_session;
mod waiting_request;

pub(crate) use proxy_session::{ProxySession, ProxySessionWorker};
