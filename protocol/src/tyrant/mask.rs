//! Defines sets of forbidden commands, with the names of the original's option `-mask`.
//!
//! ```text
//! bits 0 to 25    the commands, in the order of the statistics
//! bit 26          following a master
//! bits 27 to 32   groups: binary, text, HTTP; reads, writes, administration
//! ```
//!
//! A request is forbidden if the bit of its command, its protocol or its kind (reads, writes,
//! administration) is set. `ext` and `repl` belong to no kind, and `repl` belongs to no protocol.

use super::command::TyrantCommand;

/// The protocols that a mask distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TyrantForm {
    /// The binary protocol.
    Binary,
    /// memcached's protocols.
    Text,
    /// HTTP.
    Http,
}

/// A set of forbidden commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandMask(u64);

const FOLLOWING: u64 = 1 << TyrantCommand::COUNT;
const ALL_BINARY: u64 = FOLLOWING << 1;
const ALL_TEXT: u64 = FOLLOWING << 2;
const ALL_HTTP: u64 = FOLLOWING << 3;
const ALL_READS: u64 = FOLLOWING << 4;
const ALL_WRITES: u64 = FOLLOWING << 5;
const ALL_ADMINISTRATION: u64 = FOLLOWING << 6;

impl CommandMask {
    /// Parses names, which are separated by commas or blanks and may have any case. A word that
    /// begins with `0x` is a hexadecimal number with the bits of commands. Fails with the first
    /// unknown word.
    pub fn parse(text: &str) -> Result<CommandMask, &str> {
        let mut mask = 0;
        for word in text.split([' ', ',']).filter(|word| !word.is_empty()) {
            mask |= bits_of(&word.to_ascii_lowercase()).ok_or(word)?;
        }
        Ok(CommandMask(mask))
    }

    /// Returns a mask that forbids the commands of both masks.
    pub fn with(self, other: CommandMask) -> CommandMask {
        CommandMask(self.0 | other.0)
    }

    /// Returns this mask without the bits of the other mask.
    pub fn without(self, other: CommandMask) -> CommandMask {
        CommandMask(self.0 & !other.0)
    }

    /// Returns the bits.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns true if nothing is forbidden.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true if the server may not follow a master.
    pub fn forbids_following(self) -> bool {
        self.0 & FOLLOWING != 0
    }

    /// Returns true if a command is forbidden in a protocol.
    #[inline]
    pub fn forbids(self, command: TyrantCommand, form: TyrantForm) -> bool {
        self.0 != 0 && self.0 & (1 << command.index() | group(command) | protocol(command, form)) != 0
    }
}

fn bits_of(word: &str) -> Option<u64> {
    if let Some(digits) = word.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok();
    }
    if let Some(command) = TyrantCommand::ALL.iter().find(|command| command.name() == word) {
        return Some(1 << command.index());
    }
    Some(match word {
        "slave" => FOLLOWING,
        "all" => u64::MAX,
        "allorg" => ALL_BINARY,
        "allmc" => ALL_TEXT,
        "allhttp" => ALL_HTTP,
        "allread" => ALL_READS,
        "allwrite" => ALL_WRITES,
        "allmanage" => ALL_ADMINISTRATION,
        _ => return None,
    })
}

fn protocol(command: TyrantCommand, form: TyrantForm) -> u64 {
    match (command, form) {
        (TyrantCommand::Repl, _) => 0,
        (_, TyrantForm::Binary) => ALL_BINARY,
        (_, TyrantForm::Text) => ALL_TEXT,
        (_, TyrantForm::Http) => ALL_HTTP,
    }
}

fn group(command: TyrantCommand) -> u64 {
    use TyrantCommand as C;
    match command {
        C::Put | C::PutKeep | C::PutCat | C::PutShl | C::PutNr | C::Out | C::AddInt | C::AddDouble => {
            ALL_WRITES
        }
        C::Vanish | C::Misc => ALL_WRITES,
        C::Get | C::MGet | C::VSiz | C::IterInit | C::IterNext | C::FwmKeys | C::RNum | C::Size | C::Stat => {
            ALL_READS
        }
        C::Sync | C::Optimize | C::Copy | C::Restore | C::SetMst => ALL_ADMINISTRATION,
        C::Ext | C::Repl => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::{CommandMask, TyrantCommand, TyrantForm};

    #[test]
    fn mask_forbids_commands_and_groups() {
        let mask = |text| CommandMask::parse(text).unwrap();
        let forbids = |text, command| {
            [TyrantForm::Binary, TyrantForm::Text, TyrantForm::Http]
                .map(|form| mask(text).forbids(command, form))
        };
        assert_eq!(forbids("put,Out", TyrantCommand::Put), [true; 3]);
        assert_eq!(forbids("put,Out", TyrantCommand::Get), [false; 3]);
        assert_eq!(forbids("allorg", TyrantCommand::Get), [true, false, false]);
        assert_eq!(forbids("allmc allhttp", TyrantCommand::Ext), [false, true, true]);
        assert_eq!(forbids("allread", TyrantCommand::Stat), [true; 3]);
        assert_eq!(forbids("allwrite", TyrantCommand::Misc), [true; 3]);
        assert_eq!(forbids("allwrite,allread,allmanage,allorg", TyrantCommand::Repl), [false; 3]);
        assert_eq!(forbids("all", TyrantCommand::Repl), [true; 3]);
        assert_eq!(forbids("0x1", TyrantCommand::Put), [true; 3]);
        assert!(mask("slave").forbids_following() && !mask("repl").forbids_following());
        assert!(mask("all").without(mask("allread")).forbids(TyrantCommand::Get, TyrantForm::Text));
        assert_eq!(CommandMask::parse("put,pit"), Err("pit"));
    }
}
