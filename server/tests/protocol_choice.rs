//! A server can be held to one dialect.

mod running;

use running::{Running, options};
use todana_server::{Choice, Options};

/// A binary noop, its reply, and a text command.
const NOOP: [u8; 24] = [0x80, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const DONE: [u8; 24] = [0x81, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn setting(server: &Running) -> String {
    let settings = server.connect().stats(" settings");
    settings.into_iter().find(|(name, _)| name == "binding_protocol").unwrap().1
}

#[test]
fn each_connection_chooses_unless_the_server_has() {
    let auto = Running::start(options());
    auto.connect().expect_version();
    let mut client = auto.connect();
    client.send(&NOOP);
    client.expect(&DONE);
    assert_eq!(setting(&auto), "auto-negotiate");

    let text = Running::start(Options { protocol: Choice::Text, ..options() });
    let mut client = text.connect();
    client.send(&[&NOOP[..], b"\r\nversion\r\n"].concat());
    // A noop has a line feed in it.
    client.expect(b"CLIENT_ERROR bad command line format\r\nERROR\r\nVERSION 1.6.45\r\n");
    assert_eq!(setting(&text), "ascii");

    let binary = Running::start(Options { protocol: Choice::Binary, ..options() });
    let mut client = binary.connect();
    client.send(b"version\r\n");
    assert_eq!(client.rest(), b"", "closed without a word");
    let mut client = binary.connect();
    client.send(&NOOP);
    client.expect(&DONE);
}
