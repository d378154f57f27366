//! What a packet asks for, and the shape that it must have.

use super::header::Header;
use todana_core::{ArithmeticDirection, StoreMode};

/// What an opcode stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opcode {
    pub(super) verb: Verb,
    /// What goes as expected is not answered: a read's miss, anything else's success.
    pub(super) is_quiet: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Verb {
    Get(Read),
    Store(StoreMode),
    Append(StoreMode),
    Delete,
    Arithmetic(ArithmeticDirection),
    Quit,
    Flush,
    Noop,
    Version,
    Stat,
    Mechanisms,
    Authenticate { continues: bool },
}

/// What the opcode is called.
pub(super) fn name_of(opcode: u8) -> &'static str {
    const NAMES: [&str; 0x25] = [
        "GET",
        "SET",
        "ADD",
        "REPLACE",
        "DELETE",
        "INCR",
        "DECR",
        "QUIT",
        "FLUSH",
        "GETQ",
        "NOOP",
        "VERSION",
        "GETK",
        "GETKQ",
        "APPEND",
        "PREPEND",
        "STATS",
        "SETQ",
        "ADDQ",
        "REPLACEQ",
        "DELETEQ",
        "INCRQ",
        "DECRQ",
        "QUITQ",
        "FLUSHQ",
        "APPENDQ",
        "PREPENDQ",
        "VERBOSITY",
        "TOUCH",
        "GAT",
        "GATQ",
        "UNKNOWN",
        "SASL_LIST",
        "SASL_AUTH",
        "SASL_STEP",
        "GATK",
        "GATKQ",
    ];
    NAMES.get(usize::from(opcode)).copied().unwrap_or("UNKNOWN")
}

/// The kinds of read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    /// The key goes back.
    pub(super) with_key: bool,
    /// The value goes back.
    pub(super) with_value: bool,
    /// It brings a new time to live.
    pub(super) touches: bool,
}

const GET: Read = Read { with_key: false, with_value: true, touches: false };
const TOUCH: Read = Read { with_key: false, with_value: false, touches: true };

impl Opcode {
    /// What this opcode stands for, `None` if for nothing that is served.
    #[inline]
    pub(super) fn of(opcode: u8) -> Option<Opcode> {
        let with_key = true;
        let gat = Read { touches: true, ..GET };
        let (verb, is_quiet) = match opcode {
            0x00 | 0x09 => (Verb::Get(GET), opcode == 0x09),
            0x0c | 0x0d => (Verb::Get(Read { with_key, ..GET }), opcode == 0x0d),
            0x1c => (Verb::Get(TOUCH), false),
            0x1d | 0x1e => (Verb::Get(gat), opcode == 0x1e),
            0x23 | 0x24 => (Verb::Get(Read { with_key, ..gat }), opcode == 0x24),
            0x01 | 0x11 => (Verb::Store(StoreMode::Set), opcode == 0x11),
            0x02 | 0x12 => (Verb::Store(StoreMode::Add), opcode == 0x12),
            0x03 | 0x13 => (Verb::Store(StoreMode::Replace), opcode == 0x13),
            0x0e | 0x19 => (Verb::Append(StoreMode::Append), opcode == 0x19),
            0x0f | 0x1a => (Verb::Append(StoreMode::Prepend), opcode == 0x1a),
            0x04 | 0x14 => (Verb::Delete, opcode == 0x14),
            0x05 | 0x15 => (Verb::Arithmetic(ArithmeticDirection::Increment), opcode == 0x15),
            0x06 | 0x16 => (Verb::Arithmetic(ArithmeticDirection::Decrement), opcode == 0x16),
            0x07 | 0x17 => (Verb::Quit, opcode == 0x17),
            0x08 | 0x18 => (Verb::Flush, opcode == 0x18),
            0x0a => (Verb::Noop, false),
            0x0b => (Verb::Version, false),
            0x10 => (Verb::Stat, false),
            0x20 => (Verb::Mechanisms, false),
            0x21 | 0x22 => (Verb::Authenticate { continues: opcode == 0x22 }, false),
            _ => return None,
        };
        Some(Opcode { verb, is_quiet })
    }

    /// Whether it is served before the client has said who it is: version, and what it takes to say that.
    pub(super) fn is_for_strangers(opcode: u8) -> bool {
        matches!(opcode, 0x0b | 0x20..=0x22)
    }
}

impl Verb {
    /// Whether a packet of this kind may have such a header. Key and extras are known to fit the body.
    #[inline]
    pub(super) fn fits(self, header: &Header) -> bool {
        let has_key = header.key_len > 0;
        let has_value = header.body_len > header.extras_len + header.key_len;
        let extras_len = header.extras_len;
        match self {
            Verb::Get(read) => extras_len == if read.touches { 4 } else { 0 } && has_key && !has_value,
            Verb::Store(_) => extras_len == 8 && has_key,
            Verb::Append(_) => extras_len == 0 && has_key,
            Verb::Delete => extras_len == 0 && has_key && !has_value,
            Verb::Arithmetic(_) => extras_len == 20 && has_key && !has_value,
            Verb::Flush => matches!(extras_len, 0 | 4) && !has_key && !has_value,
            Verb::Stat => extras_len == 0 && !has_value,
            Verb::Quit | Verb::Noop | Verb::Version | Verb::Mechanisms => header.body_len == 0,
            Verb::Authenticate { .. } => extras_len == 0 && has_key,
        }
    }
}
