//! Defines the options of Tokyo Tyrant's protocols.

use std::path::PathBuf;
use std::time::Duration;
use todana_protocol::tyrant::CommandMask;

/// Options of Tokyo Tyrant's protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TyrantOptions {
    /// The protocols that memcached's ports speak in addition to memcached's.
    pub spoken: TyrantMode,
    /// The commands that clients may not use.
    pub mask: CommandMask,
    /// The Lua program with the functions that clients call. `None` offers none.
    pub script: Option<ScriptText>,
    /// Functions of the program that the server calls at intervals.
    pub periodic: Vec<PeriodicCall>,
    /// The directory in which scripts may use files. `None` allows no files.
    pub files: Option<PathBuf>,
    /// True if `copy` and `restore` may use any path, false if only paths within `files`.
    pub copies_anywhere: bool,
    /// The time limit of each call of a function, and of loading the program.
    pub script_time_max: Duration,
    /// The memory limit of one call in bytes. As many calls as there are `threads` can run at once.
    pub script_memory_max: usize,
}

impl Default for TyrantOptions {
    fn default() -> Self {
        TyrantOptions {
            spoken: TyrantMode::Off,
            mask: CommandMask::default(),
            script: None,
            periodic: Vec::new(),
            files: None,
            copies_anywhere: false,
            script_time_max: Duration::from_secs(5),
            script_memory_max: 64 << 20,
        }
    }
}

/// A Lua program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptText {
    /// In a file.
    File(PathBuf),
    /// The program itself.
    Inline(String),
}

/// A function that the server calls at intervals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeriodicCall {
    /// The name of the function.
    pub name: String,
    /// The time between two calls.
    pub interval: Duration,
}

/// The protocols of Tokyo Tyrant that memcached's ports speak, unless a port is restricted to one
/// of memcached's protocols. The first byte of each request selects its protocol, so one connection
/// may use several. These protocols have no login, so they are not spoken if
/// [`AuthenticationMode`](super::AuthenticationMode) requires logins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TyrantMode {
    /// No protocol of Tokyo Tyrant is spoken.
    #[default]
    Off,
    /// The binary protocol.
    Binary,
    /// The binary protocol and HTTP. Clients of memcached's protocols see the versions and
    /// statistics of Tokyo Tyrant.
    All,
}
