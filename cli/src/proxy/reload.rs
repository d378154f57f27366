//! `todana proxy reload`: lets a proxy on this machine read its configuration again, and reports
//! whether it uses it.

use crate::CommandFailure;
use crate::command_target::CommandTarget;
use crate::server_options::ServerOptions;
use clap::Parser;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::time::{Duration, Instant};
use todana_client::Connection;

/// The pause between two looks at the counts.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// The time after which the command gives up. A reload may ask servers for their lists.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Let a proxy on this machine read its configuration again, as SIGHUP does
#[derive(Debug, Parser)]
#[command(name = "todana proxy reload")]
struct ReloadArguments {
    /// The proxy: host:port, todana://host:port, todanas://host:port (TLS). Overrides -S
    #[arg(value_name = "SERVER")]
    named: Option<CommandTarget>,
    #[command(flatten)]
    server: ServerOptions,
}

/// Sends the signal, and waits until the proxy has read its configuration. `words` are those after
/// `proxy`. Fails if the proxy cannot use the configuration.
pub(super) fn run(words: impl IntoIterator<Item = OsString>) -> Result<(), CommandFailure> {
    let arguments = ReloadArguments::parse_from(words);
    let place = arguments.server.place(arguments.named.as_ref())?.server()?;
    let mut connection = arguments.server.connect(&place)?;
    let before = ReloadCounts::of(&mut connection)?;
    let pid = connection.statistic("pid")?.and_then(|pid| pid.parse::<i32>().ok());
    // A number of another machine, or of a container, could be that of any process here.
    let Some(pid) = pid.filter(|pid| is_this_program(*pid)) else {
        return Err(CommandFailure::trouble(
            "proxy reload: the proxy is not a process of this program on this machine; send SIGHUP to it there",
        ));
    };
    kill(Pid::from_raw(pid), Signal::SIGHUP)
        .map_err(|error| CommandFailure::trouble(format!("process {pid}: cannot send SIGHUP: {error}")))?;
    let began = Instant::now();
    while began.elapsed() < WAIT_MAX {
        let now = ReloadCounts::of(&mut connection)?;
        if now.failed > before.failed {
            return Err(CommandFailure::trouble(
                "proxy reload: the configuration is not used, the old one stays; the log of the proxy has the reason",
            ));
        }
        if now.done > before.done {
            return Ok(());
        }
        std::thread::sleep(CHECK_EVERY);
    }
    Err(CommandFailure::trouble("proxy reload: the proxy has not read its configuration within 60 seconds"))
}

/// The numbers of times that a proxy has read its configuration again.
struct ReloadCounts {
    done: u64,
    failed: u64,
}

impl ReloadCounts {
    fn of(connection: &mut Connection) -> Result<ReloadCounts, CommandFailure> {
        let statistics = connection.stats("proxy")?;
        let count = |name: &str| {
            let found = statistics.iter().find(|(found, _)| found == name);
            found.and_then(|(_, count)| count.parse().ok())
        };
        match (count("reloads"), count("failed_reloads")) {
            (Some(done), Some(failed)) => Ok(ReloadCounts { done, failed }),
            _ => Err(CommandFailure::trouble("proxy reload: the server is not a `todana proxy`")),
        }
    }
}

/// Returns true if the process runs the executable of this process.
fn is_this_program(pid: i32) -> bool {
    let executable = std::fs::read_link(format!("/proc/{pid}/exe"));
    let own = std::fs::read_link("/proc/self/exe");
    matches!((executable, own), (Ok(executable), Ok(own)) if executable == own)
}
