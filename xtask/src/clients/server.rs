//! The server with which clients are tested.

use crate::step::{built, program};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The time within which memcached must name its port. It never needs nearly as long.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A server on a port that the system chose. Dropping it stops the server.
pub(crate) struct TestServer {
    child: Child,
    pub(crate) address: String,
}

impl TestServer {
    pub(crate) fn start(options: &[&str]) -> Result<TestServer, String> {
        TestServer::run(&[&["serve", "--port", "-1"], options].concat())
    }

    /// Starts the server with the words of a command line.
    pub(crate) fn run(words: &[&str]) -> Result<TestServer, String> {
        let mut child = Command::new(built("todana"))
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("server: cannot start: {error}"))?;
        let output = child.stdout.take().ok_or("server: has no output")?;
        // Constructed before the banner is read, so that an error there stops the server.
        let mut server = TestServer { child, address: String::new() };
        for line in BufReader::new(output).lines().take(3) {
            let line = line.map_err(|error| error.to_string())?;
            if let Some(address) = line.strip_prefix("listening on ") {
                server.address = address.to_string();
                return Ok(server);
            }
            // The log of a ttserver.
            if let Some((_, port)) = line.split_once("host=127.0.0.1 port=") {
                server.address = format!("127.0.0.1:{port}");
                return Ok(server);
            }
        }
        Err("server: printed no address".into())
    }

    /// Starts a memcached on a port that it chooses, or Todana under its name if there is none.
    pub(crate) fn memcached(options: &[&str]) -> Result<TestServer, String> {
        let is_installed = program("sh", &["-c", "command -v memcached"]).succeeds();
        let todana = built("todana");
        let mut command = match is_installed {
            true => Command::new("memcached"),
            false => Command::new(&todana),
        };
        if !is_installed {
            println!("memcached is not installed; {} stands in for it", todana.display());
            command.args(["as", "memcached"]);
        }
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let port_file = folder.path().join("ports");
        let child = command
            .args(["-l", "127.0.0.1", "-p", "-1", "-U", "0", "-u", "root"])
            .args(options)
            .env("MEMCACHED_PORT_FILENAME", &port_file)
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| format!("memcached: cannot start: {error}"))?;
        let mut server = TestServer { child, address: String::new() };
        let start = Instant::now();
        while server.is_alive() && start.elapsed() < START_LIMIT {
            let ports = std::fs::read_to_string(&port_file).unwrap_or_default();
            if let Some(port) = ports.lines().find_map(|line| line.strip_prefix("TCP INET: ")) {
                server.address = format!("127.0.0.1:{port}");
                return Ok(server);
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err("memcached: named no port".into())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns true while the process runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
