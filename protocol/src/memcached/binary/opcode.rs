//! Defines the meaning of each opcode, and the lengths that its packets may have.

use super::header::PacketHeader;
use todana_core::{ArithmeticDirection, StoreMode};

/// The meaning of an opcode.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpcodeMeaning {
    pub(super) verb: PacketVerb,
    /// True if the expected result is not answered: the miss of a read, or the success of any other
    /// command.
    pub(super) is_quiet: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PacketVerb {
    Get(ReadOptions),
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

/// Returns the name of the opcode.
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

/// The variants of a read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadOptions {
    /// True if the response contains the key.
    pub(super) with_key: bool,
    /// True if the response contains the value.
    pub(super) with_value: bool,
    /// True if the request sets a new time to live.
    pub(super) touches: bool,
}

const GET: ReadOptions = ReadOptions { with_key: false, with_value: true, touches: false };
const TOUCH: ReadOptions = ReadOptions { with_key: false, with_value: false, touches: true };

impl OpcodeMeaning {
    /// Returns the meaning of this opcode, or `None` if the opcode is not supported.
    #[inline]
    pub(super) fn of(opcode: u8) -> Option<OpcodeMeaning> {
        let with_key = true;
        let gat = ReadOptions { touches: true, ..GET };
        let (verb, is_quiet) = match opcode {
            0x00 | 0x09 => (PacketVerb::Get(GET), opcode == 0x09),
            0x0c | 0x0d => (PacketVerb::Get(ReadOptions { with_key, ..GET }), opcode == 0x0d),
            0x1c => (PacketVerb::Get(TOUCH), false),
            0x1d | 0x1e => (PacketVerb::Get(gat), opcode == 0x1e),
            0x23 | 0x24 => (PacketVerb::Get(ReadOptions { with_key, ..gat }), opcode == 0x24),
            0x01 | 0x11 => (PacketVerb::Store(StoreMode::Set), opcode == 0x11),
            0x02 | 0x12 => (PacketVerb::Store(StoreMode::Add), opcode == 0x12),
            0x03 | 0x13 => (PacketVerb::Store(StoreMode::Replace), opcode == 0x13),
            0x0e | 0x19 => (PacketVerb::Append(StoreMode::Append), opcode == 0x19),
            0x0f | 0x1a => (PacketVerb::Append(StoreMode::Prepend), opcode == 0x1a),
            0x04 | 0x14 => (PacketVerb::Delete, opcode == 0x14),
            0x05 | 0x15 => (PacketVerb::Arithmetic(ArithmeticDirection::Increment), opcode == 0x15),
            0x06 | 0x16 => (PacketVerb::Arithmetic(ArithmeticDirection::Decrement), opcode == 0x16),
            0x07 | 0x17 => (PacketVerb::Quit, opcode == 0x17),
            0x08 | 0x18 => (PacketVerb::Flush, opcode == 0x18),
            0x0a => (PacketVerb::Noop, false),
            0x0b => (PacketVerb::Version, false),
            0x10 => (PacketVerb::Stat, false),
            0x20 => (PacketVerb::Mechanisms, false),
            0x21 | 0x22 => (PacketVerb::Authenticate { continues: opcode == 0x22 }, false),
            _ => return None,
        };
        Some(OpcodeMeaning { verb, is_quiet })
    }

    /// Returns true if the opcode is served before authentication. These are the opcodes that
    /// authenticate, and the request for the version.
    pub(super) fn is_allowed_before_login(opcode: u8) -> bool {
        matches!(opcode, 0x0b | 0x20..=0x22)
    }
}

impl PacketVerb {
    /// Returns true if a packet of this kind may have such lengths in its header. The caller has
    /// checked that key and extras fit into the body.
    #[inline]
    pub(super) fn fits(self, header: &PacketHeader) -> bool {
        let has_key = header.key_len > 0;
        let has_value = header.body_len > header.extras_len + header.key_len;
        let extras_len = header.extras_len;
        match self {
            PacketVerb::Get(read) => extras_len == if read.touches { 4 } else { 0 } && has_key && !has_value,
            PacketVerb::Store(_) => extras_len == 8 && has_key,
            PacketVerb::Append(_) => extras_len == 0 && has_key,
            PacketVerb::Delete => extras_len == 0 && has_key && !has_value,
            PacketVerb::Arithmetic(_) => extras_len == 20 && has_key && !has_value,
            PacketVerb::Flush => matches!(extras_len, 0 | 4) && !has_key && !has_value,
            PacketVerb::Stat => extras_len == 0 && !has_value,
            PacketVerb::Quit | PacketVerb::Noop | PacketVerb::Version | PacketVerb::Mechanisms => {
                header.body_len == 0
            }
            PacketVerb::Authenticate { .. } => extras_len == 0 && has_key,
        }
    }
}
