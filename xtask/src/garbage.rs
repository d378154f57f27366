//! Sends sessions of random bytes to a running server, which must not crash, hang or grow.

use crate::clients::TestServer;
use crate::step::StepOutcome;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// Maximum growth of the server's memory over all sessions.
const GROWTH_MAX_KB: u64 = 32 << 10;

/// A random number generator (xorshift64*) with the same sequence for the same seed.
pub(crate) struct GarbageSource(u64);

impl GarbageSource {
    /// Creates a generator; equal seeds give equal sequences.
    pub(crate) fn new(seed: u64) -> GarbageSource {
        // A state of zero would yield only zeros.
        GarbageSource(seed.max(1))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

const PIECES: [&[u8]; 36] = [
    b"get k\r\n",
    b"get a b c d e f\r\n",
    b"gets k\r\n",
    b"gat 10 k\r\n",
    b"set k 0 0 5\r\nhello\r\n",
    b"set k 0 0 5 noreply\r\nhello\r\n",
    b"set k 0 0 1000000\r\n",
    b"set k 0 0 2147483645\r\n",
    b"set k 0 0 -1\r\n",
    b"add n 1 1 2\r\n10\r\n",
    b"append k 0 0 3\r\nabc\r\n",
    b"cas k 0 0 1 7\r\nx\r\n",
    b"incr n 5\r\n",
    b"decr n 18446744073709551615\r\n",
    b"touch k 1\r\n",
    b"delete k\r\n",
    b"stats\r\n",
    b"stats items\r\n",
    b"stats slabs\r\n",
    b"version\r\n",
    b"verbosity 1\r\n",
    b"mn\r\n",
    b"mg k v s t c f h l k O123 q\r\n",
    b"mg a2V5 b k v\r\n",
    b"mg miss N30 v\r\n",
    b"ms k 5 T0 F1 c\r\nhello\r\n",
    b"ms k 99999999 S\r\n",
    b"md k q\r\n",
    b"ma n N0 J5 D1 v\r\n",
    b"me k\r\n",
    b"lru_crawler metadump all\r\n",
    b"\r\n",
    b"\n",
    b"quit\r\n",
    b"GET / HTTP/1.1\r\n",
    b"\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
];

/// Returns requests that a broken client could send.
pub(crate) fn session(random: &mut GarbageSource) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..=random.below(12) {
        match random.below(10) {
            0 => (0..random.below(300)).for_each(|_| bytes.push(random.next() as u8)),
            1 => bytes.extend(std::iter::repeat_n(b"gk \n"[random.below(4)], random.below(5000))),
            kind => {
                let mut piece = PIECES[random.below(PIECES.len())].to_vec();
                if kind < 5 {
                    // Half of the pieces are damaged at one place.
                    let at = random.below(piece.len());
                    match random.below(3) {
                        0 => piece[at] = random.next() as u8,
                        1 => drop(piece.remove(at)),
                        _ => piece.truncate(at),
                    }
                }
                bytes.extend(piece);
            }
        }
    }
    bytes
}

fn anonymous_kb(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

fn check_version(address: &str) -> Result<(), String> {
    let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).map_err(|error| error.to_string())?;
    stream.write_all(b"version\r\nquit\r\n").map_err(|error| error.to_string())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|error| error.to_string())?;
    if answer.starts_with("VERSION ") { Ok(()) } else { Err(format!("version: unexpected reply {answer:?}")) }
}

pub(crate) fn run(sessions: u32) -> StepOutcome {
    match send_sessions(sessions) {
        Ok(()) => StepOutcome::Passed,
        Err(error) => StepOutcome::Failed(error),
    }
}

fn send_sessions(sessions: u32) -> Result<(), String> {
    let mut server = TestServer::start(&[])?;
    check_version(&server.address)?;
    let before = anonymous_kb(server.pid()).ok_or("server: cannot read its memory from /proc")?;
    let mut random = GarbageSource(0x1234_5678_9ABC_DEF1);
    let mut answers = 0u64;
    for number in 0..sessions {
        let bytes = session(&mut random);
        let text = |error: std::io::Error| format!("session {number}: {error}");
        let mut stream = TcpStream::connect(&server.address).map_err(text)?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).map_err(text)?;
        stream.set_write_timeout(Some(Duration::from_secs(10))).map_err(text)?;
        // The server may close the connection at any moment, but it must not hang.
        let mut broken = false;
        let cut = random.below(bytes.len() + 1);
        for part in [&bytes[..cut], &bytes[cut..]] {
            broken = broken || stream.write_all(part).is_err();
        }
        if !broken && stream.shutdown(Shutdown::Write).is_ok() {
            let mut answer = Vec::new();
            match stream.read_to_end(&mut answer) {
                Ok(len) => answers += len as u64,
                Err(error)
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) =>
                {
                    return Err(format!("session {number}: hangs: {}", bytes.escape_ascii()));
                }
                Err(_) => {}
            }
        }
        if number % 1000 == 0 && !server.is_alive() {
            return Err(format!("session {number}: the server crashed before it"));
        }
    }
    check_version(&server.address)?;
    if !server.is_alive() {
        return Err("server: crashed".into());
    }
    let after = anonymous_kb(server.pid()).ok_or("server: cannot read its memory from /proc")?;
    println!("{sessions} sessions, {answers} bytes of answers; RssAnon {before} kB before, {after} kB after");
    if after > before + GROWTH_MAX_KB {
        return Err(format!("server: RssAnon grew by {} kB", after - before));
    }
    Ok(())
}
