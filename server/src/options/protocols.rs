//! Options of the protocols and of logins.

use super::KyotoOptions;
use std::path::PathBuf;
use todana_protocol::memcached::DialectChoice;

/// The protocols of the server, and how clients log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtocolOptions {
    /// The dialect of memcached that connections speak. A login that exists in one dialect only
    /// overrides it.
    pub protocol: DialectChoice,
    /// A negative time to live in the text commands is a sliding expiry: the record expires that
    /// many seconds after its last access (`-o negative_exptime=sliding`).
    pub negative_is_sliding: bool,
    /// Accepts commands for tests: `debugtime` (`-o debug_commands`).
    pub debug_commands: bool,
    /// The value of `cas_enabled` in `stats settings`. It has no other effect: an unused CAS ID
    /// takes no memory here.
    pub cas_enabled: bool,
    /// How clients log in.
    pub authentication: AuthenticationMode,
    /// Host names that browsers may use for Kyoto Tycoon's protocols and for the admin pages,
    /// besides addresses and `localhost`. If the list is not empty, all other names are refused to
    /// every client.
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

/// How clients log in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AuthenticationMode {
    /// No login: every client that can connect is served.
    #[default]
    None,
    /// SASL PLAIN over the binary protocol, which is then the only dialect of memcached. The file
    /// has lines `user:password`. The password is hashed as by
    /// [`password_line`](crate::password_line), or plain.
    Sasl(PathBuf),
    /// A password from such a file, over either dialect: SASL PLAIN in the binary dialect, a token
    /// `user password` in the text dialect.
    Passwords(PathBuf),
    /// A token in the text dialect, which is then the only dialect of memcached. The file has up to
    /// eight lines `user:password`.
    Text(PathBuf),
}
