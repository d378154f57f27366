//! Options of Kyoto Tycoon's protocols: the ports that speak them, their clients' rights, and
//! scripts.

use super::OptionsError;
use std::path::PathBuf;
use std::time::Duration;
use todana::Kind;

/// Options of Kyoto Tycoon's protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KyotoOptions {
    /// The ports that speak Kyoto Tycoon's protocols.
    pub spoken: KyotoMode,
    /// With [`KyotoMode::Only`]: addresses with `proto[...]:` speak memcached's protocol as Kyoto
    /// Tycoon's plug-in does.
    pub plugin: Option<CompatiblePort>,
    /// True refuses changes by Kyoto Tycoon's clients.
    pub read_only: bool,
    /// The directory of the commands that Kyoto Tycoon's `synchronize` may run. `None` allows no
    /// command.
    pub commands: Option<PathBuf>,
    /// The Lua program with the procedures that Kyoto Tycoon's clients call. `None` offers none.
    pub script: Option<PathBuf>,
    /// The directory in which those procedures may write and read snapshots and copies of
    /// databases. `None` refuses both.
    pub files: Option<PathBuf>,
    /// The time limit of each call of a procedure, and of loading the program.
    pub script_time_max: Duration,
    /// The memory limit of one procedure in bytes. As many procedures as there are `threads` can
    /// run at once.
    pub script_memory_max: usize,
    /// True accepts requests that web pages of other sites send. False refuses requests that
    /// browsers mark as such.
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

/// The ports that speak Kyoto Tycoon's protocols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KyotoMode {
    /// None. Connections that begin with these protocols are closed, as memcached closes them.
    #[default]
    Off,
    /// memcached's ports, unless they are restricted to one of its protocols. The first bytes of a
    /// connection decide. With any [`AuthenticationMode`](super::AuthenticationMode) except none,
    /// each HTTP request carries the login (`Basic`), and the binary protocol can be spoken after
    /// such a request.
    Beside,
    /// All ports. Only addresses with `proto[...]:` speak something else.
    Only,
}

/// How memcached's protocol is spoken in the way of Kyoto Tycoon's plug-in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompatiblePort {
    /// True stores the flags as four bytes after the value, where Kyoto Tycoon's clients see them.
    /// False drops the flags.
    pub keeps_flags: bool,
    /// True refuses changes by the clients of this port.
    pub is_read_only: bool,
    /// Turns keys into message queues. `set` appends a message. `get` takes the first one and waits
    /// for it at most this long. `delete` acknowledges it. A message that is not acknowledged
    /// returns to its queue when the connection closes. The first database must be ordered.
    pub queue_wait: Option<Duration>,
}

impl KyotoOptions {
    /// Returns true if memcached's clients use message queues.
    pub(super) fn has_queues(&self) -> bool {
        self.plugin.is_some_and(|port| port.queue_wait.is_some())
    }

    /// Checks the options. `first` is the kind of the first database.
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
