//! One request of a session. Its keys are named by a letter and rendered under a prefix, so that
//! the same session can be sent again to servers that still hold the records of its last time.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A piece of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Text(Vec<u8>),
    /// The value with its line end.
    Block(Vec<u8>),
    Key(char),
    /// The same key in base64.
    EncodedKey(char),
    /// A key that is no text, in base64.
    BinaryKey(char),
}

/// A request with its data block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) parts: Vec<Part>,
}

impl Request {
    pub(super) fn text(&mut self, text: impl AsRef<[u8]>) {
        self.parts.push(Part::Text(text.as_ref().to_vec()));
    }

    /// The bytes to send.
    pub(super) fn render(&self, prefix: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in &self.parts {
            match part {
                Part::Text(text) | Part::Block(text) => bytes.extend_from_slice(text),
                Part::Key(letter) => bytes.extend(format!("{prefix}{letter}").bytes()),
                Part::EncodedKey(letter) => {
                    bytes.extend(STANDARD.encode(format!("{prefix}{letter}")).bytes());
                }
                Part::BinaryKey(letter) => {
                    bytes.extend(STANDARD.encode(format!("\0{prefix}{letter}")).bytes());
                }
            }
        }
        bytes
    }

    /// Whether memcached does it otherwise while it is still sending the value that a request
    /// before has read.
    pub(super) fn waits(&self) -> bool {
        let bytes = self.render("");
        [&b"incr"[..], b"decr", b"ma "].iter().any(|command| bytes.starts_with(command))
    }

    /// As a line of a report.
    pub(super) fn show(&self) -> String {
        self.render("").escape_ascii().to_string()
    }
}
