//! `ttservctl`: starts, stops and signals a server.
//!
//! The original is a shell script whose variables operators edit. Here environment variables of the
//! same names take their place: `basedir`, `port`, `pidfile`, `logfile`, `ulogdir`, `ulimsiz`,
//! `sid`, `mhost`, `mport`, `rtsfile` and `dbname`.

use super::ToolFailure;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The time between two checks whether a server has ended, and the most checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
const CHECKS_MAX: usize = 100;

pub(super) fn run(program: &str, words: Vec<String>) -> Result<(), ToolFailure> {
    let control = ServerControl::from_environment();
    match words.first().map(String::as_str) {
        Some("start") => control.start(),
        Some("stop") => control.stop(),
        Some("restart") => {
            // As with the original, the server is started even if none was running.
            let stopped = control.stop();
            control.start().and(stopped)
        }
        Some("hup") => control.hup(),
        _ => Err(ToolFailure(format!(": usage: {program} {{start|stop|restart|hup}}"))),
    }
}

/// The settings of the server.
struct ServerControl {
    directory: String,
    pid_file: String,
    /// The words of the server's command line, without `-pid`.
    words: Vec<String>,
    update_log: Option<String>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl ServerControl {
    fn from_environment() -> ServerControl {
        let directory = variable("basedir").unwrap_or_else(|| "/var/ttserver".into());
        let pid_file = variable("pidfile").unwrap_or_else(|| format!("{directory}/pid"));
        let port = variable("port").unwrap_or_else(|| "1978".into());
        let mut words: Vec<String> =
            ["-port", &port, "-dmn", "-pid", &pid_file].iter().map(|&word| word.into()).collect();
        for (option, name) in [
            ("-log", "logfile"),
            ("-ulog", "ulogdir"),
            ("-ulim", "ulimsiz"),
            ("-sid", "sid"),
            ("-mhost", "mhost"),
            ("-mport", "mport"),
            ("-rts", "rtsfile"),
        ] {
            words.extend(variable(name).into_iter().flat_map(|value| [option.into(), value]));
        }
        let database = variable("dbname").unwrap_or_else(|| format!("{directory}/casket.tch#bnum=1000000"));
        words.push(database);
        ServerControl { directory, pid_file, words, update_log: variable("ulogdir") }
    }

    fn pid(&self) -> Option<i32> {
        std::fs::read_to_string(&self.pid_file).ok()?.trim().parse().ok().filter(|&pid: &i32| pid > 0)
    }

    fn start(&self) -> Result<(), ToolFailure> {
        println!("Starting the server of Tokyo Tyrant");
        if let Some(pid) = self.pid() {
            println!("Existing process: {pid}");
            return Err(ToolFailure(": the server runs already, or has left its pid file".into()));
        }
        for directory in [Some(&self.directory), self.update_log.as_ref()].into_iter().flatten() {
            std::fs::create_dir_all(directory)
                .map_err(|error| ToolFailure(format!(": {directory}: {error}")))?;
        }
        println!("Executing: ttserver {}", self.words.join(" "));
        let executable = std::env::current_exe()?;
        let status = Command::new(executable).args(["as", "ttserver"]).args(&self.words).status()?;
        if !status.success() {
            println!("The server could not be started");
            return Err(ToolFailure(": the server could not be started".into()));
        }
        println!("Done");
        Ok(())
    }

    fn stop(&self) -> Result<(), ToolFailure> {
        println!("Stopping the server of Tokyo Tyrant");
        let pid = self.signal(Signal::SIGTERM, "terminal")?;
        for _ in 0..CHECKS_MAX {
            if !Path::new(&self.pid_file).exists() {
                println!("Done");
                return Ok(());
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
        println!("Hanging process: {pid}");
        Err(ToolFailure(format!(": the process {pid} has not ended")))
    }

    fn hup(&self) -> Result<(), ToolFailure> {
        println!("Sending HUP signal to the server of Tokyo Tyrant");
        self.signal(Signal::SIGHUP, "hangup")?;
        println!("Done");
        Ok(())
    }

    fn signal(&self, signal: Signal, name: &str) -> Result<i32, ToolFailure> {
        let Some(pid) = self.pid() else {
            println!("No process found");
            return Err(ToolFailure(format!(": {}: no server", self.pid_file)));
        };
        println!("Sending the {name} signal to the process: {pid}");
        kill(Pid::from_raw(pid), signal).map_err(|error| ToolFailure(format!(": process {pid}: {error}")))?;
        Ok(pid)
    }
}
