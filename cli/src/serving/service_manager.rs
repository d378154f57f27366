//! Reports the state of a server to the service manager that started it, by systemd's protocol
//! (`sd_notify`): datagrams of `NAME=VALUE` lines to the socket that `NOTIFY_SOCKET` names.
//!
//! Nothing is sent if the variable is not set, or if nobody listens at the socket.

use std::ffi::OsStr;
use std::io;
#[cfg(target_os = "linux")]
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The server has loaded its data and serves clients.
pub(super) const READY: &str = "READY=1";
/// The server no longer serves clients, and completes its files.
pub(super) const STOPPING: &str = "STOPPING=1";

/// Keeps the service manager from killing the server for this time.
pub(super) fn extend_stop(time: Duration) {
    notify(&format!("EXTEND_TIMEOUT_USEC={}", time.as_micros()));
}

pub(super) fn notify(state: &str) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&socket, state)
    {
        tracing::warn!(%error, "NOTIFY_SOCKET: cannot be reached");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        #[cfg(target_os = "linux")]
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_arrives_at_both_kinds_of_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("todana-test-{}", std::process::id());
        let at_path = UnixDatagram::bind(&path).unwrap();
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        let at_name = UnixDatagram::bind_addr(&abstract_name).unwrap();
        let sockets = [(at_path, path.into_os_string()), (at_name, format!("@{name}").into())];
        for (receiver, socket) in sockets {
            send(&socket, READY).unwrap();
            let mut received = [0; 32];
            let length = receiver.recv(&mut received).unwrap();
            assert_eq!(&received[..length], b"READY=1");
        }
        assert!(send(OsStr::new("/nowhere"), READY).is_err());
    }
}
