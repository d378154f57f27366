//! The server that clients are tried against.

use crate::step::built;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A server on a port of the system's choice; stopped when it goes out of scope.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(options: &[&str]) -> Result<Server, String> {
        let mut child = Command::new(built("todana"))
            .args(["serve", "--port", "-1"])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start the server: {error}"))?;
        let output = child.stdout.take().ok_or("the server has no output")?;
        // Made first, so that the server is stopped whatever its banner says.
        let mut server = Server { child, address: String::new() };
        for line in BufReader::new(output).lines().take(3) {
            let line = line.map_err(|error| error.to_string())?;
            if let Some(address) = line.strip_prefix("listening on ") {
                server.address = address.to_string();
                return Ok(server);
            }
        }
        Err("the server did not say where it listens".into())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// True while the process runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
