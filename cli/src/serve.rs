//! `todana serve`: options from the command line, the environment and a file, and the banner.
//!
//! One table makes all of them: the fields of [`Arguments`]. A field `conn_limit` is the flag `--conn-limit`, the
//! variable `TODANA_CONN_LIMIT` and the key `conn-limit` of the file; `layers` puts them in their order.

use crate::amount::amount;
use crate::layers::{self, Said};
use crate::{Arguments as All, Failure, HELP_WIDTH_MAX, data};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, CommandFactory, FromArgMatches, ValueEnum};
use indicatif::ProgressBar;
use std::cell::RefCell;
use std::ffi::OsString;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use todana::update_log::Position;
use todana_server::{
    AdminOptions, Authentication, CheckpointOptions, Choice, Compression, DataPlace, Further, Kind,
    LogFormat, Name, Opened, Options, Sync, TlsOptions, init_logging,
};

pub(crate) const AFTER_HELP: &str = "\
Each option can also be a variable in the environment (--memory-limit as
TODANA_MEMORY_LIMIT) or a line in the file of --config (memory-limit = 1024);
a switch is true or false there. A flag counts before the environment, the
environment before the file, the file before the default.
`todana config show -- OPTIONS` prints each option and where it comes from.

Examples:
  todana serve                             64 MiB on 127.0.0.1:11211
  todana serve -m 1024 -l 10.0.0.5 -t 8    1 GiB, one address, eight threads
  todana serve -m 0                        as much as there is
  todana serve ./carts.hash                on disk, for more than memory holds
  todana serve mem:hash users=./users.tree two databases, the second in order
  TODANA_PORT=11311 todana serve
  todana serve --config /etc/todana.toml

In memcached's place: todana as memcached --help";

const CACHE: &str = "Memory";
const NETWORK: &str = "Network";
const TLS: &str = "TLS";
const PROCESS: &str = "Process";
const DATA: &str = "Data that stays";

/// What `serve` can be told.
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// The databases: mem:hash or mem:tree (in memory), PATH.hash or PATH.tree (on disk; .tree keeps an order), or one of Kyoto
    /// Cabinet's or Tokyo Cabinet's names; NAME=DB gives it a name. memcached's protocols use the first [default: mem:hash]
    #[arg(value_name = "DB", value_parser = database)]
    databases: Vec<Name>,
    /// The same for the environment and a file; the command line's own count before it
    #[arg(long, env = "TODANA_DATABASE", value_parser = database, action = ArgAction::Append, value_name = "DB", help_heading = DATA)]
    database: Vec<Name>,
    /// TCP port; 0 or -1 lets the system choose
    #[arg(short, long, env = "TODANA_PORT", default_value = "11211", value_parser = port, help_heading = NETWORK, allow_negative_numbers = true)]
    port: i32,
    /// UDP port; 0 for no UDP, -1 lets the system choose
    #[arg(short = 'U', long, env = "TODANA_UDP_PORT", default_value = "0", value_parser = port, help_heading = NETWORK, allow_negative_numbers = true)]
    udp_port: i32,
    /// All replies to one UDP request together, with k or m; senders can be forged, and then the replies hit a victim
    #[arg(long, env = "TODANA_UDP_REPLY_MAX", default_value = "16k", value_parser = size, value_name = "SIZE", help_heading = NETWORK)]
    udp_reply_max: u64,
    /// Addresses to listen on: host, host:port, `[v6]:port`, * or *:port for all; repeatable, or a list with commas. With
    /// TLS, `notls:` before one switches it off there, `mtls:` requires client certificates, `btls:` asks for none
    #[arg(short, long, env = "TODANA_LISTEN", default_value = "127.0.0.1", action = ArgAction::Append, value_delimiter = ',', value_name = "ADDRESS", help_heading = NETWORK)]
    listen: Vec<String>,
    /// Listen on this Unix socket instead of TCP
    #[arg(short = 's', long, env = "TODANA_UNIX_SOCKET", value_name = "PATH", help_heading = NETWORK)]
    unix_socket: Option<PathBuf>,
    /// Permissions of the Unix socket, octal
    #[arg(short = 'a', long, env = "TODANA_UNIX_MASK", default_value = "700", value_parser = octal, help_heading = NETWORK)]
    unix_mask: u32,
    /// Connections served at once
    #[arg(short = 'c', long, env = "TODANA_CONN_LIMIT", default_value = "1024", value_parser = number::<usize>, help_heading = NETWORK)]
    conn_limit: usize,
    /// Let connections over that number wait to be accepted, instead of refusing them
    #[arg(long, env = "TODANA_CONN_LIMIT_WAITS", help_heading = NETWORK)]
    conn_limit_waits: bool,
    /// Seconds after which an unused TCP connection is closed; 0 for never
    #[arg(long, env = "TODANA_IDLE_TIMEOUT", default_value = "0", value_parser = number::<u32>, value_name = "SECONDS", help_heading = NETWORK)]
    idle_timeout: u32,
    /// Connections that may wait to be accepted
    #[arg(short = 'b', long, env = "TODANA_LISTEN_BACKLOG", default_value = "1024", value_parser = number::<u32>, help_heading = NETWORK)]
    listen_backlog: u32,
    /// Requests of one connection in a row before others get a turn
    #[arg(short = 'R', long, env = "TODANA_MAX_REQS_PER_EVENT", default_value = "20", value_parser = number::<u32>, help_heading = NETWORK)]
    max_reqs_per_event: u32,
    /// Port of the pages /metrics, /healthz and /readyz; 0 for none, -1 lets the system choose [default: 10000 above the
    /// TCP port; none with a Unix socket]
    #[arg(long, env = "TODANA_ADMIN_PORT", value_parser = port, help_heading = NETWORK, allow_negative_numbers = true)]
    admin_port: Option<i32>,
    /// Addresses of these pages, without TLS
    #[arg(long, env = "TODANA_ADMIN_LISTEN", default_value = "127.0.0.1", action = ArgAction::Append, value_delimiter = ',', value_name = "ADDRESS", help_heading = NETWORK)]
    admin_listen: Vec<String>,
    /// Speak TLS, with the certificate chain in this PEM file; SIGHUP and `refresh_certs` read it again
    #[arg(long, env = "TODANA_TLS_CERT", value_name = "FILE", help_heading = TLS)]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM or DER, if it is not in the file of --tls-cert
    #[arg(long, env = "TODANA_TLS_KEY", value_name = "FILE", help_heading = TLS)]
    tls_key: Option<PathBuf>,
    /// PEM file of the authorities whose client certificates count
    #[arg(long, env = "TODANA_TLS_CA", value_name = "FILE", help_heading = TLS)]
    tls_ca: Option<PathBuf>,
    /// Client certificates [default: required, if there is --tls-ca]
    #[arg(long, env = "TODANA_TLS_CLIENTS", value_name = "WHETHER", help_heading = TLS)]
    tls_clients: Option<ClientCertificates>,
    /// The oldest version spoken
    #[arg(long, env = "TODANA_TLS_MIN_VERSION", value_name = "VERSION", default_value = "1.2", help_heading = TLS)]
    tls_min_version: TlsVersion,
    /// Cipher suites of TLS 1.2 and 1.3 by OpenSSL's names and words; those of 1.3 stay unless one is named
    #[arg(long, env = "TODANA_TLS_CIPHERS", value_name = "LIST", help_heading = TLS)]
    tls_ciphers: Option<String>,
    /// Give out no tickets by which clients resume a session
    #[arg(long, env = "TODANA_TLS_NO_RESUMPTION", help_heading = TLS)]
    tls_no_resumption: bool,
    /// Let in only who logs in with a password of --password-file: by SASL PLAIN over the binary protocol, as with -Y over
    /// the text protocol
    #[arg(short = 'S', long, env = "TODANA_ENABLE_SASL", help_heading = NETWORK)]
    enable_sasl: bool,
    /// Users for -S: lines that `todana password` writes
    #[arg(long, env = "TODANA_PASSWORD_FILE", value_name = "FILE", help_heading = NETWORK)]
    password_file: Option<PathBuf>,
    /// Let clients in by a login over the text protocol only; the file has up to eight lines user:password
    #[arg(short = 'Y', long, env = "TODANA_AUTH_FILE", value_name = "FILE", help_heading = NETWORK)]
    auth_file: Option<PathBuf>,
    /// Memory of the whole process in MiB; 0 for no limit. Databases in memory share it; what those on disk cache comes besides
    #[arg(short, long, env = "TODANA_MEMORY_LIMIT", default_value = "64", value_parser = number::<u64>, value_name = "MIB", help_heading = CACHE)]
    memory_limit: u64,
    /// Refuse writes at the memory limit instead of evicting
    #[arg(short = 'M', long, env = "TODANA_DISABLE_EVICTIONS", help_heading = CACHE)]
    disable_evictions: bool,
    /// The largest item, 1k to 1g; bytes without k, m or g
    #[arg(short = 'I', long, env = "TODANA_MAX_ITEM_SIZE", default_value = "1m", value_parser = size, value_name = "SIZE", help_heading = CACHE)]
    max_item_size: u64,
    /// Keep the data in this directory, made if need be, and read it back at the start [default: it is gone with the process]
    #[arg(long, env = "TODANA_DATA_DIR", value_name = "DIR", help_heading = DATA)]
    data_dir: Option<PathBuf>,
    /// When a write is on disk: `always` before it is answered; a number, at most so many milliseconds later, which is what
    /// a crash can lose; `never`, when the kernel likes
    #[arg(long, env = "TODANA_SYNC", default_value = "1000", value_parser = sync, value_name = "WHEN", help_heading = DATA)]
    sync: Sync,
    /// Begin a new segment of the update log when the last one has grown to this, 4k or more
    #[arg(long, env = "TODANA_LOG_SEGMENT_SIZE", default_value = "64m", value_parser = some_size, value_name = "SIZE", help_heading = DATA)]
    log_segment_size: u64,
    /// Or when it is so many seconds old
    #[arg(long, env = "TODANA_LOG_SEGMENT_AGE", default_value = "86400", value_parser = seconds, value_name = "SECONDS", help_heading = DATA)]
    log_segment_age: u64,
    /// Keep at most so much of the update log that no checkpoint needs any longer, to restore a backup to a point in time
    /// [default: nothing, unless there is --log-keep-age]
    #[arg(long, env = "TODANA_LOG_KEEP_SIZE", value_parser = size, value_name = "SIZE", help_heading = DATA)]
    log_keep_size: Option<u64>,
    /// And nothing of it that is older than so many seconds, 1 or more, when a checkpoint is made [default: however old, if
    /// there is --log-keep-size]
    #[arg(long, env = "TODANA_LOG_KEEP_AGE", value_parser = seconds, value_name = "SECONDS", help_heading = DATA)]
    log_keep_age: Option<u64>,
    /// Make a checkpoint when the update log has grown since the last one by this and by that one's size
    #[arg(long, env = "TODANA_CHECKPOINT_LOG_SIZE", default_value = "64m", value_parser = size, value_name = "SIZE", help_heading = DATA)]
    checkpoint_log_size: u64,
    /// How checkpoints are kept: none, zstd, or zstd:1 to zstd:22, smaller and slower
    #[arg(long, env = "TODANA_CHECKPOINT_COMPRESSION", default_value = "zstd:1", value_parser = compression, value_name = "HOW", help_heading = DATA)]
    checkpoint_compression: Compression,
    /// Worker threads
    #[arg(short, long, env = "TODANA_THREADS", default_value = "4", value_parser = number::<usize>, help_heading = PROCESS)]
    threads: usize,
    /// Log more: -v notices, -vv connections too
    #[arg(short, long, env = "TODANA_VERBOSE", action = ArgAction::Count, help_heading = PROCESS)]
    verbose: u8,
    /// Write the process id here
    #[arg(short = 'P', long, env = "TODANA_PIDFILE", value_name = "PATH", help_heading = PROCESS)]
    pidfile: Option<PathBuf>,
    /// Allow the `shutdown` command
    #[arg(short = 'A', long, env = "TODANA_ENABLE_SHUTDOWN", help_heading = PROCESS)]
    enable_shutdown: bool,
    /// Speak only this protocol: auto (a connection's first byte tells), ascii or binary
    #[arg(short = 'B', long, env = "TODANA_PROTOCOL", default_value = "auto", value_enum, hide_possible_values = true, value_name = "PROTOCOL", help_heading = PROCESS)]
    protocol: Protocol,
    /// Refuse the `flush_all` command
    #[arg(short = 'F', long, env = "TODANA_DISABLE_FLUSH_ALL", help_heading = PROCESS)]
    disable_flush_all: bool,
    /// More options, a list with commas: negative_exptime=sliding (a negative time to live counts from the last access),
    /// debug_commands (takes `debugtime`), emulate_full (every store fails for want of memory)
    #[arg(short = 'o', long, env = "TODANA_EXTENDED", action = ArgAction::Append, value_delimiter = ',', value_enum, value_name = "WORDS", hide_possible_values = true, help_heading = PROCESS)]
    extended: Vec<Extended>,
    /// Refuse lists of keys: `lru_crawler metadump`, `stats cachedump`, `stats detail`
    #[arg(short = 'X', long, env = "TODANA_DISABLE_DUMPING", help_heading = PROCESS)]
    disable_dumping: bool,
    /// Refuse the `watch` command
    #[arg(short = 'W', long, env = "TODANA_DISABLE_WATCH", help_heading = PROCESS)]
    disable_watch: bool,
    /// Count reads and stores by the prefix of the key up to this character (`stats detail`)
    #[arg(short = 'D', long, env = "TODANA_PREFIX_DELIMITER", value_parser = delimiter, value_name = "CHARACTER", help_heading = PROCESS)]
    prefix_delimiter: Option<u8>,
    /// Count records by size when `stats sizes` asks
    #[arg(long, env = "TODANA_TRACK_SIZES", help_heading = PROCESS)]
    track_sizes: bool,
    /// How log lines look
    #[arg(long, env = "TODANA_LOG_FORMAT", default_value = "text", help_heading = PROCESS)]
    log_format: Format,
    /// Read options from this TOML file
    #[arg(long, env = "TODANA_CONFIG", value_name = "FILE", help_heading = PROCESS)]
    config: Option<PathBuf>,
}

/// Whether clients show certificates.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ClientCertificates {
    /// They are not asked for any
    Off,
    /// One that is shown must be right
    Optional,
    /// All must show one
    Required,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TlsVersion {
    #[value(name = "1.2")]
    V1_2,
    #[value(name = "1.3")]
    V1_3,
}

/// The words of `-o` that change anything; under memcached's name all of its words are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Extended {
    #[value(name = "negative_exptime=sliding")]
    NegativeIsSliding,
    #[value(name = "negative_exptime=expired")]
    NegativeIsExpired,
    #[value(name = "debug_commands")]
    DebugCommands,
    #[value(name = "emulate_full")]
    EmulateFull,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Protocol {
    Auto,
    Ascii,
    Binary,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// One line of text
    Text,
    /// One JSON object a line
    Json,
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    // Deployment tools pass `-m 8192` as one word, which leaves the blank in the value.
    let text = text.trim();
    text.parse().map_err(|_| match text.parse::<i128>() {
        Ok(_) => "out of range".into(),
        Err(_) => "not a whole number".into(),
    })
}

fn port(text: &str) -> Result<i32, String> {
    match number::<i32>(text)? {
        port @ -1..=65535 => Ok(port),
        port => Err(format!("{port} is not -1 to 65535")),
    }
}

/// How far the port of the admin pages is from the TCP port unless given: the next ports are those of further servers
/// where there are several.
const ADMIN_PORT_DISTANCE: u16 = 10_000;

/// Where the admin pages are. What nobody asked for must not keep the server from starting.
fn admin(arguments: &Arguments) -> Option<AdminOptions> {
    let beside = |port: i32| match u16::try_from(port) {
        // The system chooses both, or there is no room above.
        Err(_) | Ok(0) => 0,
        Ok(port) => port.checked_add(ADMIN_PORT_DISTANCE).unwrap_or(0),
    };
    let port = match arguments.admin_port {
        Some(0) => return None,
        Some(port) => u16::try_from(port).unwrap_or(0),
        None if arguments.unix_socket.is_some() => return None,
        None => beside(arguments.port),
    };
    Some(AdminOptions {
        listen: arguments.admin_listen.clone(),
        port,
        is_required: arguments.admin_port.is_some(),
    })
}

/// When a write is on disk, unless that is said.
pub(crate) const SYNC_DEFAULT: Sync = Sync::Every(Duration::from_secs(1));

pub(crate) fn sync(text: &str) -> Result<Sync, String> {
    match text.trim() {
        "always" => Ok(Sync::Always),
        "never" => Ok(Sync::Never),
        text => match text.parse() {
            Ok(ms @ 1..=3_600_000) => Ok(Sync::Every(Duration::from_millis(ms))),
            _ => Err("not always, never or 1 to 3600000 milliseconds".into()),
        },
    }
}

fn database(text: &str) -> Result<Name, String> {
    Name::parse(text).map_err(|error| error.to_string())
}

fn seconds(text: &str) -> Result<u64, String> {
    number(text).and_then(|seconds| if seconds == 0 { Err("at least 1".into()) } else { Ok(seconds) })
}

/// Smaller files than that would be all header and name.
fn some_size(text: &str) -> Result<u64, String> {
    size(text).and_then(|size| if size < 4096 { Err("at least 4k".into()) } else { Ok(size) })
}

fn compression(text: &str) -> Result<Compression, String> {
    let wrong = || "not none, zstd or zstd:1 to zstd:22".to_string();
    match text.trim().split_once(':') {
        None if text.trim() == "none" => Ok(Compression::None),
        None if text.trim() == "zstd" => Ok(Compression::Zstd(1)),
        Some(("zstd", level)) => {
            let level = level.parse().ok().filter(|level| (1..=22).contains(level));
            level.map(Compression::Zstd).ok_or_else(wrong)
        }
        _ => Err(wrong()),
    }
}

fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text.trim(), 8).map_err(|_| "not an octal number".into())
}

fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        &[delimiter] if delimiter.is_ascii_graphic() => Ok(delimiter),
        _ => Err("not a single character that a key can have".into()),
    }
}

pub(crate) fn size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (digits, unit) = match text.chars().last().map(|last| last.to_ascii_lowercase()) {
        Some('k') => (&text[..text.len() - 1], 1 << 10),
        Some('m') => (&text[..text.len() - 1], 1 << 20),
        Some('g') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let number: u64 = digits.parse().map_err(|_| "not a number with k, m or g behind it")?;
    number.checked_mul(unit).ok_or_else(|| "too large".into())
}

fn serve_command() -> clap::Command {
    let all = All::command();
    let serve =
        all.get_subcommands().find(|command| command.get_name() == "serve").expect("serve is a command");
    serve.clone().args_override_self(true).max_term_width(HELP_WIDTH_MAX).bin_name("todana serve")
}

/// The options in force, and where each comes from.
pub(crate) struct Effective {
    pub(crate) options: Options,
    log_format: LogFormat,
    /// Name, value, origin.
    pub(crate) origins: Vec<(String, String, &'static str)>,
}

/// Reads command line, environment and file. `words` is a whole command line of `serve`, the program's name first.
pub(crate) fn effective(words: impl IntoIterator<Item = OsString>) -> Result<Effective, Failure> {
    // The program's name and `serve` are one name to the command.
    let words: Vec<OsString> = words.into_iter().skip(1).collect();
    let first = layers::flags_only(serve_command()).try_get_matches_from(&words).unwrap_or_else(|error| {
        if error.kind() == ErrorKind::DisplayHelp {
            // The help shows the variables.
            serve_command().get_matches_from(&words);
        }
        error.exit()
    });
    let file = layers::file(&serve_command(), first.get_one("config"));
    let (command, said) = layers::beneath(serve_command(), file.as_deref())?;
    let matches = command.clone().try_get_matches_from(&words).map_err(usage)?;
    let origins = origins(&command, &matches, &said);
    let arguments = Arguments::from_arg_matches(&matches).map_err(usage)?;
    let (options, log_format) = arguments.checked().map_err(|what| {
        // Wrong by itself, or only beside other values?
        let is_culprit = |said: &&Said| checked_alone(said).is_err_and(|alone| alone == what);
        match said.iter().find(is_culprit) {
            Some(said) => Failure::usage(format!("{}: {what}", said.place)),
            None => Failure::usage(what),
        }
    })?;
    let is_kept = |one: &Further| one.data.is_some() || one.name.kind == Kind::DiskHash;
    if !options.databases().iter().any(is_kept) {
        nothing_is_kept(&origins, &said)?;
    }
    Ok(Effective { options, log_format, origins })
}

/// Fails if something is said of how data is kept, where none is.
fn nothing_is_kept(origins: &[(String, String, &'static str)], said: &[Said]) -> Result<(), Failure> {
    let command = serve_command();
    for (name, value, origin) in origins {
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(name));
        let Some(argument) = argument.filter(|argument| argument.get_help_heading() == Some(DATA)) else {
            continue;
        };
        // The default may stand in a file that `config show` has printed.
        let is_default = match argument.get_default_values() {
            [default] => default.to_str() == Some(value.trim()),
            _ => value.is_empty(),
        };
        if ["data-dir", "database"].contains(&name.as_str())
            || *origin == "default"
            || (is_default && *origin != "flag")
        {
            continue;
        }
        let place = said.iter().find(|said| said.name == *name && *origin != "flag");
        let place = place.map_or_else(|| format!("--{name}"), |said| said.place.clone());
        return Err(Failure::usage(format!(
            "{place}: nothing is kept without --data-dir DIR or a database on disk"
        )));
    }
    Ok(())
}

fn usage(error: clap::Error) -> Failure {
    let text = error.to_string();
    Failure::usage(text.strip_prefix("error: ").unwrap_or(&text))
}

/// What is wrong with a value if nothing else is said.
fn checked_alone(said: &Said) -> Result<(), String> {
    let words = std::iter::once(OsString::from("serve")).chain(said.flags.iter().cloned());
    let matches = layers::flags_only(serve_command()).try_get_matches_from(words);
    let arguments = matches.and_then(|matches| Arguments::from_arg_matches(&matches));
    arguments.map_err(|error| error.to_string())?.checked().map(|_| ())
}

impl Arguments {
    /// The server's options. The error says which cannot be.
    fn checked(self) -> Result<(Options, LogFormat), String> {
        let tls = self.tls()?;
        let (database, data, further) = self.databases()?;
        let sync = self.sync;
        let admin = admin(&self);
        let listen = if self.unix_socket.is_some() { Vec::new() } else { self.listen };
        let negative = [Extended::NegativeIsSliding, Extended::NegativeIsExpired];
        let mut negative = self.extended.iter().copied().filter(|word| negative.contains(word));
        let options = Options {
            listen,
            port: u16::try_from(self.port).unwrap_or(0),
            udp_port: match self.udp_port {
                0 => None,
                port => Some(u16::try_from(port).unwrap_or(0)),
            },
            udp_reply_max: usize::try_from(self.udp_reply_max).unwrap_or(usize::MAX),
            unix_socket: self.unix_socket,
            unix_mask: self.unix_mask,
            memory_limit_mib: self.memory_limit,
            refuse_when_full: self.disable_evictions,
            connections_max: self.conn_limit,
            connections_refused: !self.conn_limit_waits,
            idle_timeout_s: self.idle_timeout,
            threads: self.threads,
            item_size_max: self.max_item_size,
            verbosity: self.verbose,
            pid_file: self.pidfile,
            listen_backlog: self.listen_backlog,
            requests_per_event: self.max_reqs_per_event,
            flush_allowed: !self.disable_flush_all,
            shutdown_allowed: self.enable_shutdown,
            protocol: match self.protocol {
                Protocol::Auto => Choice::Auto,
                Protocol::Ascii => Choice::Text,
                Protocol::Binary => Choice::Binary,
            },
            tls,
            admin,
            negative_is_sliding: negative.next_back() == Some(Extended::NegativeIsSliding),
            debug_commands: self.extended.contains(&Extended::DebugCommands),
            emulate_full: self.extended.contains(&Extended::EmulateFull),
            dump_allowed: !self.disable_dumping,
            watch_allowed: !self.disable_watch,
            prefix_delimiter: self.prefix_delimiter,
            track_sizes: self.track_sizes,
            data,
            database,
            sync,
            further,
            authentication: authentication(self.enable_sasl, self.password_file, self.auth_file)?,
            ..Options::default()
        };
        options.validate().map_err(|error| error.to_string())?;
        let log_format = match self.log_format {
            Format::Text => LogFormat::Text,
            Format::Json => LogFormat::Json,
        };
        Ok((options, log_format))
    }

    /// The first database and the place of its data, and the others with theirs.
    #[allow(clippy::type_complexity, reason = "three fields of the server's options")]
    fn databases(&self) -> Result<(Option<Name>, Option<DataPlace>, Vec<Further>), String> {
        let mut names = if self.databases.is_empty() { &self.database } else { &self.databases }.iter();
        let mut directory = self.data_dir.clone();
        let mut is_first_in_memory = true;
        let mut place = |name: &Name| match name.kind {
            Kind::DiskHash => Ok(None),
            Kind::DiskTree => Ok(name.path.clone().map(|path| self.place(path))),
            Kind::MemHash | Kind::MemTree => {
                let Some(directory) = &directory else { return Ok(None) };
                if std::mem::take(&mut is_first_in_memory) {
                    return Ok(Some(self.place(directory.clone())));
                }
                // Beside what lies in a data directory.
                match name.alias.as_deref() {
                    Some(alias)
                        if !["log", "checkpoints", "lock", "identity", ".", ".."].contains(&alias) =>
                    {
                        Ok(Some(self.place(directory.join(alias))))
                    }
                    Some(alias) => Err(format!("database \"{name}\": {alias} is taken in a data directory")),
                    None => Err(format!(
                        "database \"{name}\": with --data-dir, each database in memory but the first needs a name of its own, as in NAME={name}"
                    )),
                }
            }
        };
        let Some(first) = names.next() else {
            return Ok((None, directory.take().map(|directory| self.place(directory)), Vec::new()));
        };
        let data = place(first)?;
        let further = names.map(|name| Ok(Further { name: name.clone(), data: place(name)? }));
        let further = further.collect::<Result<Vec<Further>, String>>()?;
        if self.data_dir.is_some() && is_first_in_memory {
            return Err(format!(
                "database \"{first}\" keeps its data at its own path: --data-dir is for those in memory"
            ));
        }
        Ok((Some(first.clone()), data, further))
    }

    fn place(&self, directory: PathBuf) -> DataPlace {
        // What is not said does not limit the other, and where nothing is said nothing is kept.
        let all = if self.log_keep_age.is_some() { u64::MAX } else { 0 };
        let log_kept_len = self.log_keep_size.unwrap_or(all);
        let log_kept_age = self.log_keep_age.map_or(Duration::MAX, Duration::from_secs);
        let checkpoints = CheckpointOptions {
            compression: self.checkpoint_compression,
            log_len_min: self.checkpoint_log_size,
            log_kept_len,
            log_kept_age,
            ..CheckpointOptions::default()
        };
        DataPlace {
            segment_len: self.log_segment_size,
            segment_age: Duration::from_secs(self.log_segment_age),
            checkpoints,
            ..DataPlace::new(directory, self.sync)
        }
    }

    fn tls(&self) -> Result<Option<TlsOptions>, String> {
        let Some(chain) = self.tls_cert.clone() else {
            let orphan = [
                ("--tls-key", self.tls_key.is_some()),
                ("--tls-ca", self.tls_ca.is_some()),
                ("--tls-clients", self.tls_clients.is_some()),
            ];
            return match orphan.iter().find(|(_, given)| *given) {
                Some((name, _)) => Err(format!("{name} means nothing without --tls-cert")),
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
        }))
    }
}

/// How clients say who they are. Whoever asks for half of it does not get an open server.
fn authentication(
    sasl: bool,
    passwords: Option<PathBuf>,
    tokens: Option<PathBuf>,
) -> Result<Authentication, String> {
    match (sasl, passwords, tokens) {
        (true, Some(path), None) => Ok(Authentication::Passwords(path)),
        (false, None, Some(path)) => Ok(Authentication::Text(path)),
        (false, None, None) => Ok(Authentication::None),
        (_, _, Some(_)) => Err("clients log in by the users of one file, of -S or of -Y, not of both".into()),
        (true, None, None) => Err("logins (-S) need a file of users (--password-file)".into()),
        (false, Some(_), None) => Err("--password-file is of use only with -S".into()),
    }
}

fn origins(
    command: &clap::Command,
    matches: &ArgMatches,
    said: &[Said],
) -> Vec<(String, String, &'static str)> {
    let mut origins = Vec::new();
    for argument in command.get_arguments() {
        let (mut id, Some(long)) = (argument.get_id().as_str(), argument.get_long()) else { continue };
        if long == "help" {
            continue;
        }
        // Those of the command line, which has a place of their own for them, count before all others.
        if long == "database" && matches.value_source("databases") == Some(ValueSource::CommandLine) {
            id = "databases";
        }
        let origin = match matches.value_source(id) {
            Some(ValueSource::CommandLine) => "flag",
            _ => said.iter().find(|said| said.name == long).map_or("default", |said| said.origin),
        };
        let raw = matches.get_raw(id).map(|values| {
            values.map(|value| value.to_string_lossy().into_owned()).collect::<Vec<_>>().join(",")
        });
        let value = match argument.get_action() {
            ArgAction::Count => matches.get_count(id).to_string(),
            ArgAction::SetTrue => matches.get_flag(id).to_string(),
            _ => raw.unwrap_or_default(),
        };
        origins.push((long.to_string(), value, origin));
    }
    origins
}

/// Runs the server.
pub(crate) fn run(words: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let effective = effective(words)?;
    init_logging(effective.log_format, effective.options.verbosity);
    let banner = Banner::of(&effective.options);
    // Made only when there is something to read back.
    let bar = RefCell::new(None);
    let mut progress = |step: todana_server::Progress| {
        let mut bar = bar.borrow_mut();
        let bar = bar.get_or_insert_with(|| {
            data::progress(Some(0), "reading {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}")
        });
        bar.set_length(step.done + step.remaining);
        bar.set_position(step.done);
    };
    let clear = || bar.take().iter().for_each(ProgressBar::finish_and_clear);
    let outcome = todana_server::serve(effective.options, &mut progress, |server, opened| {
        clear();
        banner.print(server.listening_on(), server.admin_addresses(), opened)
    });
    clear();
    outcome.map_err(|error| Failure::trouble(error.to_string()))
}

/// What `--sync` promises.
fn promise(sync: Sync) -> String {
    match sync {
        Sync::Always => "--sync always: writes are on disk before they are answered".to_string(),
        Sync::Every(interval) => {
            let ms = interval.as_millis();
            format!("--sync {ms}: writes are on disk within {ms} ms, which is what a crash can lose")
        }
        Sync::Never => "--sync never: writes are on disk when the kernel likes".to_string(),
    }
}

/// What was read back.
fn found(opened: &Opened) -> String {
    if opened.checkpoint.is_none() && opened.end == Position(0) {
        return "nothing was there, a new database begins".into();
    }
    let checkpoint = match &opened.checkpoint {
        Some(checkpoint) => format!("a checkpoint of {}, ", amount(checkpoint.records, "record")),
        None => String::new(),
    };
    let (entries, seconds) = (opened.entries, opened.took.as_secs_f64());
    format!("read back: {checkpoint}{} of the log, in {seconds:.1} s", amount(entries, "entry"))
}

/// The three lines at the start: what it is, where it listens, how to try it. Where data is kept a fourth tells what was there.
struct Banner {
    is_unix: bool,
    /// What clients can check the server by.
    certificate: Option<PathBuf>,
    /// They must show one themselves.
    wants_certificate: bool,
    wants_login: bool,
    is_binary: bool,
    memory: String,
    threads: usize,
    data: Option<DataPlace>,
    /// The names of several databases, or of one that is not the usual.
    databases: Vec<Further>,
    sync: Sync,
}

impl Banner {
    fn of(options: &Options) -> Banner {
        let memory = match (options.memory_limit_mib, options.refuse_when_full) {
            (0, _) => "no memory limit".to_string(),
            (mib, false) => format!("{mib} MiB, evicting beyond"),
            (mib, true) => format!("{mib} MiB, refusing beyond"),
        };
        let certificate = options.tls.as_ref().map(|tls| tls.chain.clone());
        Banner {
            is_unix: options.unix_socket.is_some(),
            certificate,
            wants_certificate: options.tls.as_ref().is_some_and(|tls| tls.verify_mode >= 2),
            wants_login: options.authentication != Authentication::None,
            is_binary: options.protocol == Choice::Binary,
            memory,
            threads: options.threads,
            data: options.data.clone(),
            databases: if options.database.is_some() { options.databases() } else { Vec::new() },
            sync: options.sync,
        }
    }

    /// A line for each database, where they were named.
    fn databases(&self) -> String {
        let is_one = self.databases.len() == 1;
        let line = |(number, Further { name, data }): (usize, &Further)| {
            let place = match (name.kind, data) {
                (Kind::DiskHash, _) => format!("; {}", promise(self.sync)),
                // It stands in a line of its own.
                (_, Some(_)) if number == 0 => String::new(),
                (_, Some(place)) => format!(", in {}; {}", place.directory.display(), promise(place.sync)),
                (_, None) => ", gone with the process".to_string(),
            };
            let number = if is_one { String::new() } else { format!(" {number}") };
            let alias = name.alias.as_ref().map_or_else(String::new, |alias| format!(" ({alias})"));
            let shown = name.to_string();
            let shown =
                shown.strip_prefix(&format!("{}=", name.alias.as_deref().unwrap_or("\0"))).unwrap_or(&shown);
            let kind =
                if shown == name.kind.word() { String::new() } else { format!(", {}", name.kind.word()) };
            format!("database{number}{alias}: {shown}{kind}{place}\n")
        };
        self.databases.iter().enumerate().map(line).collect()
    }

    fn print(&self, listening_on: &[String], admin: &[SocketAddr], opened: Option<&Opened>) {
        let persistence =
            if self.databases.iter().any(|one| one.name.kind == Kind::DiskHash) || self.data.is_some() {
                "on"
            } else {
                "off (--data-dir DIR)"
            };
        let data = match (&self.data, opened) {
            (Some(place), Some(opened)) => {
                format!("data: {}: {}; {}\n", place.directory.display(), found(opened), promise(place.sync))
            }
            _ => String::new(),
        };
        let databases = self.databases();
        let metrics =
            admin.first().map_or_else(String::new, |place| format!(", metrics: http://{place}/metrics"));
        let text = format!(
            "todana {}: memcached's protocol, {}, {} threads, persistence: {persistence}{metrics}\n\
             listening on {}\n\
             try: {}\n{databases}{data}",
            env!("CARGO_PKG_VERSION"),
            self.memory,
            self.threads,
            listening_on.join(", "),
            self.example(listening_on.first().map_or("", String::as_str)),
        );
        // A closed standard output (daemons) is no reason not to serve.
        let mut out = std::io::stdout();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    /// How to try it at this place. What only the client knows is in capitals.
    fn example(&self, place: &str) -> String {
        if self.is_binary {
            return "a client of the binary protocol; the commands of todana itself speak the text protocol"
                .into();
        }
        // A relative path looks like the name of a host.
        let mut server = if self.is_unix { format!("unix:{place}") } else { place.to_string() };
        if let (true, Some(certificate)) = (place.starts_with("todanas://"), &self.certificate) {
            server = format!("{server} --tls-ca {}", certificate.display());
            if self.wants_certificate {
                server += " --tls-cert CERTIFICATE --tls-key KEY";
            }
        }
        if self.wants_login {
            server += " --user NAME --password-file FILE";
        }
        format!("todana set hello world -S {server} && todana get hello -S {server}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_their_units() {
        for (text, value) in [("1024", 1024), ("2k", 2048), ("1m", 1 << 20), (" 1G", 1 << 30)] {
            assert_eq!(size(text), Ok(value));
        }
        for text in ["", "m", "1t", "-1", "99999999999999999999k"] {
            assert!(size(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_is_kept_of_the_log_is_limited_by_what_is_said() {
        let kept = |line: &str| {
            let words = ["todana".to_string(), "serve".into(), "--data-dir".into(), "/d".into()].into_iter();
            let words = words.chain(line.split_whitespace().map(String::from)).map(OsString::from);
            let place = effective(words).map_err(|_| line).unwrap().options.data.unwrap();
            (place.checkpoints.log_kept_len, place.checkpoints.log_kept_age)
        };
        assert_eq!(kept(""), (0, Duration::MAX));
        assert_eq!(kept("--log-keep-size 1g"), (1 << 30, Duration::MAX));
        assert_eq!(kept("--log-keep-age 60"), (u64::MAX, Duration::from_secs(60)));
        assert_eq!(kept("--log-keep-size 1k --log-keep-age 60"), (1 << 10, Duration::from_secs(60)));
        assert_eq!(kept("--log-keep-size 0 --log-keep-age 60"), (0, Duration::from_secs(60)));
    }

    #[test]
    fn compression_has_its_levels() {
        assert_eq!(compression("none"), Ok(Compression::None));
        assert_eq!(compression("zstd"), Ok(Compression::Zstd(1)));
        assert_eq!(compression(" zstd:19"), Ok(Compression::Zstd(19)));
        for text in ["", "zstd:", "zstd:0", "zstd:23", "gzip", "none:1"] {
            assert!(compression(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_wrong_number_is_told_from_one_out_of_range() {
        assert_eq!(number::<u64>(" 8192"), Ok(8192));
        for text in ["", "1g", "1.5", "x"] {
            assert_eq!(number::<u64>(text), Err("not a whole number".into()), "{text:?}");
        }
        assert_eq!(number::<u64>("-3"), Err("out of range".into()));
        assert_eq!(number::<u32>("4294967296"), Err("out of range".into()));
    }

    #[test]
    fn the_admin_pages_stand_beside_the_port_and_are_no_condition_unless_asked_for() {
        let admin = |line: &str| {
            let words = ["todana".to_string(), "serve".into()].into_iter();
            let words = words.chain(line.split_whitespace().map(String::from)).map(OsString::from);
            let found = effective(words).map_err(|_| line).unwrap().options.admin;
            found.map(|admin| (admin.port, admin.listen.join(","), admin.is_required))
        };
        let local = || "127.0.0.1".to_string();
        assert_eq!(admin(""), Some((21211, local(), false)));
        assert_eq!(admin("-p 7000 -l *"), Some((17000, local(), false)));
        assert_eq!(admin("-p 60000"), Some((0, local(), false)));
        assert_eq!(admin("-p -1"), Some((0, local(), false)));
        assert_eq!(admin("-s /run/s"), None);
        assert_eq!(admin("-s /run/s --admin-port 9"), Some((9, local(), true)));
        assert_eq!(admin("--admin-port -1"), Some((0, local(), true)));
        assert_eq!(admin("--admin-port 0"), None);
        assert_eq!(
            admin("--admin-listen ::1,10.0.0.1:7 --admin-port 9"),
            Some((9, "::1,10.0.0.1:7".into(), true))
        );
    }
}
