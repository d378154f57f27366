//! Two servers, and what each answers to the same bytes.

use super::draft::VERSION_MIN;
use super::request::Request;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Far above what an answer takes: it only ends what would hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// Makes up for a block that is still waited for, and shows where an answer ends.
const SENTINEL: &[u8] = b"mn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\n";

/// A server under memcached's command line, on a port that it chose; stopped when it goes out of
/// scope.
struct Process {
    child: Child,
    port: u16,
}

impl Process {
    fn start(program: &Path, words: &[&str], port_file: &Path) -> Result<Process, String> {
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
        // Made first, so that it is stopped whatever happens.
        let mut process = Process { child, port: 0 };
        let start = Instant::now();
        while !port_file.exists() {
            if process.child.try_wait().map_err(text)?.is_some() || start.elapsed() > PATIENCE {
                return Err(format!("{} does not start", program.display()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let ports = std::fs::read_to_string(port_file).map_err(text)?;
        let port = ports.lines().find_map(|line| line.strip_prefix("TCP INET: "));
        process.port = port.and_then(|port| port.trim().parse().ok()).ok_or("a port file without a port")?;
        Ok(process)
    }

    /// Everything that it answers until it closes. Each piece is answered before the next is sent.
    fn ask(&self, pieces: &[Vec<u8>]) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
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
            // So that the next piece waits for its own.
            answer.extend_from_slice(b"\r\n");
        }
        // The replies that a request still waits for.
        let _ = stream.write_all(&SENTINEL.repeat(10));
        let _ = stream.shutdown(Shutdown::Write);
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// memcached and Todana.
pub(super) struct Pair {
    memcached: Process,
    todana: Process,
    /// How many sessions have been sent: each has keys of its own.
    sent: u64,
    _folder: tempfile::TempDir,
}

/// Answers that differ.
pub(super) struct Difference {
    pub(super) memcached: String,
    pub(super) todana: String,
}

impl Pair {
    pub(super) fn start(memcached: &Path, todana: &Path) -> Result<Pair, String> {
        let folder = tempfile::TempDir::new().map_err(|error| error.to_string())?;
        let memcached = Process::start(memcached, &[], &folder.path().join("memcached"))?;
        let todana = Process::start(todana, &["as", "memcached"], &folder.path().join("todana"))?;
        let pair = Pair { memcached, todana, sent: 0, _folder: folder };
        // Access times are kept from the first request on that asks for them.
        pair.todana.ask(&[b"mg k h l\r\n".to_vec()]).map_err(|error| error.to_string())?;
        Ok(pair)
    }

    /// Sends a session to both. Seconds may change between the two, so answers that differ are
    /// asked for again.
    pub(super) fn compare(&mut self, session: &[Request]) -> Result<Option<Difference>, String> {
        let mut difference = None;
        for _ in 0..2 {
            self.sent += 1;
            let prefix = format!("p{:08}", self.sent);
            let mut pieces = vec![Vec::new()];
            for request in session {
                if request.waits() {
                    pieces.push(Vec::new());
                }
                pieces.last_mut().expect("there is one from the start").extend(request.render(&prefix));
            }
            let ask = |process: &Process| {
                let answer = process
                    .ask(&pieces)
                    .map_err(|error| format!("{}: {error}", pieces.concat().escape_ascii()));
                answer.map(|answer| normalised(&answer))
            };
            let (memcached, todana) = (ask(&self.memcached)?, ask(&self.todana)?);
            if memcached == todana {
                return Ok(None);
            }
            difference = Some(Difference { memcached, todana });
        }
        Ok(difference)
    }
}

/// An answer as text, without what servers choose themselves (versions that no request has named)
/// and without the answers to the sentinels, of which a block may have swallowed some.
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
    fn versions_of_servers_are_left_out_and_those_of_requests_kept() {
        let answer = b"VALUE a 5 1 17\r\n9\r\nEND\r\nHD c8 t9\r\nHD c7000000000000001\r\nEX c0\r\nME k cas=4 cls=1\r\n";
        let kept = "VALUE a 5 1 #\n9\nEND\nHD c# t9\nHD c7000000000000001\nEX c0\nME k cas=# cls=1";
        assert_eq!(normalised(answer), kept);
    }
}
