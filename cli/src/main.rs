//! The program `todana`: the server and its tools in one executable.
#![forbid(unsafe_code)]

mod advise;
mod amount;
mod backup;
mod bench;
mod checkpoint;
mod client_login;
mod client_tls;
mod command_failure;
mod command_output;
mod command_target;
mod config;
mod database;
mod doctor;
mod dump;
mod formats;
mod generated_files;
mod interruption_flag;
mod kyoto;
mod load;
mod log;
mod memcached;
mod moxi;
mod nutcracker;
mod open_target;
mod option_sources;
mod password;
mod progress;
mod promote;
mod proxy;
mod record_commands;
mod record_servers;
mod replicas;
mod restore;
mod salvage;
mod sasldb;
mod serve;
mod server_options;
mod serving;
mod shell;
mod statistics;
mod suggestions;
mod time_to_live;
mod top;
mod tyrant;
mod tyrant_tools;
mod verify;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use command_failure::CommandFailure;
use command_output::CommandOutput;
use open_target::CommandPlace;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;
use todana::tsv;

/// Maximum width of help texts, in columns: wider lines are hard to read.
pub(crate) const HELP_WIDTH_MAX: usize = 110;

/// The text of `todana --help`, which fits one screen.
const HELP: &str = "\
A memcached-compatible key-value server that needs little memory, and its tools

Usage: todana [COMMAND]

Server     serve proxy config as password    run a server, also as memcached
           ping stats log replicas promote   check, watch and direct it
           bench top doctor advise           measure it, find its faults
Records    get set delete incr decr touch    read and change records by key
           list count load dump flush shell  many at once; commands at a prompt
Databases  copy merge compact                on disk, while no server uses them
Backups    backup restore checkpoint         back up a database, restore it
           verify salvage                    find damage, save intact records
Program    version completions man help

Examples:
  todana serve -p 11311 &                start a server beside a memcached
  export TODANA_SERVER=127.0.0.1:11311   use it in all following commands
  todana set hello world --ttl 1h        store a record for an hour
  todana get hello                       print its value

-S HOST:PORT or TODANA_SERVER names the server [default: 127.0.0.1:11211];
-S ./x.hash or ./x.tree (or --db) opens a database that no server uses.
`todana COMMAND --help` shows its options, `todana man DIR` writes all pages.
Exit codes: 0 done, 1 no such record, 2 wrong usage, 3 unreachable or refused.
";

/// Additional text of the manual page.
const AFTER_HELP: &str = "\
If a server requires a login: --user NAME --password-file FILE, or TODANA_USER and TODANA_PASSWORD in
the environment, or todana://USER:PASSWORD@HOST:PORT.

`todana` without a command serves on 127.0.0.1:11211; at a terminal it opens a shell instead.

Exit codes: 0 done, 1 no such record or not stored, 2 wrong usage,
3 the server cannot be reached or refuses.";

/// A memcached-compatible key-value server that needs little memory, and its tools
#[derive(Debug, Parser)]
#[command(name = "todana", version, override_help = HELP, after_help = AFTER_HELP, max_term_width = HELP_WIDTH_MAX, args_override_self = true)]
pub(crate) struct ProgramArguments {
    #[command(subcommand)]
    command: Option<ProgramCommand>,
}

#[derive(Debug, Subcommand)]
enum ProgramCommand {
    /// Run the server
    #[command(after_help = serve::AFTER_HELP)]
    Serve(Box<serve::ServeArguments>),
    /// Show or check the server's configuration
    #[command(subcommand)]
    Config(config::ConfigCommand),
    #[command(flatten)]
    Data(Box<record_commands::RecordCommand>),
    #[command(flatten)]
    Database(Box<database::DatabaseCommand>),
    /// Request a server to write a checkpoint of its data now
    #[command(after_help = checkpoint::AFTER_HELP)]
    Checkpoint(checkpoint::CheckpointArguments),
    /// Print the replicas of a server and its master, and their lag
    #[command(after_help = replicas::AFTER_HELP)]
    Replicas(replicas::ReplicasArguments),
    /// Make a replica the master
    #[command(after_help = promote::AFTER_HELP)]
    Promote(promote::PromoteArguments),
    /// Back up a running server, a data directory or a database on disk
    #[command(after_help = backup::AFTER_HELP)]
    Backup(backup::BackupArguments),
    /// Create a database from a backup, optionally as of a point in time
    #[command(after_help = restore::AFTER_HELP)]
    Restore(restore::RestoreArguments),
    /// Print an update log as text, and optionally follow it
    #[command(after_help = log::AFTER_HELP)]
    Log(log::LogArguments),
    /// Check every checksum of a database, data directory or backup
    #[command(after_help = verify::AFTER_HELP)]
    Verify(verify::VerifyArguments),
    /// Recover the intact records of a damaged database into a new one
    #[command(after_help = salvage::AFTER_HELP)]
    Salvage(restore::RestoreRequest),
    /// Check, as `verify` does (until the next version)
    #[command(hide = true)]
    Repair {
        #[command(flatten)]
        of: verify::VerifyArguments,
        /// Refused: repair never changes a database in place
        #[arg(long)]
        yes: bool,
    },
    /// Hash a password for the users file of a server with logins (serve -S)
    #[command(after_help = password::AFTER_HELP)]
    Password(password::PasswordArguments),
    /// Measure the throughput, latency and memory of a server, or compare two
    #[command(after_help = bench::AFTER_HELP)]
    Bench(Box<bench::BenchArguments>),
    /// Type commands at a prompt, or run those of standard input
    #[command(after_help = shell::AFTER_HELP)]
    Shell(Box<shell::ShellArguments>),
    /// Check a configuration, this machine or a running server, and say what to change
    #[command(after_help = doctor::AFTER_HELP)]
    Doctor(Box<doctor::DoctorArguments>),
    /// Sample a memcached, Redis or Kyoto Tycoon, and report what its records would take here
    #[command(after_help = advise::AFTER_HELP)]
    Advise(Box<advise::AdviseArguments>),
    /// Show what a server does, and refresh it
    #[command(after_help = top::AFTER_HELP)]
    Top(top::TopArguments),
    /// Serve one address for several memcached servers, or print which of them holds a key
    #[command(
        after_help = proxy::AFTER_HELP,
        mut_arg("max_reqs_per_event", |option| option.default_value(proxy::REQUESTS_PER_EVENT))
    )]
    Proxy(Box<proxy::ProxyArguments>),
    /// Run as a replacement of memcached, Kyoto Tycoon's or Tokyo Tyrant's server, with its options
    #[command(
        after_help = "Examples:\n  todana as memcached --help\n  todana as memcached -m 1024 -u nobody\n  todana as ktserver --help\n  todana as ttserver -port 1978 casket.tch\n\nA symbolic link of that name to the executable does the same:\n  ln -s todana memcached; ./memcached -m 1024 -u nobody"
    )]
    As {
        /// The program to replace
        program: PersonalityName,
        /// The options of that program
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Print the version of this program
    Version,
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  source <(todana completions bash)")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a directory
    #[command(after_help = "Example:\n  todana man /usr/local/share/man/man1; man todana-serve")]
    Man {
        /// The directory, created if it does not exist
        directory: std::path::PathBuf,
    },
}

/// The programs that Todana can replace.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum PersonalityName {
    /// memcached, with the version that clients expect
    Memcached,
    /// Kyoto Tycoon's server
    Ktserver,
    /// Tokyo Tyrant's server
    Ttserver,
    /// moxi, the proxy of Couchbase
    Moxi,
    /// twemproxy
    Nutcracker,
    /// Tokyo Tyrant's client
    Tcrmgr,
    /// Tokyo Tyrant's tool for update logs
    Ttulmgr,
    /// Tokyo Tyrant's start script
    Ttservctl,
    /// Tokyo Cabinet's tool for hashes
    Tchmgr,
    /// Tokyo Cabinet's tool for trees
    Tcbmgr,
    /// Tokyo Cabinet's tool for records of numbers
    Tcfmgr,
    /// Tokyo Cabinet's tool for tables
    Tctmgr,
    /// Tokyo Cabinet's tool for any database
    Tcamgr,
}

/// The other programs as which this program can run.
const PERSONALITIES: [serving::ServerPersonality; 13] = [
    memcached::PERSONALITY,
    kyoto::PERSONALITY,
    tyrant::PERSONALITY,
    moxi::PERSONALITY,
    nutcracker::PERSONALITY,
    tyrant_tools::TCRMGR,
    tyrant_tools::TTULMGR,
    tyrant_tools::TTSERVCTL,
    tyrant_tools::TCHMGR,
    tyrant_tools::TCBMGR,
    tyrant_tools::TCFMGR,
    tyrant_tools::TCTMGR,
    tyrant_tools::TCAMGR,
];

/// Adds a hint to an error about two common mistakes: options of the server before `serve`, and
/// several process IDs after `--pid`.
fn with_hint(mut error: clap::Error) -> clap::Error {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    if error.kind() == ErrorKind::UnknownArgument && words.first().is_some_and(|word| word.starts_with('-')) {
        let hint = format!("options of the server follow `serve`: todana serve {}", words.join(" "));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    // The value may be a URL with a password, which a message must not contain.
    if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue)
        && let Some((scheme, rest)) = value.split_once("://")
        && let Some((_, place)) = rest.rsplit_once('@')
    {
        let shown = format!("{scheme}://...@{place}");
        error.insert(ContextKind::InvalidValue, ContextValue::String(shown));
    }
    // The shell expands `--pid $(pidof NAME)` to several numbers if several processes have that
    // name.
    let is_number = |word: &String| word.bytes().all(|byte| byte.is_ascii_digit());
    let mut behind_pid = words.iter().skip_while(|word| *word != "--pid").skip(1);
    if behind_pid.by_ref().take(2).filter(|word| is_number(word)).count() == 2 {
        let hint = "--pid takes one process id";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    error
}

fn run() -> Result<(), CommandFailure> {
    // `serve` and `proxy` parse their own words, because clap's messages do not say that a value
    // comes from the environment.
    if std::env::args_os().nth(1).is_some_and(|word| word == "serve") {
        return serve::run(std::env::args_os());
    }
    if std::env::args_os().nth(1).is_some_and(|word| word == "proxy") {
        return proxy::run(std::env::args_os());
    }
    let matches = ProgramArguments::command()
        .try_get_matches()
        .unwrap_or_else(|error| suggestions::clearer(with_hint(error), &ProgramArguments::command()).exit());
    let arguments = ProgramArguments::from_arg_matches(&matches)
        .map_err(|error| CommandFailure::usage(error.to_string()))?;
    match arguments.command {
        None if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() => {
            shell::run(&shell::ShellArguments::default())
        }
        None => serve::run(std::env::args_os().take(1).chain(["serve".into()])),
        Some(ProgramCommand::Serve(_)) => serve::run(std::env::args_os()),
        Some(ProgramCommand::Config(command)) => config::run(&command),
        Some(ProgramCommand::Data(command)) => record_commands::run(&command),
        Some(ProgramCommand::Database(command)) => {
            let (place, out) = (&mut CommandPlace::default(), &mut CommandOutput::process());
            database::run_whole(*command, place, out)
        }
        Some(ProgramCommand::Checkpoint(arguments)) => checkpoint::run(&arguments),
        Some(ProgramCommand::Replicas(arguments)) => replicas::run(&arguments),
        Some(ProgramCommand::Promote(arguments)) => promote::run(&arguments),
        Some(ProgramCommand::Shell(arguments)) => shell::run(&arguments),
        Some(ProgramCommand::Doctor(arguments)) => doctor::run(&arguments),
        Some(ProgramCommand::Advise(arguments)) => advise::run(&arguments),
        Some(ProgramCommand::Top(arguments)) => top::run(&arguments),
        Some(ProgramCommand::Backup(arguments)) => backup::run(&arguments),
        Some(ProgramCommand::Restore(arguments)) => restore::run(arguments),
        Some(ProgramCommand::Log(arguments)) => log::run(&arguments),
        Some(ProgramCommand::Verify(arguments)) => verify::run(&arguments),
        Some(ProgramCommand::Salvage(wanted)) => salvage::run(wanted),
        Some(ProgramCommand::Repair { of, yes: true }) => Err(CommandFailure::usage(format!(
            "repair never changes a database in place; {}",
            salvage::advice(of.directory())
        ))),
        Some(ProgramCommand::Repair { of, yes: false }) => verify::run(&of),
        Some(ProgramCommand::Password(arguments)) => password::run(&arguments),
        Some(ProgramCommand::Bench(arguments)) => bench::run(&arguments),
        Some(ProgramCommand::Proxy(_)) => proxy::run(std::env::args_os()),
        // The known names were handled at the start of `main`.
        Some(ProgramCommand::As { .. }) => {
            Err(CommandFailure::usage("as: the program's name must follow immediately"))
        }
        Some(ProgramCommand::Version) => {
            println!("todana {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        Some(ProgramCommand::Completions { shell }) => generated_files::completions(shell),
        Some(ProgramCommand::Man { directory }) => generated_files::man(&directory),
    }
}

fn main() -> ExitCode {
    if let Some(code) = serving::called_as(&PERSONALITIES) {
        return code;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_fits_one_screen_with_every_command() {
        assert_eq!(ProgramArguments::command().render_help().to_string().trim_end(), HELP.trim_end());
        assert!(HELP.lines().count() <= 24);
        assert!(HELP.lines().all(|line| line.chars().count() <= 80));
        let groups = HELP.split("\n\n").nth(2).unwrap_or_default();
        for command in ProgramArguments::command().get_subcommands() {
            let lines = groups.lines().map(|line| line.get(11..44).unwrap_or(line));
            let named = lines.flat_map(str::split_whitespace).filter(|word| *word == command.get_name());
            assert_eq!(named.count(), usize::from(!command.is_hide_set()), "{}", command.get_name());
        }
    }
}
