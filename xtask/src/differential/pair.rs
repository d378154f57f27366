//! Two servers, and the replies of each to the same bytes.

use super::draft::VERSION_MIN;
use super::request::RandomRequest;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The time after which a server that does not reply is an error. No reply takes nearly as long.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Requests sent after each piece. They complete a data block that the server still waits for, and
/// their replies mark the end of the piece's replies.
const SENTINEL: &[u8] = b"mn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\n";

/// A server with memcached's command line, on a port that it chose. Dropping it stops the server.
struct ServerProcess {
    child: Child,
    port: u16,
}

impl ServerProcess {
    fn start(program: &Path, words: &[&str], port_file: &Path) -> Result<ServerProcess, String> {
        let text = |error: std::io::Error| format!("{}: {error}", program.display());
        let is_root = rustix::process::geteuid().is_root();
        let child = Command::new(program)
            .args(words)
            .args(["-l", "127.0.0.1", "-p", "-1", "-U", "0", "-m", "1024"])
            .args(if is_root { &["-u", "root"][..] } else { &[] })
            .env("MEMCACHED_PORT_FILENAME", port_file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(text)?;
        // Constructed before the port is known, so that an error stops the server.
        let mut process = ServerProcess { child, port: 0 };
        let start = Instant::now();
        while !port_file.exists() {
            if process.child.try_wait().map_err(text)?.is_some() || start.elapsed() > REPLY_TIMEOUT {
                return Err(format!("{}: does not start", program.display()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let ports = std::fs::read_to_string(port_file).map_err(text)?;
        let port = ports.lines().find_map(|line| line.strip_prefix("TCP INET: "));
        process.port = port.and_then(|port| port.trim().parse().ok()).ok_or("port file: has no port")?;
        Ok(process)
    }

    /// Sends the pieces, each after the replies to the one before, and returns all replies.
    fn exchange(&self, pieces: &[Vec<u8>]) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        let (mut answer, mut chunk) = (Vec::new(), [0; 4096]);
        for piece in pieces {
            stream.write_all(piece)?;
            stream.write_all(SENTINEL)?;
            while !answer.ends_with(b"MN\r\n") {
                match stream.read(&mut chunk)? {
                    0 => return Ok(answer),
                    len => answer.extend_from_slice(&chunk[..len]),
                }
            }
            // The loop for the next piece must wait for another sentinel reply.
            answer.extend_from_slice(b"\r\n");
        }
        // A last request may still wait for a data block.
        let _ = stream.write_all(&SENTINEL.repeat(10));
        let _ = stream.shutdown(Shutdown::Write);
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// memcached and Todana.
pub(super) struct ServerPair {
    memcached: ServerProcess,
    todana: ServerProcess,
    /// The number of sessions sent so far, from which each session's key prefix is made.
    sent: u64,
    _folder: tempfile::TempDir,
}

/// The replies of both servers, which differ.
pub(super) struct ReplyDifference {
    pub(super) memcached: String,
    pub(super) todana: String,
}

impl ServerPair {
    pub(super) fn start(memcached: &Path, todana: &Path) -> Result<ServerPair, String> {
        let folder = tempfile::TempDir::new().map_err(|error| error.to_string())?;
        let memcached = ServerProcess::start(memcached, &[], &folder.path().join("memcached"))?;
        let todana = ServerProcess::start(todana, &["as", "memcached"], &folder.path().join("todana"))?;
        let pair = ServerPair { memcached, todana, sent: 0, _folder: folder };
        // Todana records access times only after a first request for one.
        pair.todana.exchange(&[b"mg k h l\r\n".to_vec()]).map_err(|error| error.to_string())?;
        Ok(pair)
    }

    /// Sends a session to both servers. Repeats it if the replies differ, because the clock may
    /// have advanced by a second between the two.
    pub(super) fn compare(&mut self, session: &[RandomRequest]) -> Result<Option<ReplyDifference>, String> {
        let mut difference = None;
        for _ in 0..2 {
            self.sent += 1;
            let prefix = format!("p{:08}", self.sent);
            let mut pieces = vec![Vec::new()];
            for request in session {
                if request.is_sent_alone() {
                    pieces.push(Vec::new());
                }
                pieces.last_mut().expect("there is one from the start").extend(request.render(&prefix));
            }
            let exchange = |process: &ServerProcess| {
                let answer = process
                    .exchange(&pieces)
                    .map_err(|error| format!("{}: {error}", pieces.concat().escape_ascii()));
                answer.map(|answer| normalised(&answer))
            };
            let (memcached, todana) = (exchange(&self.memcached)?, exchange(&self.todana)?);
            if memcached == todana {
                return Ok(None);
            }
            difference = Some(ReplyDifference { memcached, todana });
        }
        Ok(difference)
    }
}

/// Returns replies as text, without versions that a server chose, and without the replies to the
/// sentinels. A data block may have consumed some sentinels, so their number differs.
fn normalised(answer: &[u8]) -> String {
    let text = answer.escape_ascii().to_string().replace("\\r\\n", "\n");
    let mut lines = Vec::new();
    for line in text.lines().filter(|line| !matches!(*line, "" | "MN")) {
        let mut words: Vec<String> = line.split(' ').map(String::from).collect();
        let kind = words[0].clone();
        for (index, word) in words.iter_mut().enumerate() {
            let prefix = match kind.as_str() {
                "VALUE" if index == 4 => "",
                "HD" | "VA" | "EX" | "NS" | "NF" => "c",
                "ME" => "cas=",
                _ => continue,
            };
            let version = word.strip_prefix(prefix).and_then(|digits| digits.parse::<u64>().ok());
            if version.is_some_and(|version| (1..VERSION_MIN).contains(&version)) {
                *word = format!("{prefix}#");
            }
        }
        lines.push(words.join(" "));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::normalised;

    #[test]
    fn normalised_reply_keeps_only_versions_of_requests() {
        let answer = b"VALUE a 5 1 17\r\n9\r\nEND\r\nHD c8 t9\r\nHD c7000000000000001\r\nEX c0\r\nME k cas=4 cls=1\r\n";
        let kept = "VALUE a 5 1 #\n9\nEND\nHD c# t9\nHD c7000000000000001\nEX c0\nME k cas=# cls=1";
        assert_eq!(normalised(answer), kept);
    }
}
