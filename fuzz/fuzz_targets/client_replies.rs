//! The client's decoder: no reply makes it panic or read beyond its input, and a truncated reply is
//! never decoded as a complete one with another meaning.
#![no_main]

use todana_protocol::memcached::client::{ClientResponse, decode};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut at = 0;
    while let Ok(Some((len, response))) = decode(&bytes[at..], 1 << 16) {
        assert!(len > 0 && len <= bytes.len() - at);
        let whole = decode(&bytes[at..at + len], 1 << 16);
        assert_eq!(whole, Ok(Some((len, response))));
        // Without its last byte the reply is incomplete.
        assert_eq!(decode(&bytes[at..at + len - 1], 1 << 16), Ok(None));
        if let ClientResponse::Meta { flags, .. } = response {
            for (letter, _) in flags.iter() {
                assert!(flags.has(letter));
                let _ = (flags.number(letter), flags.seconds_left());
            }
        }
        at += len;
    }
});
