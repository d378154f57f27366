//! The server that clients are tried against.

use crate::step::target_directory;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SERVER: &str = "fast/todana";

/// A server on a port of the system's choice; stopped when it goes out of scope.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(options: &[&str]) -> Result<Server, String> {
        let mut child = Command::new(target_directory().join(SERVER))
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

    /// Asks by a binary no-op.
    pub(super) fn speaks_binary(&self) -> Result<bool, String> {
        const RESPONSE: u8 = 0x81;
        let ask = || {
            let mut stream = TcpStream::connect(&self.address)?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            // The line end is for a server that knows text only: it has a line to refuse, and need not wait for more.
            let mut noop = [0; 26];
            noop[..2].copy_from_slice(&[0x80, 0x0a]);
            noop[24..].copy_from_slice(b"\r\n");
            stream.write_all(&noop)?;
            let mut first = [0];
            stream.read_exact(&mut first)?;
            Ok(first[0] == RESPONSE)
        };
        ask().map_err(|error: std::io::Error| format!("the server does not answer a no-op: {error}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
