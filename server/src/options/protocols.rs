//! Defines the options of the protocols and of logins.

use super::{KyotoOptions, TyrantOptions};
use std::path::PathBuf;
use todana_protocol::memcached::DialectChoice;

/// The protocols of the server, and how clients log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtocolOptions {
    /// The dialects of memcached that connections may speak. If the login exists in one dialect
    /// only, that dialect is used instead.
    pub protocol: DialectChoice,
    /// True if a negative time to live in a text command requests a sliding expiry: the record
    /// expires this number of seconds after its last access (`-o negative_exptime=sliding`).
    pub negative_is_sliding: bool,
    /// True if commands for tests are accepted: `debugtime` (`-o debug_commands`).
    pub debug_commands: bool,
    /// The value of `cas_enabled` in `stats settings`. It has no other effect, because an unused
    /// version (CAS ID) takes no memory.
    pub cas_enabled: bool,
    /// How clients log in.
    pub authentication: AuthenticationMode,
    /// The host names that browsers may use for Kyoto Tycoon's protocols and for the admin pages,
    /// in addition to addresses and `localhost`. If the list is not empty, requests with any other
    /// host name are refused, also those of other clients.
    pub http_hosts: Vec<String>,
    /// Kyoto Tycoon's protocols.
    pub kyoto: KyotoOptions,
    /// Tokyo Tyrant's protocol.
    pub tyrant: TyrantOptions,
}

impl Default for ProtocolOptions {
    fn default() -> Self {
        ProtocolOptions {
            protocol: DialectChoice::Auto,
            negative_is_sliding: false,
            debug_commands: false,
            cas_enabled: true,
            authentication: AuthenticationMode::None,
            http_hosts: Vec::new(),
            kyoto: KyotoOptions::default(),
            tyrant: TyrantOptions::default(),
        }
    }
}

/// How clients log in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AuthenticationMode {
    /// No login is required: every client that can connect is served.
    #[default]
    None,
    /// SASL PLAIN over the binary protocol, which is then the only dialect of memcached. The file
    /// has lines `user:password`. Each password is plain, or hashed as by
    /// [`password_line`](crate::password_line).
    Sasl(PathBuf),
    /// A password of such a file, over both dialects: by SASL PLAIN in the binary dialect, and by a
    /// token `user password` in the text dialect.
    Passwords(PathBuf),
    /// A token in the text dialect, which is then the only dialect of memcached. The file has lines
    /// `user:password`, of which the first eight count.
    Text(PathBuf),
}
