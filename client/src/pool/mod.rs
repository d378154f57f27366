//! Connections to servers that never block: for event loops, in which many requests are under way.
//!
//! ```text
//! server_socket      a TCP, TLS or Unix socket that connects in the background
//! server_connection  requests that wait for their replies, in order, and the buffers
//! server_login       the login on a new connection
//! reply_frame        the ends of replies
//! ```
//!
//! Invariant: each request has exactly one reply, and replies come in the order of the requests, so
//! a reply belongs to the oldest request without one. A packet also repeats the opaque of its
//! request.
//! Not here: the choice of the server (`ring`), and the decision what to do after a failure.

mod reply_frame;
mod server_connection;
mod server_login;
mod server_socket;

pub use reply_frame::{ReplyKind, ReplyPart};
pub use server_connection::{LossReason, LostRequest, ServerConnection};
pub use server_login::ServerLogin;
pub use server_socket::ServerSocket;
