//! The options that `todana serve` and `todana proxy` have in common.

use super::values::{
    ClientCertificates, LogLineFormat, ServedProtocol, SocketInterface, TlsVersion, idle_timeout, number,
    octal, port,
};
use clap::{ArgAction, Args};
use std::path::PathBuf;
use todana_server::{
    AdminOptions, AuthenticationMode, DialectChoice, LimitOptions, ListenOptions, LogFormat, TlsOptions,
};

pub(super) const NETWORK: &str = "Network";
pub(crate) const PROCESS: &str = "Process";
const TLS: &str = "TLS";

/// Options of listeners, TLS and logins.
#[derive(Clone, Debug, Args)]
pub(crate) struct NetworkArguments {
    /// TCP port; 0 or -1 lets the system choose
    #[arg(short, long, env = "TODANA_PORT", default_value = "11211", value_parser = port, help_heading = NETWORK, allow_negative_numbers = true)]
    pub(crate) port: i32,
    /// Addresses to listen on: host, host:port, `[v6]:port`, * or *:port for all; repeatable, or a
    /// list with commas. Prefixes change the use of TLS at an address: `notls:` no TLS, `mtls:`
    /// requires client certificates, `btls:` requests none
    #[arg(short, long, env = "TODANA_LISTEN", default_value = "127.0.0.1", action = ArgAction::Append, value_delimiter = ',', value_name = "ADDRESS", help_heading = NETWORK)]
    pub(crate) listen: Vec<String>,
    /// Listen on this Unix socket instead of TCP
    #[arg(short = 's', long, env = "TODANA_UNIX_SOCKET", value_name = "PATH", help_heading = NETWORK)]
    pub(crate) unix_socket: Option<PathBuf>,
    /// Permissions of the Unix socket, octal
    #[arg(short = 'a', long, env = "TODANA_UNIX_MASK", default_value = "700", value_parser = octal, help_heading = NETWORK)]
    pub(crate) unix_mask: u32,
    /// Maximum number of connections
    #[arg(short = 'c', long, env = "TODANA_CONN_LIMIT", default_value = "1024", value_parser = number::<usize>, help_heading = NETWORK)]
    pub(crate) conn_limit: usize,
    /// Let connections above the limit wait instead of refusing them
    #[arg(long, env = "TODANA_CONN_LIMIT_WAITS", help_heading = NETWORK)]
    pub(crate) conn_limit_waits: bool,
    /// Close TCP connections that have been idle for this time, in seconds or as 5m, 1h ...; 0 for
    /// never
    #[arg(long, env = "TODANA_IDLE_TIMEOUT", default_value = "0", value_parser = idle_timeout, value_name = "SECONDS", help_heading = NETWORK)]
    pub(crate) idle_timeout: u32,
    /// Maximum number of connections that wait to be accepted
    #[arg(short = 'b', long, env = "TODANA_LISTEN_BACKLOG", default_value = "1024", value_parser = number::<u32>, help_heading = NETWORK)]
    pub(crate) listen_backlog: u32,
    /// Requests that are served for one connection before other connections get a turn
    #[arg(short = 'R', long, env = "TODANA_MAX_REQS_PER_EVENT", default_value = "20", value_parser = number::<u32>, help_heading = NETWORK)]
    pub(crate) max_reqs_per_event: u32,
    /// Interface of the system by which the server receives and sends
    #[arg(long, env = "TODANA_IO", default_value = "auto", value_enum, value_name = "INTERFACE", help_heading = NETWORK)]
    pub(crate) io: SocketInterface,
    /// Port of the admin page and of /metrics, /healthz and /readyz; 0 for none, -1 lets the system
    /// choose [default: 10000 above the TCP port; none with a Unix socket]
    #[arg(long, env = "TODANA_ADMIN_PORT", value_parser = port, help_heading = NETWORK, allow_negative_numbers = true)]
    pub(crate) admin_port: Option<i32>,
    /// Addresses of the admin pages, without TLS
    #[arg(long, env = "TODANA_ADMIN_LISTEN", default_value = "127.0.0.1", action = ArgAction::Append, value_delimiter = ',', value_name = "ADDRESS", help_heading = NETWORK)]
    pub(crate) admin_listen: Vec<String>,
    /// Ask the users of the admin page for the token in the first line of this file; needed if the
    /// page does not listen on loopback, or if clients have to log in
    #[arg(long, env = "TODANA_ADMIN_TOKEN_FILE", value_name = "FILE", help_heading = NETWORK)]
    pub(crate) admin_token_file: Option<PathBuf>,
    /// Let users of the admin page write backups to new folders of this directory (with
    /// --admin-write)
    #[arg(long, env = "TODANA_ADMIN_BACKUPS", value_name = "DIR", help_heading = NETWORK)]
    pub(crate) admin_backups: Option<PathBuf>,
    /// Let users of the admin page change and delete records, and start checkpoints
    #[arg(long, env = "TODANA_ADMIN_WRITE", help_heading = NETWORK)]
    pub(crate) admin_write: bool,
    /// Use TLS, with the certificate chain in this PEM file; SIGHUP and `refresh_certs` reload it
    #[arg(long, env = "TODANA_TLS_CERT", value_name = "FILE", help_heading = TLS)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM or DER, if the file of --tls-cert does not contain it
    #[arg(long, env = "TODANA_TLS_KEY", value_name = "FILE", help_heading = TLS)]
    pub(crate) tls_key: Option<PathBuf>,
    /// PEM file of the authorities that may sign client certificates
    #[arg(long, env = "TODANA_TLS_CA", value_name = "FILE", help_heading = TLS)]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Whether clients need a certificate [default: required if --tls-ca is given, otherwise off]
    #[arg(long, env = "TODANA_TLS_CLIENTS", value_name = "WHETHER", help_heading = TLS)]
    pub(crate) tls_clients: Option<ClientCertificates>,
    /// The oldest accepted version of TLS
    #[arg(long, env = "TODANA_TLS_MIN_VERSION", value_name = "VERSION", default_value = "1.2", help_heading = TLS)]
    pub(crate) tls_min_version: TlsVersion,
    /// Cipher suites of TLS 1.2 and 1.3, by OpenSSL's names and keywords; if no suite of TLS 1.3 is
    /// named, all of them stay enabled
    #[arg(long, env = "TODANA_TLS_CIPHERS", value_name = "LIST", help_heading = TLS)]
    pub(crate) tls_ciphers: Option<String>,
    /// Do not issue tickets by which clients resume a session
    #[arg(long, env = "TODANA_TLS_NO_RESUMPTION", help_heading = TLS)]
    pub(crate) tls_no_resumption: bool,
    /// Require a login with a user of --password-file: by SASL PLAIN in the binary protocol, as
    /// with -Y in the text protocol, by HTTP Basic in Kyoto Tycoon's protocol
    #[arg(short = 'S', long, env = "TODANA_ENABLE_SASL", help_heading = NETWORK)]
    pub(crate) enable_sasl: bool,
    /// File with the users for -S; `todana password` writes its lines
    #[arg(long, env = "TODANA_PASSWORD_FILE", value_name = "FILE", help_heading = NETWORK)]
    pub(crate) password_file: Option<PathBuf>,
    /// Require a login in the text protocol, or by HTTP Basic; the file has up to eight lines
    /// user:password
    #[arg(short = 'Y', long, env = "TODANA_AUTH_FILE", value_name = "FILE", help_heading = NETWORK)]
    pub(crate) auth_file: Option<PathBuf>,
}

/// Options of the process.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProcessArguments {
    /// Log more: notices with -v, also connections with -vv, also the --io in use with -vvv
    #[arg(short, long, env = "TODANA_VERBOSE", action = ArgAction::Count, help_heading = PROCESS)]
    pub(crate) verbose: u8,
    /// Write the process ID to this file
    #[arg(short = 'P', long, env = "TODANA_PIDFILE", value_name = "PATH", help_heading = PROCESS)]
    pub(crate) pidfile: Option<PathBuf>,
    /// Accept only this protocol: ascii or binary; auto accepts all, and detects them by the first
    /// byte
    #[arg(short = 'B', long, env = "TODANA_PROTOCOL", default_value = "auto", value_enum, hide_possible_values = true, value_name = "PROTOCOL", help_heading = PROCESS)]
    pub(crate) protocol: ServedProtocol,
    /// Refuse the `flush_all` command
    #[arg(short = 'F', long, env = "TODANA_DISABLE_FLUSH_ALL", help_heading = PROCESS)]
    pub(crate) disable_flush_all: bool,
    /// Format of log lines
    #[arg(long, env = "TODANA_LOG_FORMAT", default_value = "text", help_heading = PROCESS)]
    pub(crate) log_format: LogLineFormat,
}

impl NetworkArguments {
    /// Returns the options of the listeners, without UDP.
    pub(crate) fn listen_options(&self) -> Result<ListenOptions, String> {
        Ok(ListenOptions {
            addresses: if self.unix_socket.is_some() { Vec::new() } else { self.listen.clone() },
            port: u16::try_from(self.port).unwrap_or(0),
            unix_socket: self.unix_socket.clone(),
            unix_mask: self.unix_mask,
            backlog: self.listen_backlog,
            tls: self.tls()?,
            io: self.io.into(),
            ..ListenOptions::default()
        })
    }

    /// Returns the TLS options. The error names the wrong option.
    pub(crate) fn tls(&self) -> Result<Option<TlsOptions>, String> {
        let Some(chain) = self.tls_cert.clone() else {
            let orphan = [
                ("--tls-key", self.tls_key.is_some()),
                ("--tls-ca", self.tls_ca.is_some()),
                ("--tls-clients", self.tls_clients.is_some()),
            ];
            return match orphan.iter().find(|(_, given)| *given) {
                Some((name, _)) => Err(format!("{name}: needs --tls-cert")),
                None => Ok(None),
            };
        };
        let required = if self.tls_ca.is_some() { 2 } else { 0 };
        Ok(Some(TlsOptions {
            chain,
            key: self.tls_key.clone(),
            ca: self.tls_ca.clone(),
            verify_mode: self.tls_clients.map_or(required, |clients| clients as u8),
            only_1_3: self.tls_min_version == TlsVersion::V1_3,
            ciphers: self.tls_ciphers.clone(),
            resumption: !self.tls_no_resumption,
            session_cache: !self.tls_no_resumption,
            write_buffer_bytes: None,
        }))
    }

    /// Returns the kind of login. If the options are incomplete, fails instead of starting a server
    /// without logins.
    pub(crate) fn authentication(&self) -> Result<AuthenticationMode, String> {
        match (self.enable_sasl, self.password_file.clone(), self.auth_file.clone()) {
            (true, Some(path), None) => Ok(AuthenticationMode::Passwords(path)),
            (false, None, Some(path)) => Ok(AuthenticationMode::Text(path)),
            (false, None, None) => Ok(AuthenticationMode::None),
            (_, _, Some(_)) => {
                Err("-Y: cannot be combined with -S and --password-file; use one file of users".into())
            }
            (true, None, None) => Err("-S: needs a file of users; add --password-file FILE".into()),
            (false, Some(_), None) => Err("--password-file: needs -S".into()),
        }
    }

    /// Returns the options of the admin pages, for a server with this TCP port; `None` if it has no
    /// such port. The default port of the pages may be in use, which must not prevent the start of
    /// the server.
    pub(crate) fn admin(&self, tcp_port: Option<i32>) -> Option<AdminOptions> {
        let beside = |port: i32| match u16::try_from(port) {
            // The system chooses the port if it also chooses the TCP port, or if the sum is too
            // large.
            Err(_) | Ok(0) => 0,
            Ok(port) => port.checked_add(ADMIN_PORT_DISTANCE).unwrap_or(0),
        };
        let port = match self.admin_port {
            Some(0) => return None,
            Some(port) => u16::try_from(port).unwrap_or(0),
            None => beside(tcp_port?),
        };
        Some(AdminOptions {
            listen: self.admin_listen.clone(),
            port,
            token_file: self.admin_token_file.clone(),
            may_write: self.admin_write,
            backups: self.admin_backups.clone(),
            is_required: self.admin_port.is_some() || self.admin_token_file.is_some(),
        })
    }

    /// Returns the limits on clients.
    pub(crate) fn limits(&self) -> LimitOptions {
        LimitOptions {
            connections_max: self.conn_limit,
            connections_refused: !self.conn_limit_waits,
            idle_timeout_s: self.idle_timeout,
            requests_per_event: self.max_reqs_per_event,
            ..LimitOptions::default()
        }
    }
}

impl ProcessArguments {
    pub(crate) fn dialect(&self) -> DialectChoice {
        match self.protocol {
            ServedProtocol::Auto => DialectChoice::Auto,
            ServedProtocol::Ascii => DialectChoice::Text,
            ServedProtocol::Binary => DialectChoice::Binary,
        }
    }

    pub(crate) fn log_format(&self) -> LogFormat {
        match self.log_format {
            LogLineFormat::Text => LogFormat::Text,
            LogLineFormat::Json => LogFormat::Json,
        }
    }
}

/// The default port of the admin pages is the TCP port plus this number. The ports directly above
/// the TCP port often belong to other servers.
const ADMIN_PORT_DISTANCE: u16 = 10_000;
