//! Sends requests of Tokyo Tyrant's binary protocol, and starts servers that speak it.

// Each test file uses a part of this module.
#![allow(dead_code)]

use super::running::{Client, Running, options};
use todana_protocol::tyrant::{CommandMask, TyrantRequest};
use todana_server::{ProtocolOptions, ServerOptions, TyrantMode, TyrantOptions};

/// Returns options for a server that speaks Tokyo Tyrant's protocol.
pub(crate) fn tyrant() -> ServerOptions {
    ServerOptions {
        protocols: ProtocolOptions {
            tyrant: TyrantOptions { spoken: TyrantMode::Binary, ..TyrantOptions::default() },
            ..options().protocols
        },
        ..options()
    }
}

/// Returns options for a server that speaks all protocols of Tokyo Tyrant and refuses the commands
/// of this mask.
pub(crate) fn all_of_tyrant(mask: &str) -> ServerOptions {
    let mask = CommandMask::parse(mask).unwrap();
    let tyrant = TyrantOptions { spoken: TyrantMode::All, mask, ..TyrantOptions::default() };
    ServerOptions { protocols: ProtocolOptions { tyrant, ..options().protocols }, ..options() }
}

/// Decodes hexadecimal digits. Other characters are skipped.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Sends each request and checks its reply. The input is sent at once, in pieces of 7 bytes, and
/// byte by byte, each time to a new server.
pub(crate) fn replay(options: impl Fn() -> ServerOptions, exchanges: &[(&str, &str)]) {
    for len in [usize::MAX, 7, 1] {
        let server = Running::start(options());
        let mut client = server.connect();
        for (request, reply) in exchanges {
            let request = hex(request);
            request.chunks(len.min(request.len())).for_each(|piece| client.send(piece));
            client.expect(&hex(reply));
        }
    }
    // All requests are sent in one write.
    let server = Running::start(options());
    let mut client = server.connect();
    client.send(&exchanges.iter().flat_map(|(request, _)| hex(request)).collect::<Vec<u8>>());
    client.expect(&exchanges.iter().flat_map(|(_, reply)| hex(reply)).collect::<Vec<u8>>());
}

/// Sends a request and checks its reply.
pub(crate) fn ask(client: &mut Client, request: &TyrantRequest<'_>, reply: &[u8]) {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    client.send(&bytes);
    client.expect(reply);
}
