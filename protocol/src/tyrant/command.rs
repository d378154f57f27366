//! Defines the commands of the binary protocol. A text or HTTP request counts as the command to
//! which it corresponds.

macro_rules! commands {
    ($($variant:ident $byte:literal $name:literal,)*) => {
        /// A command, with the name that statistics, masks and exported logs use.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum TyrantCommand {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl TyrantCommand {
            /// All commands, in the order of the statistics.
            pub const ALL: &[TyrantCommand] = &[$(TyrantCommand::$variant,)*];

            /// Returns the command of this byte, which is the second byte of a request.
            #[inline]
            pub fn from_byte(byte: u8) -> Option<TyrantCommand> {
                Some(match byte {
                    $($byte => TyrantCommand::$variant,)*
                    _ => return None,
                })
            }

            /// Returns the byte of the command.
            pub fn byte(self) -> u8 {
                match self {
                    $(TyrantCommand::$variant => $byte,)*
                }
            }

            /// Returns the name of the command.
            pub fn name(self) -> &'static str {
                match self {
                    $(TyrantCommand::$variant => $name,)*
                }
            }
        }
    };
}

commands! {
    Put 0x10 "put",
    PutKeep 0x11 "putkeep",
    PutCat 0x12 "putcat",
    PutShl 0x13 "putshl",
    PutNr 0x18 "putnr",
    Out 0x20 "out",
    Get 0x30 "get",
    MGet 0x31 "mget",
    VSiz 0x38 "vsiz",
    IterInit 0x50 "iterinit",
    IterNext 0x51 "iternext",
    FwmKeys 0x58 "fwmkeys",
    AddInt 0x60 "addint",
    AddDouble 0x61 "adddouble",
    Ext 0x68 "ext",
    Sync 0x70 "sync",
    Optimize 0x71 "optimize",
    Vanish 0x72 "vanish",
    Copy 0x73 "copy",
    Restore 0x74 "restore",
    SetMst 0x78 "setmst",
    RNum 0x80 "rnum",
    Size 0x81 "size",
    Stat 0x88 "stat",
    Misc 0x90 "misc",
    Repl 0xa0 "repl",
}

impl TyrantCommand {
    /// The number of commands.
    pub const COUNT: usize = TyrantCommand::ALL.len();

    /// Returns the position of the command in [`ALL`](Self::ALL).
    #[inline]
    pub fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::TyrantCommand;

    #[test]
    fn command_is_found_by_its_byte() {
        for (index, &command) in TyrantCommand::ALL.iter().enumerate() {
            assert_eq!(TyrantCommand::from_byte(command.byte()), Some(command));
            assert_eq!(command.index(), index);
        }
        assert_eq!(TyrantCommand::COUNT, 26);
        assert_eq!(TyrantCommand::from_byte(0x99), None);
    }
}
