//! A memcached in a process of its own that is killed, stopped and started again.

use super::super::running::eventually;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A memcached. Its address stays the same. Dropping it kills the process.
pub(crate) struct RealServer {
    program: PathBuf,
    child: Child,
    pub(crate) address: SocketAddr,
}

impl RealServer {
    /// Returns the executable of memcached, if it is installed.
    pub(crate) fn program() -> Option<PathBuf> {
        if let Some(program) = std::env::var_os("TODANA_MEMCACHED") {
            return Some(program.into());
        }
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|folder| folder.join("memcached")).find(|program| program.is_file())
    }

    /// Starts a server on a port that the system chooses. `folder` is for the file with the port.
    pub(crate) fn start(program: &Path, folder: &Path) -> RealServer {
        let file = folder.join("ports");
        let child = command(program, "-1").env("MEMCACHED_PORT_FILENAME", &file).spawn().unwrap();
        eventually("memcached names its port", || file.exists());
        let ports = std::fs::read_to_string(&file).unwrap();
        let port = ports.lines().find_map(|line| line.strip_prefix("TCP INET: ")).unwrap();
        std::fs::remove_file(&file).unwrap();
        let address = format!("127.0.0.1:{port}").parse().unwrap();
        RealServer { program: program.into(), child, address }
    }

    /// Returns true if the server answers.
    pub(crate) fn answers(&self) -> bool {
        let ask = || {
            let mut stream = TcpStream::connect(self.address)?;
            stream.write_all(b"version\r\n")?;
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line)?;
            Ok::<bool, std::io::Error>(line.starts_with("VERSION"))
        };
        ask().unwrap_or(false)
    }

    /// Kills the server by SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts the server again after [`kill`](Self::kill).
    pub(crate) fn start_again(&mut self) {
        let port = self.address.port().to_string();
        eventually("memcached starts again", || {
            self.child = command(&self.program, &port).spawn().unwrap();
            eventually("memcached answers or ends", || {
                self.answers() || self.child.try_wait().unwrap().is_some()
            });
            self.child.try_wait().unwrap().is_none()
        });
    }

    /// Sends a signal, such as `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(program: &Path, port: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["-l", "127.0.0.1", "-p", port, "-U", "0", "-t", "1", "-m", "16", "-u", "root"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
