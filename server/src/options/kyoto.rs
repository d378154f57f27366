//! Kyoto Tycoon's protocols: where they are spoken, by whom, and its scripts.

use super::OptionsError;
use std::path::PathBuf;
use std::time::Duration;
use todana::Kind;

/// Kyoto Tycoon's protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KyotoOptions {
    /// Where Kyoto Tycoon's protocols are spoken.
    pub spoken: KyotoMode,
    /// With [`KyotoMode::Only`]: at addresses with `proto[...]:` memcached is spoken as Kyoto Tycoon's plug-in does.
    pub plugin: Option<CompatiblePort>,
    /// Kyoto Tycoon's clients may change nothing.
    pub read_only: bool,
    /// The directory of the commands that Kyoto Tycoon's `synchronize` may run; `None`: none.
    pub commands: Option<PathBuf>,
    /// The program, in Lua, with the procedures that Kyoto Tycoon's clients call; `None`: none.
    pub script: Option<PathBuf>,
    /// The folder in which those procedures may write and read snapshots and copies of databases; `None`: nowhere.
    pub files: Option<PathBuf>,
    /// How long a script may take: each call, and loading it.
    pub script_time_max: Duration,
    /// What a script may take of memory, in bytes: each of as many at once as there are `threads`.
    pub script_memory_max: usize,
    /// Web pages may send requests of Kyoto Tycoon's, whatever site they are of; false refuses what browsers mark as such.
    pub pages_allowed: bool,
}

impl Default for KyotoOptions {
    fn default() -> Self {
        KyotoOptions {
            spoken: KyotoMode::Off,
            plugin: None,
            read_only: false,
            commands: None,
            script: None,
            files: None,
            script_time_max: Duration::from_secs(5),
            script_memory_max: 64 << 20,
            pages_allowed: false,
        }
    }
}

/// Where Kyoto Tycoon's protocols are spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KyotoMode {
    /// Nowhere: connections that begin with them are closed, as memcached does.
    #[default]
    Off,
    /// At memcached's ports, unless they are for one of its protocols alone; a connection's first bytes tell. Where clients have to
    /// log in, whichever [`AuthenticationMode`](super::Authentication) it is, they do so with each HTTP request (`Basic`), and speak the binary protocol behind
    /// such a one.
    Beside,
    /// Nothing else is spoken, but at addresses that say what by `proto[...]:`.
    Only,
}

/// How memcached is spoken in the manner of Kyoto Tycoon's plug-in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompatiblePort {
    /// Flags are kept, as four bytes behind the value, where Kyoto Tycoon's clients see them; otherwise they are dropped.
    pub keeps_flags: bool,
    /// Its clients may change nothing.
    pub is_read_only: bool,
    /// There are queues of messages: `set` puts one at the end, `get` takes the first, and waits for one so long at most, and `delete`
    /// acknowledges it; what is not acknowledged is there again when its connection is closed. The first database has to be ordered.
    pub queue_wait: Option<Duration>,
}

impl KyotoOptions {
    /// Returns true if memcached's clients leave each other messages.
    pub(super) fn has_queues(&self) -> bool {
        self.plugin.is_some_and(|port| port.queue_wait.is_some())
    }

    /// Checks the options; `first`: the engine of the first database.
    pub(super) fn validate(&self, first: Kind) -> Result<(), OptionsError> {
        let wrong = |text: &str| Err(OptionsError(text.to_string()));
        if self.has_queues() {
            if !first.is_ordered() {
                return wrong(
                    "queues need an ordered database, and the first one is not: % and PATH.kct are (-plex opts=q)",
                );
            }
            if self.read_only || self.plugin.is_some_and(|port| port.is_read_only) {
                return wrong("queues cannot be for reading only (-plex opts=q)");
            }
        }
        Ok(())
    }
}
