//! One request of a session. Its keys are letters, rendered with a prefix. With another prefix, a
//! session can be repeated while the servers still hold its earlier records.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A piece of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestPart {
    Text(Vec<u8>),
    /// A value with its line end.
    Block(Vec<u8>),
    Key(char),
    /// The same key in base64.
    EncodedKey(char),
    /// A key with binary bytes, in base64.
    BinaryKey(char),
}

/// A request with its data block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RandomRequest {
    pub(super) parts: Vec<RequestPart>,
}

impl RandomRequest {
    pub(super) fn text(&mut self, text: impl AsRef<[u8]>) {
        self.parts.push(RequestPart::Text(text.as_ref().to_vec()));
    }

    /// Returns the bytes to send.
    pub(super) fn render(&self, prefix: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in &self.parts {
            match part {
                RequestPart::Text(text) | RequestPart::Block(text) => bytes.extend_from_slice(text),
                RequestPart::Key(letter) => bytes.extend(format!("{prefix}{letter}").bytes()),
                RequestPart::EncodedKey(letter) => {
                    bytes.extend(STANDARD.encode(format!("{prefix}{letter}")).bytes());
                }
                RequestPart::BinaryKey(letter) => {
                    bytes.extend(STANDARD.encode(format!("\0{prefix}{letter}")).bytes());
                }
            }
        }
        bytes
    }

    /// Returns true for a command that memcached executes differently while it still sends the
    /// value that an earlier request read.
    pub(super) fn is_sent_alone(&self) -> bool {
        let bytes = self.render("");
        [&b"incr"[..], b"decr", b"ma "].iter().any(|command| bytes.starts_with(command))
    }

    /// Returns the request as a line of a report.
    pub(super) fn show(&self) -> String {
        self.render("").escape_ascii().to_string()
    }
}
