//! Which protocols are spoken, and how clients log in.

use super::KyotoOptions;
use std::path::PathBuf;
use todana_protocol::memcached::DialectChoice;

/// Which protocols are spoken, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtocolOptions {
    /// Which dialect connections speak; logins over one of them decide by themselves.
    pub protocol: DialectChoice,
    /// A negative time to live in the text commands is a sliding one: so many seconds after the last access
    /// (`-o negative_exptime=sliding`).
    pub negative_is_sliding: bool,
    /// Takes commands that are for tests: `debugtime` (`-o debug_commands`).
    pub debug_commands: bool,
    /// Shown as `cas_enabled` by `stats settings`, and no more: an unused CAS id takes no memory here.
    pub cas_enabled: bool,
    /// How clients say who they are.
    pub authentication: AuthenticationMode,
    /// Host names by which browsers may ask, of Kyoto Tycoon's protocols and of the admin pages, besides addresses and
    /// `localhost`; if there are any, nobody may by another name.
    pub http_hosts: Vec<String>,
    /// Kyoto Tycoon's protocols.
    pub kyoto: KyotoOptions,
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
        }
    }
}

/// How clients say who they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AuthenticationMode {
    /// They do not: whoever can connect is served.
    #[default]
    None,
    /// By SASL PLAIN over the binary protocol, which is then the only one of memcached's. The file has lines `user:password`, the
    /// password hashed as by [`password_line`](crate::password_line), or plain.
    Sasl(PathBuf),
    /// By a password of the same file, over either protocol: SASL PLAIN over the binary one, a token `user password` over the
    /// text one.
    Passwords(PathBuf),
    /// By a token over the text protocol, which is then the only one of memcached's. The file has up to eight lines `user:password`.
    Text(PathBuf),
}
