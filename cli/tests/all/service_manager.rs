//! Tests the states that a server sends to its service manager (`NOTIFY_SOCKET`).

use crate::running::{RunningServer, WAIT_MAX, stop, todana};
use std::os::unix::net::UnixDatagram;

/// systemd once killed a server whose stop took longer than `TimeoutStopSec`, although its disk
/// made progress.
#[test]
fn stop_asks_for_more_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let receive = || {
        let mut bytes = [0; 64];
        let len = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    };
    let mut command = todana();
    command.env("NOTIFY_SOCKET", &path).current_dir(folder.path());
    let server = RunningServer::start_as(command, &["./x.tree"]);
    assert_eq!(receive(), "READY=1");
    assert!(server.run(&["set", "a", "b"]).status.success());
    stop(server);
    assert_eq!(receive(), "STOPPING=1");
    // Each step of the stop begins with such a message.
    for _ in 0..5 {
        assert_eq!(receive(), "EXTEND_TIMEOUT_USEC=60000000");
    }
}
