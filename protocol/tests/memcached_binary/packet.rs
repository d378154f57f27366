//! Packets, encoded field by field and decoded again.

/// The opaque of every request, which every response must return.
pub(crate) const OPAQUE: [u8; 4] = [0xde, 0xad, 0xbe, 0xef];

/// A packet, request or response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) opcode: u8,
    /// The status of a response.
    pub(crate) status: u16,
    pub(crate) cas: u64,
    pub(crate) extras: Vec<u8>,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    /// Replaces the real value.
    pub(crate) key_len: Option<u16>,
    pub(crate) extras_len: Option<u8>,
    pub(crate) body_len: Option<u32>,
}

impl Packet {
    pub(crate) fn new(opcode: u8) -> Packet {
        Packet { opcode, ..Packet::default() }
    }

    pub(crate) fn key(self, key: impl AsRef<[u8]>) -> Packet {
        Packet { key: key.as_ref().to_vec(), ..self }
    }

    pub(crate) fn value(self, value: impl AsRef<[u8]>) -> Packet {
        Packet { value: value.as_ref().to_vec(), ..self }
    }

    /// Appends extras.
    pub(crate) fn extras(mut self, extras: impl AsRef<[u8]>) -> Packet {
        self.extras.extend_from_slice(extras.as_ref());
        self
    }

    /// Appends a 32-bit number to the extras.
    pub(crate) fn u32(self, number: u32) -> Packet {
        self.extras(number.to_be_bytes())
    }

    /// Appends a 64-bit number to the extras.
    pub(crate) fn u64(self, number: u64) -> Packet {
        self.extras(number.to_be_bytes())
    }

    pub(crate) fn cas(self, cas: u64) -> Packet {
        Packet { cas, ..self }
    }

    pub(crate) fn status(self, status: u16) -> Packet {
        Packet { status, ..self }
    }

    /// Returns the bytes of a request with this opaque.
    pub(crate) fn request(&self) -> Vec<u8> {
        self.bytes(0x80)
    }

    /// Returns the bytes of a response with this opaque.
    pub(crate) fn response(&self) -> Vec<u8> {
        self.bytes(0x81)
    }

    fn bytes(&self, magic: u8) -> Vec<u8> {
        let body_len = self.extras.len() + self.key.len() + self.value.len();
        let mut bytes = vec![magic, self.opcode];
        bytes.extend(self.key_len.unwrap_or(self.key.len() as u16).to_be_bytes());
        bytes.extend([self.extras_len.unwrap_or(self.extras.len() as u8), 0]);
        bytes.extend(self.status.to_be_bytes());
        bytes.extend(self.body_len.unwrap_or(body_len as u32).to_be_bytes());
        bytes.extend(OPAQUE);
        bytes.extend(self.cas.to_be_bytes());
        bytes.extend_from_slice(&self.extras);
        bytes.extend_from_slice(&self.key);
        bytes.extend_from_slice(&self.value);
        bytes
    }
}

/// Returns an error with its number and its text as the body.
pub(crate) fn error(opcode: u8, status: u16) -> Packet {
    let text = match status {
        0x01 => "Not found",
        0x02 => "Data exists for key.",
        0x03 => "Too large.",
        0x04 => "Invalid arguments",
        0x05 => "Not stored.",
        0x06 => "Non-numeric server-side value for incr or decr",
        0x20 => "Auth failure.",
        0x81 => "Unknown command",
        0x82 => "Out of memory",
        other => panic!("no such status: {other:#x}"),
    };
    Packet::new(opcode).status(status).value(text)
}

/// Returns a set of `value` under `key`, the most common request.
pub(crate) fn set(key: &str, value: impl AsRef<[u8]>) -> Packet {
    Packet::new(0x01).u32(0).u32(0).key(key).value(value)
}

/// The opcodes that are served without authentication.
pub(crate) const SERVED: [u8; 32] = [
    0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10,
    0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1c, 0x1d, 0x1e, 0x23, 0x24,
];

/// Returns a well-formed request of each supported opcode (with key `key`, if it has one).
pub(crate) fn well_formed(opcode: u8) -> Packet {
    let packet = Packet::new(opcode);
    match opcode {
        0x07 | 0x08 | 0x0a | 0x0b | 0x10 | 0x17 | 0x18 | 0x20 => packet,
        0x01..=0x03 | 0x11..=0x13 => packet.u32(5).u32(0).key("key").value("value"),
        0x0e | 0x0f | 0x19 | 0x1a => packet.key("key").value("value"),
        0x05 | 0x06 | 0x15 | 0x16 => packet.u64(1).u64(0).u32(0).key("key"),
        0x1c..=0x1e | 0x23 | 0x24 => packet.u32(100).key("key"),
        0x21 | 0x22 => packet.key("PLAIN").value("\0user\0password"),
        _ => packet.key("key"),
    }
}
