//! The server with which clients are tested.

use crate::step::built;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

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
