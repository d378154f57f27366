//! `todana serve`: its options on the command line, in the environment and in a file.
//!
//! The fields of [`ServeArguments`] define all three. For example, the field `conn_limit` defines
//! the option `--conn-limit`, the variable `TODANA_CONN_LIMIT` and the key `conn-limit` of the
//! file. The module `option_sources` decides which of them takes precedence.

mod folders;
mod native_master;
mod options;
mod replication;
mod shared_arguments;
mod start_banner;
mod todana_program;
mod values;

pub(crate) use shared_arguments::{NetworkArguments, PROCESS, ProcessArguments};
pub(crate) use values::{RecordCompression, SYNC_DEFAULT, SocketInterface, mebibytes, number, size, sync};

use crate::option_sources::{self, ConfiguredValue};
use crate::{CommandFailure, HELP_WIDTH_MAX, ProgramArguments, serving, suggestions};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, CommandFactory, FromArgMatches};
use native_master::NativeReplicationArguments;
use replication::NamedMaster;
use shared_arguments::NETWORK;
use std::ffi::OsString;
use std::path::PathBuf;
use todana_program::TodanaProgram;
use todana_server::{
    CheckpointCompression, CollectorAddress, DatabaseName, DatabaseSpec, DatabaseStorage, LogFormat,
    ServerOptions, SyncPolicy, init_logging_with_notices,
};
use values::{
    EvictedFor, ExtendedWord, SnapshotPacking, compression, database, delimiter, port, seconds, some_size,
};

pub(crate) const AFTER_HELP: &str = "\
Each option can also be an environment variable (--memory-limit as
TODANA_MEMORY_LIMIT) or a line of the --config file (memory-limit = 1024); a
switch is true or false there. Precedence: command line, environment, config
file, default. `todana config show OPTIONS` prints each option and its source.

Examples:
  todana serve                             64 MiB on 127.0.0.1:11211
  todana serve -m 1024 -l 10.0.0.5 -t 8    1 GiB, one address, eight threads
  todana serve -m 0                        no memory limit
  todana serve ./carts.hash                on disk, for data larger than memory
  todana serve mem:hash users=./users.tree two databases, the second one ordered
  TODANA_PORT=11311 todana serve
  todana serve --config /etc/todana.toml

To replace memcached: todana as memcached --help";

const CACHE: &str = "Memory";
const REPLICATION: &str = "Replication";
const KYOTO: &str = "For Kyoto Tycoon's clients";
const DATA: &str = "Persistence";

/// The arguments of `todana serve`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServeArguments {
    /// The databases: mem:hash, mem:tree, mem:table or mem:fixed (in memory), PATH.hash, PATH.tree,
    /// PATH.table or PATH.fixed (on disk), or a name of Kyoto Cabinet or Tokyo Cabinet. A tree is
    /// ordered, a table has rows of columns, and fixed has numbers as keys. NAME=DB gives a
    /// database a name. memcached's protocols use the first database [default: mem:hash]
    #[arg(value_name = "DB", value_parser = database)]
    databases: Vec<DatabaseName>,
    /// A database, for the environment and the file. Databases on the command line replace those of
    /// this option
    #[arg(long, env = "TODANA_DATABASE", value_parser = database, action = ArgAction::Append, value_name = "DB", help_heading = DATA)]
    database: Vec<DatabaseName>,
    #[command(flatten)]
    network: NetworkArguments,
    /// UDP port; 0 for no UDP, -1 lets the system choose
    #[arg(short = 'U', long, env = "TODANA_UDP_PORT", default_value = "0", value_parser = port, help_heading = NETWORK, allow_negative_numbers = true)]
    udp_port: i32,
    /// Most bytes of all replies to one UDP request, with k or m. Protects others: a request with a
    /// forged address directs its replies at a victim
    #[arg(long, env = "TODANA_UDP_REPLY_MAX", default_value = "16k", value_parser = size, value_name = "SIZE", help_heading = NETWORK)]
    udp_reply_max: u64,
    /// Memory limit of the process in MiB, or with m, g or t after the number; 0 for no limit. The
    /// databases in memory share it; caches of databases on disk do not count
    #[arg(short, long, env = "TODANA_MEMORY_LIMIT", default_value = "64", value_parser = mebibytes, value_name = "MIB", help_heading = CACHE)]
    memory_limit: u64,
    /// At the memory limit, refuse writes instead of evicting records
    #[arg(short = 'M', long, env = "TODANA_DISABLE_EVICTIONS", help_heading = CACHE)]
    disable_evictions: bool,
    /// Evict so that the most requests find their record (`objects`: large records leave earlier),
    /// or so that the most bytes are found (`bytes`). For mem:hash
    #[arg(long, env = "TODANA_EVICT_FOR", value_enum, default_value = "objects", value_name = "GOAL", help_heading = CACHE)]
    evict_for: EvictedFor,
    /// Store similar records of a mem:hash with dictionaries, which are trained in the background,
    /// and compress values of 64 KiB to 1 MiB in memory that are not in use
    #[arg(long, env = "TODANA_COMPRESS", default_value = "auto", help_heading = CACHE)]
    compress: RecordCompression,
    /// Largest record, from 1k to 1g; a number without k, m or g is in bytes
    #[arg(short = 'I', long, env = "TODANA_MAX_ITEM_SIZE", default_value = "1m", value_parser = size, value_name = "SIZE", help_heading = CACHE)]
    max_item_size: u64,
    /// Keep the data in this directory (created if needed), and load it at the start [default: data
    /// is lost at exit]
    #[arg(long, env = "TODANA_DATA_DIR", value_name = "DIR", help_heading = DATA)]
    data_dir: Option<PathBuf>,
    /// When writes are on disk. `always`: before the reply. A NUMBER: after this many milliseconds;
    /// a power failure can lose the writes of this time, a crash of the process loses nothing.
    /// `never`: when the kernel decides; a crash of the process can lose a second
    #[arg(long, env = "TODANA_SYNC", default_value = "1000", value_parser = sync, value_name = "WHEN", help_heading = DATA)]
    sync: SyncPolicy,
    /// Start a new segment of the update log when the current one has reached this size, 4k or more
    #[arg(long, env = "TODANA_LOG_SEGMENT_SIZE", default_value = "64m", value_parser = some_size, value_name = "SIZE", help_heading = DATA)]
    log_segment_size: u64,
    /// Start a new segment of the update log when the current one has reached this age in seconds
    #[arg(long, env = "TODANA_LOG_SEGMENT_AGE", default_value = "86400", value_parser = seconds, value_name = "SECONDS", help_heading = DATA)]
    log_segment_age: u64,
    /// Keep up to this much of the update log that no checkpoint needs, so that a backup can be
    /// restored to a point in time [default: nothing, unless --log-keep-age is given]
    #[arg(long, env = "TODANA_LOG_KEEP_SIZE", value_parser = size, value_name = "SIZE", help_heading = DATA)]
    log_keep_size: Option<u64>,
    /// Keep update log that no checkpoint needs for this number of seconds, 1 or more; older log is
    /// removed at the next checkpoint [default: no age limit if --log-keep-size is given]
    #[arg(long, env = "TODANA_LOG_KEEP_AGE", value_parser = seconds, value_name = "SECONDS", help_heading = DATA)]
    log_keep_age: Option<u64>,
    /// Write a checkpoint when the update log has grown by this size plus the size of the previous
    /// checkpoint
    #[arg(long, env = "TODANA_CHECKPOINT_LOG_SIZE", default_value = "64m", value_parser = size, value_name = "SIZE", help_heading = DATA)]
    checkpoint_log_size: u64,
    /// Compression of checkpoints: none, zstd, or zstd:1 to zstd:22 (smaller and slower)
    #[arg(long, env = "TODANA_CHECKPOINT_COMPRESSION", default_value = "zstd:1", value_parser = compression, value_name = "HOW", help_heading = DATA)]
    checkpoint_compression: CheckpointCompression,
    /// Be a replica of this master: todana://HOST:PORT, a server of Todana (todanas:// with TLS,
    /// and with /NUMBER for one of its databases); HOST:PORT, a server of Kyoto Tycoon; or
    /// tyrant://HOST:PORT, a server of Tokyo Tyrant
    #[arg(long, env = "TODANA_REPLICATE", value_parser = replication::master, value_name = "MASTER", help_heading = REPLICATION)]
    replicate: Option<NamedMaster>,
    /// Store the replication position in this file; without the file, each start copies all records
    /// of the master [default: with todana://, the file replica-position in the data directory]
    #[arg(long, env = "TODANA_REPLICA_POSITION", value_name = "FILE", help_heading = REPLICATION)]
    replica_position: Option<PathBuf>,
    #[command(flatten)]
    native_replication: NativeReplicationArguments,
    /// Keep an update log for replicas in this directory, for a hash on disk, which has none of its
    /// own
    #[arg(long, env = "TODANA_REPLICA_LOG", value_name = "DIR", help_heading = REPLICATION)]
    replica_log: Option<PathBuf>,
    /// Milliseconds between two requests to a master that has no changes to send
    #[arg(long, env = "TODANA_REPLICA_INTERVAL", default_value = "40", value_parser = number::<u32>, value_name = "MILLISECONDS", help_heading = REPLICATION)]
    replica_interval: u32,
    /// Acknowledge a change only after this number of replicas have confirmed it, in Todana's own
    /// protocol; 0 does not wait for replicas
    #[arg(long, env = "TODANA_ACK", default_value = "0", value_parser = number::<u8>, value_name = "NUMBER", help_heading = REPLICATION)]
    ack: u8,
    /// Milliseconds within which they must confirm it; the client then gets an error, although the
    /// change has been made here
    #[arg(long, env = "TODANA_ACK_TIMEOUT", default_value = "1000", value_parser = number::<u32>, value_name = "MILLISECONDS", help_heading = REPLICATION)]
    ack_timeout: u32,
    /// ID that names this server as the origin of changes, 0 to 65535; must differ among servers
    /// that replicate each other
    #[arg(long, env = "TODANA_SERVER_ID", default_value = "1", value_parser = number::<u16>, value_name = "NUMBER", help_heading = REPLICATION)]
    server_id: u16,
    /// File with Lua procedures for Kyoto Tycoon's clients (`play_script`); SIGHUP reloads it
    #[arg(long, env = "TODANA_SCRIPT", value_name = "FILE", help_heading = KYOTO)]
    script: Option<PathBuf>,
    /// Maximum run time of a script call in seconds
    #[arg(long, env = "TODANA_SCRIPT_TIME_LIMIT", default_value = "5", value_parser = values::seconds, value_name = "SECONDS", help_heading = KYOTO)]
    script_time_limit: u64,
    /// Maximum memory of a script; each worker thread can run one script
    #[arg(long, env = "TODANA_SCRIPT_MEMORY_LIMIT", default_value = "64m", value_parser = values::some_size, value_name = "SIZE", help_heading = KYOTO)]
    script_memory_limit: u64,
    /// Directory of the programs that Kyoto Tycoon's `synchronize` may run [default: it may run
    /// none]
    #[arg(long, env = "TODANA_COMMANDS", value_name = "DIR", help_heading = KYOTO)]
    commands: Option<PathBuf>,
    /// Accept requests from web pages of any site; by default, requests that a browser marks as
    /// coming from a page are refused
    #[arg(long, env = "TODANA_ALLOW_PAGES", help_heading = KYOTO)]
    allow_pages: bool,
    /// Host names that HTTP requests may use (Kyoto Tycoon's protocol and admin pages), besides
    /// addresses and localhost; repeatable, or a list with commas [default: browsers may use no
    /// other name, other clients any name]
    #[arg(long, env = "TODANA_HTTP_HOST", action = ArgAction::Append, value_delimiter = ',', value_name = "NAME", help_heading = NETWORK)]
    http_host: Vec<String>,
    /// Write snapshots of the databases in memory to this directory, regularly and at exit, in
    /// Kyoto Tycoon's format (.ktss), and load them at the start. Snapshots contain no client flags
    #[arg(long, env = "TODANA_SNAPSHOTS", value_name = "DIR", help_heading = KYOTO)]
    snapshots: Option<PathBuf>,
    /// Seconds between two snapshots
    #[arg(long, env = "TODANA_SNAPSHOT_INTERVAL", default_value = "180", value_parser = seconds, value_name = "SECONDS", help_heading = KYOTO)]
    snapshot_interval: u64,
    /// Compression of snapshots: none or zlib; the server can load both
    #[arg(long, env = "TODANA_SNAPSHOT_PACKING", default_value = "none", hide_possible_values = true, value_name = "HOW", help_heading = KYOTO)]
    snapshot_packing: SnapshotPacking,
    /// Number of worker threads
    #[arg(short, long, env = "TODANA_THREADS", default_value = "4", value_parser = number::<usize>, help_heading = PROCESS)]
    threads: usize,
    #[command(flatten)]
    process: ProcessArguments,
    /// Allow the `shutdown` command
    #[arg(short = 'A', long, env = "TODANA_ENABLE_SHUTDOWN", help_heading = PROCESS)]
    enable_shutdown: bool,
    /// More options, a list with commas: negative_exptime=sliding (a negative time to live counts
    /// from the last access), debug_commands (enables `debugtime`), emulate_full (every store fails
    /// as if memory were full)
    #[arg(short = 'o', long, env = "TODANA_EXTENDED", action = ArgAction::Append, value_delimiter = ',', value_enum, value_name = "WORDS", hide_possible_values = true, help_heading = PROCESS)]
    extended: Vec<ExtendedWord>,
    /// Refuse the commands that list keys: `lru_crawler metadump`, `stats cachedump`, `stats
    /// detail`
    #[arg(short = 'X', long, env = "TODANA_DISABLE_DUMPING", help_heading = PROCESS)]
    disable_dumping: bool,
    /// Log requests that take this many milliseconds or more, for the admin page; 0 logs none
    #[arg(long, env = "TODANA_SLOW_REQUEST", default_value = "10", value_parser = number::<u32>, value_name = "MILLISECONDS", help_heading = PROCESS)]
    slow_request: u32,
    /// Log requests with a value or replies of this size or more there, too; 0 logs none
    #[arg(long, env = "TODANA_LARGE_REQUEST", default_value = "256k", value_parser = values::size, value_name = "SIZE", help_heading = PROCESS)]
    large_request: u64,
    /// Send spans to this collector of OpenTelemetry (`http://HOST:4318`, OTLP) for meta requests
    /// whose opaque token names a trace [default: no spans]
    #[arg(long, env = "TODANA_TRACE_TO", value_name = "URL", help_heading = PROCESS)]
    trace_to: Option<CollectorAddress>,
    /// Add the keys of requests to their spans
    #[arg(long, env = "TODANA_TRACE_KEYS", requires = "trace_to", help_heading = PROCESS)]
    trace_keys: bool,
    /// Refuse the `watch` command
    #[arg(short = 'W', long, env = "TODANA_DISABLE_WATCH", help_heading = PROCESS)]
    disable_watch: bool,
    /// Count reads and stores by key prefix, for `stats detail`; a prefix ends at this character
    #[arg(short = 'D', long, env = "TODANA_PREFIX_DELIMITER", value_parser = delimiter, value_name = "CHARACTER", help_heading = PROCESS)]
    prefix_delimiter: Option<u8>,
    /// Count records by their size, for `stats sizes`
    #[arg(long, env = "TODANA_TRACK_SIZES", help_heading = PROCESS)]
    track_sizes: bool,
    /// Read options from this TOML file
    #[arg(long, env = "TODANA_CONFIG", value_name = "FILE", help_heading = PROCESS)]
    config: Option<PathBuf>,
}

fn serve_command() -> clap::Command {
    let all = ProgramArguments::command();
    let serve =
        all.get_subcommands().find(|command| command.get_name() == "serve").expect("serve is a command");
    serve.clone().args_override_self(true).max_term_width(HELP_WIDTH_MAX).bin_name("todana serve")
}

/// The effective options, and their sources.
pub(crate) struct EffectiveOptions {
    pub(crate) options: ServerOptions,
    log_format: LogFormat,
    /// The name, the value and the source of each option.
    pub(crate) origins: Vec<(String, String, &'static str)>,
}

/// Reads the command line, the environment and the file. `words` is a complete command line of
/// `serve`, with the name of the program.
pub(crate) fn effective(
    words: impl IntoIterator<Item = OsString>,
) -> Result<EffectiveOptions, CommandFailure> {
    // For clap, the name of the program and `serve` are a single word.
    let words: Vec<OsString> = words.into_iter().skip(1).collect();
    let first =
        option_sources::flags_only(serve_command()).try_get_matches_from(&words).unwrap_or_else(|error| {
            if error.kind() == ErrorKind::DisplayHelp {
                // This prints the help and ends the process. The help of the unchanged command
                // shows the variables.
                serve_command().get_matches_from(&words);
            }
            let options: Vec<String> =
                words.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
            suggestions::with_memcached(error, &options).exit()
        });
    suggestions::warn_of_unknown_variables(&serve_command());
    let file = option_sources::file(&serve_command(), first.get_one("config"));
    let entries = file.map_or(Ok(Vec::new()), |path| option_sources::read(&serve_command(), &path))?;
    let (command, configured) = option_sources::with_configuration(serve_command(), &entries)?;
    let matches = command.clone().try_get_matches_from(&words).map_err(usage)?;
    let origins = origins(&command, &matches, &configured);
    let arguments = ServeArguments::from_arg_matches(&matches).map_err(usage)?;
    let (options, log_format) = arguments.into_options().map_err(|what| {
        // Finds the value that is wrong on its own, so that the error can name its source.
        let is_culprit =
            |configured: &&ConfiguredValue| checked_alone(configured).is_err_and(|alone| alone == what);
        match configured.iter().find(is_culprit) {
            Some(configured) => CommandFailure::usage(format!("{}: {what}", configured.place)),
            None => CommandFailure::usage(what),
        }
    })?;
    let is_kept =
        |one: &DatabaseSpec| one.data.is_some() || one.name.kind.storage() == DatabaseStorage::Files;
    if !options.databases.all().iter().any(is_kept) {
        expect_no_persistence_options(&origins, &configured)?;
    }
    Ok(EffectiveOptions { options, log_format, origins })
}

/// Fails if an option about persistence is given, but the data is not persistent.
fn expect_no_persistence_options(
    origins: &[(String, String, &'static str)],
    configured: &[ConfiguredValue],
) -> Result<(), CommandFailure> {
    let command = serve_command();
    for (name, value, origin) in origins {
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(name));
        let Some(argument) = argument.filter(|argument| argument.get_help_heading() == Some(DATA)) else {
            continue;
        };
        // A default value is accepted, because a file that `config show` has printed contains the
        // defaults.
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
        let place = configured.iter().find(|configured| configured.name == *name && *origin != "flag");
        let place = place.map_or_else(|| format!("--{name}"), |configured| configured.place.clone());
        return Err(CommandFailure::usage(format!("{place}: needs --data-dir DIR or a database on disk")));
    }
    Ok(())
}

pub(crate) fn usage(error: clap::Error) -> CommandFailure {
    let text = error.to_string();
    CommandFailure::usage(text.strip_prefix("error: ").unwrap_or(&text))
}

/// Returns the error that this value causes if it is the only one.
fn checked_alone(configured: &ConfiguredValue) -> Result<(), String> {
    let words = std::iter::once(OsString::from("serve")).chain(configured.flags.iter().cloned());
    let matches = option_sources::flags_only(serve_command()).try_get_matches_from(words);
    let arguments = matches.and_then(|matches| ServeArguments::from_arg_matches(&matches));
    arguments.map_err(|error| error.to_string())?.into_options().map(|_| ())
}

fn origins(
    command: &clap::Command,
    matches: &ArgMatches,
    configured: &[ConfiguredValue],
) -> Vec<(String, String, &'static str)> {
    let mut origins = Vec::new();
    for argument in command.get_arguments() {
        let (mut id, Some(long)) = (argument.get_id().as_str(), argument.get_long()) else { continue };
        if long == "help" {
            continue;
        }
        // Databases on the command line replace the databases of environment and file.
        if long == "database" && matches.value_source("databases") == Some(ValueSource::CommandLine) {
            id = "databases";
        }
        let origin = match matches.value_source(id) {
            Some(ValueSource::CommandLine) => "flag",
            _ => configured
                .iter()
                .find(|configured| configured.name == long)
                .map_or("default", |configured| configured.origin),
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
pub(crate) fn run(words: impl IntoIterator<Item = OsString>) -> Result<(), CommandFailure> {
    let effective = effective(words)?;
    init_logging_with_notices(effective.log_format, effective.options.observation.verbosity);
    folders::expect_folders(&effective.options)?;
    serving::serve(&mut TodanaProgram::new(effective.options))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn log_retention_follows_the_given_limits() {
        let kept = |line: &str| {
            let words = ["todana".to_string(), "serve".into(), "--data-dir".into(), "/d".into()].into_iter();
            let words = words.chain(line.split_whitespace().map(String::from)).map(OsString::from);
            let place = effective(words).map_err(|_| line).unwrap().options.databases.data.unwrap();
            (place.checkpoints.log_kept_len, place.checkpoints.log_kept_age)
        };
        assert_eq!(kept(""), (0, Duration::MAX));
        assert_eq!(kept("--log-keep-size 1g"), (1 << 30, Duration::MAX));
        assert_eq!(kept("--log-keep-age 60"), (u64::MAX, Duration::from_secs(60)));
        assert_eq!(kept("--log-keep-size 1k --log-keep-age 60"), (1 << 10, Duration::from_secs(60)));
        assert_eq!(kept("--log-keep-size 0 --log-keep-age 60"), (0, Duration::from_secs(60)));
    }

    #[test]
    fn admin_pages_are_optional_unless_requested() {
        let admin = |line: &str| {
            let words = ["todana".to_string(), "serve".into()].into_iter();
            let words = words.chain(line.split_whitespace().map(String::from)).map(OsString::from);
            let found = effective(words).map_err(|_| line).unwrap().options.observation.admin;
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
