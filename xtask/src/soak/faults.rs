//! Faulty clients, which misbehave throughout the run while the server serves other clients.

use super::connection::{ClientConnection, REPLY_TIMEOUT, ServerAddress, tcp};
use super::progress::{RunProgress, TableSection};
use super::server::{REFUSED, SoakServer};
use crate::garbage;
use socket2::SockRef;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// The number of connections opened at once in a storm; more than any of the servers allows.
pub(super) const STORM: usize = 90;
/// The time to wait for a refusal. A connection without one by then counts as perhaps refused.
const REFUSAL_MS: u64 = 300;
/// The time after which the server that refuses connections closes an idle one.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// The servers, and which faults each of them gets.
pub(super) struct FaultyClients {
    pub(super) servers: Vec<Arc<SoakServer>>,
    /// Refuses connections over its limit, and closes idle ones.
    pub(super) refusing: Arc<SoakServer>,
    /// Keeps connections over its limit waiting; its memory is full.
    pub(super) waiting: Arc<SoakServer>,
    /// May open few files.
    pub(super) poor: Arc<SoakServer>,
    /// Gets sessions of random bytes.
    pub(super) robust: Arc<SoakServer>,
    pub(super) progress: Arc<RunProgress>,
}

/// The name of a completed fault in the table at the end.
type FaultOutcome = io::Result<&'static str>;

fn wrong<T>(what: String) -> io::Result<T> {
    Err(io::Error::other(what))
}

fn address(server: &SoakServer) -> io::Result<SocketAddr> {
    let found = server.addresses.iter().find_map(|address| match address {
        ServerAddress::Tcp(address) => Some(*address),
        _ => None,
    });
    found.ok_or_else(|| io::Error::other("server: has no TCP address"))
}

/// Opens many connections at once and checks that the server replies to all of them in the end.
fn served_storm(server: &SoakServer) -> io::Result<()> {
    let address = address(server)?;
    let mut streams: Vec<TcpStream> = (0..STORM).map(|_| tcp(address)).collect::<io::Result<_>>()?;
    for stream in &mut streams {
        stream.write_all(b"version\r\n")?;
    }
    for mut stream in streams {
        let mut answer = [0; 16];
        stream.read_exact(&mut answer)?;
        if &answer != b"VERSION 1.6.45\r\n" {
            return wrong(format!("version: unexpected reply {}", answer.escape_ascii()));
        }
    }
    Ok(())
}

/// Closes a connection with a reset.
fn reset(stream: TcpStream) -> io::Result<()> {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))
}

impl FaultyClients {
    /// Runs the quick faults until the run stops.
    pub(super) fn run(&self, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut garbage = garbage::GarbageSource::new(seed);
        while !self.progress.is_stopped() {
            let done = match random.u32(..20) {
                0..=3 => self.half_request(&mut random),
                4 | 5 => self.reset_before_replies(&mut random),
                6 | 7 => self.slow_reader(&mut random),
                8..=11 => self.garbage(&mut garbage),
                12 => self.storm(),
                13 => self.waiting_storm(),
                14 => self.stalled_uploads(&mut random),
                15 => self.exhaust_descriptors(),
                16 => self.bad_tls(&mut random),
                17 => self.datagrams(&mut random),
                18 => self.broken_list(&mut random),
                _ => self.deaf_watcher(&mut random),
            };
            self.count_outcome(done);
            self.progress.pause(random.u64(20..150));
        }
    }

    /// Runs the faults that wait until the server closes the connection, until the run stops.
    pub(super) fn run_idle(&self) {
        while !self.progress.is_stopped() {
            self.count_outcome(self.idle_connections());
        }
    }

    fn count_outcome(&self, done: FaultOutcome) {
        match done {
            Ok(name) => self.progress.count(TableSection::Faults, name, 1),
            Err(error) => self.progress.fail(format!("fault: {error}")),
        }
    }

    fn any_server(&self, random: &mut fastrand::Rng) -> &Arc<SoakServer> {
        &self.servers[random.usize(..self.servers.len())]
    }

    /// Connects to any server over any transport. Returns `None` if the server refuses because it
    /// has too many connections.
    fn connect_anywhere(&self, random: &mut fastrand::Rng) -> io::Result<Option<ClientConnection>> {
        let server = self.any_server(random);
        let streams: Vec<&ServerAddress> =
            server.addresses.iter().filter(|address| !matches!(address, ServerAddress::Udp(_))).collect();
        let opened =
            ClientConnection::open(streams[random.usize(..streams.len())]).and_then(|mut connection| {
                let line = connection.ask("mn")?;
                Ok((line, connection))
            });
        match opened {
            Ok((line, connection)) if line == "MN" => Ok(Some(connection)),
            Ok((line, _)) if line == REFUSED => {
                server.connection_counts.refused.fetch_add(1, Ordering::Relaxed);
                Ok(None)
            }
            Ok((line, _)) => wrong(format!("mn: unexpected reply {line:?} from {:?}", server.name)),
            Err(_) if server.is_alive() => {
                server.connection_counts.perhaps_refused.fetch_add(1, Ordering::Relaxed);
                Ok(None)
            }
            Err(error) => wrong(format!("server {:?}: crashed: {error}", server.name)),
        }
    }

    /// Sends half a request, and then nothing, an end, or a reset.
    fn half_request(&self, random: &mut fastrand::Rng) -> FaultOutcome {
        let halves: [&[u8]; 8] = [
            b"set fault:k 0 0 1000\r\nabc",
            b"get fault",
            b"ms fault:k 500 T0",
            b"ms fault:k 5\r\nabcde",
            b"set fault:k 0 0 7000000\r\n",
            b"set fault:k 0 0 100000\r\nabc",
            b"gets a b c d e f",
            b"incr fault:k 1\r",
        ];
        let half = halves[random.usize(..halves.len())];
        let Some(mut connection) = self.connect_anywhere(random)? else {
            return Ok("half a request: refused");
        };
        // A failure to send is as good a fault.
        let _ = connection.send(half);
        if half.ends_with(b"7000000\r\n") {
            let _ = connection.send(&vec![b'x'; random.usize(1..300_000)]);
        }
        if random.bool() {
            return Ok("half a request, then closed");
        }
        let address = address(&self.poor)?;
        let mut stream = tcp(address)?;
        let packet = [&[0x80, 0x01, 0, 5, 8][..], &[0; 6], &[0xff; 9]].concat();
        let _ = stream.write_all(if random.bool() { &packet } else { half });
        reset(stream)?;
        Ok("half a request, then a reset")
    }

    /// Sends complete requests and resets the connection before the replies. No other client may
    /// receive these replies.
    fn reset_before_replies(&self, random: &mut fastrand::Rng) -> FaultOutcome {
        for _ in 0..10 {
            let server = self.any_server(random);
            let Ok(address) = address(server) else { continue };
            let mut stream = tcp(address)?;
            // A connection over the limit is refused, which this client does not read.
            server.connection_counts.perhaps_refused.fetch_add(1, Ordering::Relaxed);
            let requests: [&[u8]; 4] = [
                b"version\r\n",
                b"get fault:long:0\r\n",
                b"set fault:k 0 0 3\r\nabc\r\nget fault:k\r\nno such command\r\n",
                b"\x80\x0b\0\0\0\0\0\0\0\0\0\0FFFF\0\0\0\0\0\0\0\0",
            ];
            let _ = stream.write_all(requests[random.usize(..requests.len())]);
            reset(stream)?;
        }
        Ok("ten requests, then resets")
    }

    /// Requests megabytes and reads none of them.
    fn slow_reader(&self, random: &mut fastrand::Rng) -> FaultOutcome {
        let mut expected_records = Vec::new();
        for n in 0..3 {
            let Some(mut connection) = self.connect_anywhere(random)? else { continue };
            let len = 400_000;
            let head = format!("set fault:long:{n} 0 0 {len}\r\n");
            connection.send(&[head.as_bytes(), &vec![b'l'; len][..], b"\r\n"].concat())?;
            let line = connection.line()?;
            if line != "STORED" && !line.starts_with("SERVER_ERROR ") {
                return wrong(format!("set: unexpected reply {line:?}"));
            }
            connection.send(format!("get fault:long:{n}\r\n").repeat(40).as_bytes())?;
            expected_records.push(connection);
        }
        self.progress.pause(random.u64(100..1500));
        Ok("slow readers")
    }

    fn garbage(&self, random: &mut garbage::GarbageSource) -> FaultOutcome {
        for _ in 0..10 {
            let bytes = garbage::session(random);
            // Sessions with a flush packet are skipped, because a valid flush would change the
            // model.
            if bytes.windows(2).any(|pair| matches!(pair, [0x80, 0x08 | 0x18])) {
                continue;
            }
            let mut stream = tcp(address(&self.robust)?)?;
            // The server may close the connection at any moment, but it must not hang.
            let sent = stream.write_all(&bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
            let mut answer = Vec::new();
            if sent.is_ok()
                && let Err(error) = stream.read_to_end(&mut answer)
                && matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
            {
                return wrong(format!("hangs: {}", bytes.escape_ascii()));
            }
        }
        Ok("ten sessions of random bytes")
    }

    /// Opens more connections than allowed to a server that refuses them.
    fn storm(&self) -> FaultOutcome {
        let server = &self.refusing;
        let address = address(server)?;
        let start = Instant::now();
        let streams: Vec<TcpStream> = (0..STORM).map(|_| tcp(address)).collect::<io::Result<_>>()?;
        thread::sleep(Duration::from_millis(REFUSAL_MS));
        let mut refused = 0;
        for mut stream in streams {
            stream.set_nonblocking(true)?;
            let mut answer = Vec::new();
            let early = stream.read_to_end(&mut answer);
            stream.set_nonblocking(false)?;
            match early {
                Ok(_) if answer == format!("{REFUSED}\r\n").as_bytes() => refused += 1,
                // On a busy machine, this client may be so late.
                Ok(_) if answer.is_empty() && start.elapsed() >= IDLE_TIMEOUT => {
                    server.connection_counts.closed_idle.fetch_add(1, Ordering::Relaxed);
                }
                Ok(_) => {
                    return wrong(format!(
                        "connection over the limit: unexpected reply {:?}",
                        answer.escape_ascii().to_string()
                    ));
                }
                // The connection is served, or its refusal is late.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let asked = stream.write_all(b"version\r\nquit\r\n");
                    match asked.and_then(|()| stream.read_to_end(&mut answer)) {
                        Ok(_) if answer == b"VERSION 1.6.45\r\n" => {}
                        Ok(_) if answer.is_empty() || answer.starts_with(REFUSED.as_bytes()) => {
                            server.connection_counts.perhaps_refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(_) => {
                            return wrong(format!("version: unexpected reply {}", answer.escape_ascii()));
                        }
                        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                            return wrong("connection of a storm: no reply".into());
                        }
                        Err(_) => {
                            server.connection_counts.perhaps_refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                Err(_) => {
                    server.connection_counts.perhaps_refused.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        server.connection_counts.refused.fetch_add(refused, Ordering::Relaxed);
        self.progress.count(TableSection::Outcomes, "connections refused", refused);
        Ok("more connections than allowed, refused")
    }

    /// Opens more connections than allowed to a server that keeps them waiting.
    fn waiting_storm(&self) -> FaultOutcome {
        served_storm(&self.waiting)?;
        Ok("more connections than allowed, waiting")
    }

    /// Sends many long values without their ends.
    fn stalled_uploads(&self, random: &mut fastrand::Rng) -> FaultOutcome {
        let address = address(&self.waiting)?;
        let mut expected_records = Vec::new();
        for n in 0..12 {
            let mut stream = tcp(address)?;
            stream.write_all(format!("set fault:upload:{n} 0 0 7000000\r\n").as_bytes())?;
            stream.write_all(&vec![b'u'; 1 << 20])?;
            expected_records.push(stream);
        }
        self.progress.pause(random.u64(200..1500));
        for stream in expected_records {
            if random.bool() {
                reset(stream)?;
            }
        }
        Ok("stalled uploads")
    }

    /// Opens more connections than the server has file descriptors. The server must reply to the
    /// late ones after others have closed.
    fn exhaust_descriptors(&self) -> FaultOutcome {
        served_storm(&self.poor)?;
        Ok("no file descriptors left")
    }

    /// Sends bytes that are not TLS, or an incomplete handshake.
    fn bad_tls(&self, random: &mut fastrand::Rng) -> FaultOutcome {
        let addresses = self.servers.iter().flat_map(|server| &server.addresses);
        for address in addresses {
            let ServerAddress::Tls(address, _) = address else { continue };
            let mut stream = tcp(*address)?;
            let bytes: Vec<u8> = match random.u32(..3) {
                0 => b"get k\r\n".to_vec(),
                1 => [&[22, 3, 1, 2, 0, 1, 0][..], &[7; 40]].concat(),
                _ => (0..200).map(|_| random.u8(..)).collect(),
            };
            // The server may close or refuse the connection in any way; it closes a stopped
            // handshake after the idle timeout.
            let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
            let mut answer = Vec::new();
            if let Err(error) = stream.read_to_end(&mut answer)
                && matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
            {
                return wrong("connection without TLS: left open".into());
            }
        }
        Ok("no TLS, or half a handshake")
    }

    fn datagrams(&self, random: &mut fastrand::Rng) -> FaultOutcome {
        let addresses = self.servers.iter().flat_map(|server| &server.addresses);
        for address in addresses {
            let ServerAddress::Udp(address) = address else { continue };
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            for _ in 0..10 {
                let len = random.usize(..60);
                let mut bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
                // A random datagram must not be a request that changes a record.
                if len > 8 && random.bool() {
                    bytes[..8].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
                    bytes[8] = b'!';
                }
                if bytes.get(8) == Some(&0x80) {
                    bytes[8] = b'?';
                }
                socket.send_to(&bytes, address)?;
            }
        }
        Ok("broken datagrams")
    }

    /// Disconnects in the middle of a list of all keys.
    fn broken_list(&self, random: &mut fastrand::Rng) -> FaultOutcome {
        let server = self.any_server(random);
        let (answer, mut connection) = server.connect_and_ask("lru_crawler metadump all")?;
        if answer != "OK" {
            return wrong(format!("metadump: unexpected reply {answer:?}"));
        }
        let line = connection.line()?;
        if line != "END" && !line.starts_with("key=") {
            return wrong(format!("metadump: unexpected line {line:?}"));
        }
        Ok("key list not read to its end")
    }

    fn deaf_watcher(&self, random: &mut fastrand::Rng) -> FaultOutcome {
        let (answer, connection) = self.any_server(random).connect_and_ask("watch fetchers mutations")?;
        if answer != "OK" {
            return wrong(format!("watch: unexpected reply {answer:?}"));
        }
        self.progress.pause(random.u64(200..1500));
        drop(connection);
        Ok("watcher that does not read")
    }

    /// Checks that the server closes idle connections without a reply, whether their last request
    /// was complete or not.
    fn idle_connections(&self) -> FaultOutcome {
        let server = &self.refusing;
        let mut expected_records = Vec::new();
        for half in ["", "get half", "set fault:idle 0 0 100\r\nabc"] {
            let (answer, mut connection) = server.connect_and_ask("version")?;
            if answer != "VERSION 1.6.45" {
                return wrong(format!("version: unexpected reply {answer:?}"));
            }
            connection.send(half.as_bytes())?;
            expected_records.push(connection);
        }
        for mut connection in expected_records {
            if self.progress.is_stopped() {
                return Ok("idle connections when the run stopped");
            }
            match connection.receive() {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {}
                Err(error) => return wrong(format!("idle connection: {error} within {REPLY_TIMEOUT:?}")),
                Ok(()) => return wrong("idle connection: received a reply".into()),
            }
            server.connection_counts.closed_idle.fetch_add(1, Ordering::Relaxed);
        }
        Ok("idle connections, closed")
    }
}
