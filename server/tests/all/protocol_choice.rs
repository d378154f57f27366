//! Tests servers that are restricted to one dialect.

use crate::running;

use running::{Running, options};
use todana_server::{AuthenticationMode, DialectChoice, ListenOptions, ProtocolOptions, ServerOptions};

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

    let text = Running::start(ServerOptions {
        protocols: ProtocolOptions { protocol: DialectChoice::Text, ..options().protocols },
        ..options()
    });
    let mut client = text.connect();
    client.send(&[&NOOP[..], b"\r\nversion\r\n"].concat());
    // A noop contains a line feed.
    client.expect(b"CLIENT_ERROR bad command line format\r\nERROR\r\nVERSION 1.6.45\r\n");
    assert_eq!(setting(&text), "ascii");

    let binary = Running::start(ServerOptions {
        protocols: ProtocolOptions { protocol: DialectChoice::Binary, ..options().protocols },
        ..options()
    });
    let mut client = binary.connect();
    client.send(b"version\r\n");
    assert_eq!(client.rest(), b"", "closed without a word");
    let mut client = binary.connect();
    client.send(&NOOP);
    client.expect(&DONE);
}

/// The dialect of a listener replaces the server's, in both directions. The server's statistics
/// still show its own.
#[test]
fn listener_may_have_its_own_dialect() {
    let listen = ["proto[ascii]:127.0.0.1:0", "proto[binary]:127.0.0.2:0", "127.0.0.3:0"];
    for protocol in [DialectChoice::Auto, DialectChoice::Text, DialectChoice::Binary] {
        let listen = listen.map(String::from).to_vec();
        let server = Running::start(ServerOptions {
            listen: ListenOptions { addresses: listen, ..options().listen },
            protocols: ProtocolOptions { protocol, ..options().protocols },
            ..options()
        });
        let [ascii, binary, as_everywhere] = server.addresses[..] else { panic!("three") };
        let mut client = server.connect_to(ascii);
        client.send(&[&NOOP[..], b"\r\nversion\r\n"].concat());
        client.expect(b"CLIENT_ERROR bad command line format\r\nERROR\r\nVERSION 1.6.45\r\n");
        let mut client = server.connect_to(binary);
        client.send(&NOOP);
        client.expect(&DONE);
        let mut client = server.connect_to(binary);
        client.send(b"version\r\nversion\r\nversion\r\n");
        assert_eq!(client.rest(), b"");
        let mut client = server.connect_to(as_everywhere);
        if protocol == DialectChoice::Text {
            client.expect_version();
        } else {
            client.send(&NOOP);
            client.expect(&DONE);
        }
        let mut client = server.connect_to(ascii);
        let expected = if protocol == DialectChoice::Auto { "auto-negotiate" } else { "" };
        let settings = client.stats(" settings");
        let told = settings.into_iter().find(|(name, _)| name == "binding_protocol").unwrap().1;
        assert!(expected.is_empty() || told == expected, "{told}");
    }
}

/// A login that is required in the binary protocol cannot be avoided through a listener that is
/// restricted to the text protocol.
#[test]
fn dialect_of_a_listener_replaces_no_login() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "user:password\n").unwrap();
    let authentication = AuthenticationMode::Sasl(users);
    let listen = vec!["proto[ascii]:127.0.0.1:0".into()];
    let server = Running::start(ServerOptions {
        listen: ListenOptions { addresses: listen, ..options().listen },
        protocols: ProtocolOptions { authentication, ..options().protocols },
        ..options()
    });
    let mut client = server.connect();
    client.send(b"version\r\nversion\r\nversion\r\n");
    assert_eq!(client.rest(), b"");
}
