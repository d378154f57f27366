//! Defines the options of Kyoto Tycoon's protocols: the ports that speak them, the rights of their
//! clients, and scripts.

use super::OptionsError;
use std::path::PathBuf;
use std::time::Duration;
use todana::DatabaseKind;

/// Options of Kyoto Tycoon's protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KyotoOptions {
    /// The ports that speak Kyoto Tycoon's protocols.
    pub spoken: KyotoMode,
    /// Only with [`KyotoMode::Only`]: listen addresses with `proto[...]:` speak memcached's
    /// protocol in the way of Kyoto Tycoon's plug-in, with these settings.
    pub plugin: Option<PluginOptions>,
    /// True if changes by Kyoto Tycoon's clients are refused.
    pub read_only: bool,
    /// The directory of the commands that Kyoto Tycoon's `synchronize` may run. `None` allows no
    /// command.
    pub commands: Option<PathBuf>,
    /// The Lua program with the procedures that Kyoto Tycoon's clients can call. With `None` there
    /// are no procedures.
    pub script: Option<PathBuf>,
    /// The directory in which procedures may write and read snapshots and copies of databases. With
    /// `None` they may do neither.
    pub files: Option<PathBuf>,
    /// The time limit of each call of a procedure, and of loading the program.
    pub script_time_max: Duration,
    /// The memory limit of one procedure in bytes. The number of procedures that can run at once is
    /// that of the worker threads.
    pub script_memory_max: usize,
    /// True if requests from web pages of other sites are executed. False refuses requests that a
    /// browser marks as such.
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
    /// No port speaks them. A connection that begins with one of these protocols is closed, as in
    /// memcached.
    #[default]
    Off,
    /// memcached's ports speak them, unless a port is restricted to one of memcached's protocols.
    /// The first bytes of a connection select the protocol. If
    /// [`AuthenticationMode`](super::AuthenticationMode) requires logins, each HTTP request must
    /// carry a login (`Basic`), and the binary protocol can be used after such a request.
    Beside,
    /// All ports speak only these protocols, except for listen addresses with `proto[...]:`.
    Only,
}

/// The settings of memcached's protocol in the way of Kyoto Tycoon's plug-in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PluginOptions {
    /// True if flags are stored as four bytes after the value, where Kyoto Tycoon's clients see
    /// them. False drops the flags.
    pub keeps_flags: bool,
    /// True if changes by the clients of this port are refused.
    pub is_read_only: bool,
    /// If set, keys name message queues. `set` appends a message to a queue. `get` takes the first
    /// message, and waits up to this time if there is none. `delete` acknowledges it. A message
    /// that is not acknowledged returns to its queue when the connection closes. The first database
    /// must be ordered.
    pub queue_wait_max: Option<Duration>,
}

impl KyotoOptions {
    /// Returns true if memcached's clients use message queues.
    pub(super) fn has_queues(&self) -> bool {
        self.plugin.is_some_and(|port| port.queue_wait_max.is_some())
    }

    /// Checks the options. `first` is the kind of the first database.
    pub(super) fn validate(&self, first: DatabaseKind) -> Result<(), OptionsError> {
        let wrong = |text: &str| Err(OptionsError(text.to_string()));
        if self.has_queues() {
            if !first.is_ordered() {
                return wrong("queues need an ordered first database; use % or PATH.kct (-plex opts=q)");
            }
            if self.read_only || self.plugin.is_some_and(|port| port.is_read_only) {
                return wrong("queues cannot be read-only (-plex opts=q)");
            }
        }
        Ok(())
    }
}
