//! A server can be held to one dialect.

mod running;

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
    // A noop has a line feed in it.
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

/// Both ways, whatever the server as a whole is held to; what it tells of itself stays.
#[test]
fn a_listener_may_be_held_to_another_dialect_than_the_server() {
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

/// A listener held to the text protocol is no way around a login over the binary one.
#[test]
fn a_listeners_dialect_does_not_stand_in_for_a_login() {
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
