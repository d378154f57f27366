//! Faulty clients, which misbehave all the time while others are served.

use super::node::{Node, REFUSED};
use super::tally::{Part, Tally};
use super::wire::{PATIENCE, Place, Wire, tcp};
use crate::garbage;
use socket2::SockRef;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// How many connections a storm has; more than any server of ours allows.
pub(super) const STORM: usize = 90;
/// Time to wait for a refusal; one that arrives later is counted as unknown.
const REFUSAL_MS: u64 = 300;

/// The servers and their faults.
pub(super) struct Faults {
    pub(super) nodes: Vec<Arc<Node>>,
    /// Refuses connections over its limit, and closes idle ones.
    pub(super) refusing: Arc<Node>,
    /// Lets connections over its limit wait; its memory is full.
    pub(super) waiting: Arc<Node>,
    /// Its files are limited.
    pub(super) poor: Arc<Node>,
    /// Where garbage goes.
    pub(super) robust: Arc<Node>,
    pub(super) tally: Arc<Tally>,
}

/// An outcome that has a name in the table.
type Done = io::Result<&'static str>;

fn wrong<T>(what: String) -> io::Result<T> {
    Err(io::Error::other(what))
}

fn address(node: &Node) -> io::Result<SocketAddr> {
    let found = node.places.iter().find_map(|place| match place {
        Place::Tcp(address) => Some(*address),
        _ => None,
    });
    found.ok_or_else(|| io::Error::other("a server without a TCP address"))
}

/// Many connections at once, all of which are answered in the end.
fn served_storm(node: &Node) -> io::Result<()> {
    let address = address(node)?;
    let mut streams: Vec<TcpStream> = (0..STORM).map(|_| tcp(address)).collect::<io::Result<_>>()?;
    for stream in &mut streams {
        stream.write_all(b"version\r\n")?;
    }
    for mut stream in streams {
        let mut answer = [0; 16];
        stream.read_exact(&mut answer)?;
        if &answer != b"VERSION 1.6.45\r\n" {
            return wrong(format!("version was answered {}", answer.escape_ascii()));
        }
    }
    Ok(())
}

/// A reset instead of an end.
fn reset(stream: TcpStream) -> io::Result<()> {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))
}

impl Faults {
    /// Plays the quick ones until the end.
    pub(super) fn run(&self, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut garbage = garbage::Random::new(seed);
        while !self.tally.ends() {
            let done = match random.u32(..20) {
                0..=3 => self.half(&mut random),
                4 | 5 => self.resets(&mut random),
                6 | 7 => self.slow_reader(&mut random),
                8..=11 => self.garbage(&mut garbage),
                12 => self.storm(),
                13 => self.waiting_storm(),
                14 => self.stalled_uploads(&mut random),
                15 => self.exhaustion(),
                16 => self.bad_tls(&mut random),
                17 => self.datagrams(&mut random),
                18 => self.broken_list(&mut random),
                _ => self.deaf_watcher(&mut random),
            };
            self.note(done);
            self.tally.pause(random.u64(20..150));
        }
    }

    /// Plays those that wait to be closed, until the end.
    pub(super) fn idle(&self) {
        while !self.tally.ends() {
            self.note(self.idle_connections());
        }
    }

    fn note(&self, done: Done) {
        match done {
            Ok(name) => self.tally.count(Part::Faults, name, 1),
            Err(error) => self.tally.fail(format!("fault: {error}")),
        }
    }

    fn any(&self, random: &mut fastrand::Rng) -> &Arc<Node> {
        &self.nodes[random.usize(..self.nodes.len())]
    }

    /// Any way to any server. `None` where it has connections enough.
    fn wire(&self, random: &mut fastrand::Rng) -> io::Result<Option<Wire>> {
        let node = self.any(random);
        let streams: Vec<&Place> =
            node.places.iter().filter(|place| !matches!(place, Place::Udp(_))).collect();
        let opened = Wire::open(streams[random.usize(..streams.len())]).and_then(|mut wire| {
            let line = wire.ask("mn")?;
            Ok((line, wire))
        });
        match opened {
            Ok((line, wire)) if line == "MN" => Ok(Some(wire)),
            Ok((line, _)) if line == REFUSED => {
                node.seen.refused.fetch_add(1, Ordering::Relaxed);
                Ok(None)
            }
            Ok((line, _)) => wrong(format!("mn was answered {line:?} by {:?}", node.name)),
            Err(_) if node.is_alive() => {
                node.seen.perhaps_refused.fetch_add(1, Ordering::Relaxed);
                Ok(None)
            }
            Err(error) => wrong(format!("server {:?} has fallen: {error}", node.name)),
        }
    }

    /// Half a request, and then nothing, an end, or a reset.
    fn half(&self, random: &mut fastrand::Rng) -> Done {
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
        let Some(mut wire) = self.wire(random)? else { return Ok("half a request, refused") };
        // Whether it is sent does not matter.
        let _ = wire.send(half);
        if half.ends_with(b"7000000\r\n") {
            let _ = wire.send(&vec![b'x'; random.usize(1..300_000)]);
        }
        if random.bool() {
            return Ok("half a request, then the end");
        }
        let address = address(&self.poor)?;
        let mut stream = tcp(address)?;
        let packet = [&[0x80, 0x01, 0, 5, 8][..], &[0; 6], &[0xff; 9]].concat();
        let _ = stream.write_all(if random.bool() { &packet } else { half });
        reset(stream)?;
        Ok("half a request, then a reset")
    }

    /// Whole requests whose client does not wait for the answers: nobody else shall get them.
    fn resets(&self, random: &mut fastrand::Rng) -> Done {
        for _ in 0..10 {
            let node = self.any(random);
            let Ok(address) = address(node) else { continue };
            let mut stream = tcp(address)?;
            // Above the limit the connection is refused, and nobody reads that.
            node.seen.perhaps_refused.fetch_add(1, Ordering::Relaxed);
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

    /// Asks for megabytes and reads none.
    fn slow_reader(&self, random: &mut fastrand::Rng) -> Done {
        let mut held = Vec::new();
        for n in 0..3 {
            let Some(mut wire) = self.wire(random)? else { continue };
            let len = 400_000;
            let head = format!("set fault:long:{n} 0 0 {len}\r\n");
            wire.send(&[head.as_bytes(), &vec![b'l'; len][..], b"\r\n"].concat())?;
            let line = wire.line()?;
            if line != "STORED" && !line.starts_with("SERVER_ERROR ") {
                return wrong(format!("set was answered {line:?}"));
            }
            wire.send(format!("get fault:long:{n}\r\n").repeat(40).as_bytes())?;
            held.push(wire);
        }
        self.tally.pause(random.u64(100..1500));
        Ok("slow readers")
    }

    fn garbage(&self, random: &mut garbage::Random) -> Done {
        for _ in 0..10 {
            let bytes = garbage::session(random);
            // A packet that flushes would be right to do so.
            if bytes.windows(2).any(|pair| matches!(pair, [0x80, 0x08 | 0x18])) {
                continue;
            }
            let mut stream = tcp(address(&self.robust)?)?;
            // The server may close at any moment; that is its right. It may not hang.
            let sent = stream.write_all(&bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
            let mut answer = Vec::new();
            if sent.is_ok()
                && let Err(error) = stream.read_to_end(&mut answer)
                && matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
            {
                return wrong(format!("hangs: {}", bytes.escape_ascii()));
            }
        }
        Ok("ten sessions of garbage")
    }

    /// More connections than are allowed, to a server that refuses them.
    fn storm(&self) -> Done {
        let node = &self.refusing;
        let address = address(node)?;
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
                Ok(_) => return wrong(format!("a refusal is {:?}", answer.escape_ascii().to_string())),
                // It is served, or its refusal is late.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let asked = stream.write_all(b"version\r\nquit\r\n");
                    match asked.and_then(|()| stream.read_to_end(&mut answer)) {
                        Ok(_) if answer == b"VERSION 1.6.45\r\n" => {}
                        Ok(_) if answer.is_empty() || answer.starts_with(REFUSED.as_bytes()) => {
                            node.seen.perhaps_refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(_) => return wrong(format!("version was answered {}", answer.escape_ascii())),
                        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                            return wrong("a connection of a storm was not answered".into());
                        }
                        Err(_) => drop(node.seen.perhaps_refused.fetch_add(1, Ordering::Relaxed)),
                    }
                }
                Err(_) => drop(node.seen.perhaps_refused.fetch_add(1, Ordering::Relaxed)),
            }
        }
        node.seen.refused.fetch_add(refused, Ordering::Relaxed);
        self.tally.count(Part::Outcomes, "connections refused", refused);
        Ok("storm against a server that refuses")
    }

    /// The same against a server that lets them wait.
    fn waiting_storm(&self) -> Done {
        served_storm(&self.waiting)?;
        Ok("storm against a server that lets wait")
    }

    /// Many long values that do not come to an end.
    fn stalled_uploads(&self, random: &mut fastrand::Rng) -> Done {
        let address = address(&self.waiting)?;
        let mut held = Vec::new();
        for n in 0..12 {
            let mut stream = tcp(address)?;
            stream.write_all(format!("set fault:upload:{n} 0 0 7000000\r\n").as_bytes())?;
            stream.write_all(&vec![b'u'; 1 << 20])?;
            held.push(stream);
        }
        self.tally.pause(random.u64(200..1500));
        for stream in held {
            if random.bool() {
                reset(stream)?;
            }
        }
        Ok("stalled uploads")
    }

    /// No descriptors are left; who came too late is served when others have gone.
    fn exhaustion(&self) -> Done {
        served_storm(&self.poor)?;
        Ok("no descriptors left")
    }

    /// Bytes that are not TLS, or an incomplete handshake.
    fn bad_tls(&self, random: &mut fastrand::Rng) -> Done {
        let places = self.nodes.iter().flat_map(|node| &node.places);
        for place in places {
            let Place::Tls(address, _) = place else { continue };
            let mut stream = tcp(*address)?;
            let bytes: Vec<u8> = match random.u32(..3) {
                0 => b"get k\r\n".to_vec(),
                1 => [&[22, 3, 1, 2, 0, 1, 0][..], &[7; 40]].concat(),
                _ => (0..200).map(|_| random.u8(..)).collect(),
            };
            // Closed or refused in any way; a handshake that stops is closed when it has been idle
            // for long.
            let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
            let mut answer = Vec::new();
            if let Err(error) = stream.read_to_end(&mut answer)
                && matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
            {
                return wrong("a connection that speaks no TLS is left open".into());
            }
        }
        Ok("no TLS, or half of it")
    }

    fn datagrams(&self, random: &mut fastrand::Rng) -> Done {
        let places = self.nodes.iter().flat_map(|node| &node.places);
        for place in places {
            let Place::Udp(address) = place else { continue };
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            for _ in 0..10 {
                let len = random.usize(..60);
                let mut bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
                // None of these may be a request that changes anything.
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

    /// Leaves in the middle of a list of all keys.
    fn broken_list(&self, random: &mut fastrand::Rng) -> Done {
        let node = self.any(random);
        let (answer, mut wire) = node.ask_for("lru_crawler metadump all")?;
        if answer != "OK" {
            return wrong(format!("metadump was answered {answer:?}"));
        }
        let line = wire.line()?;
        if line != "END" && !line.starts_with("key=") {
            return wrong(format!("a line of a list is {line:?}"));
        }
        Ok("a list that nobody reads to its end")
    }

    fn deaf_watcher(&self, random: &mut fastrand::Rng) -> Done {
        let (answer, wire) = self.any(random).ask_for("watch fetchers mutations")?;
        if answer != "OK" {
            return wrong(format!("watch was answered {answer:?}"));
        }
        self.tally.pause(random.u64(200..1500));
        drop(wire);
        Ok("a watcher that does not read")
    }

    /// Idle connections are closed without a reply, whether their last request was complete or not.
    fn idle_connections(&self) -> Done {
        let node = &self.refusing;
        let mut held = Vec::new();
        for half in ["", "get half", "set fault:idle 0 0 100\r\nabc"] {
            let (answer, mut wire) = node.ask_for("version")?;
            if answer != "VERSION 1.6.45" {
                return wrong(format!("version was answered {answer:?}"));
            }
            wire.send(half.as_bytes())?;
            held.push(wire);
        }
        for mut wire in held {
            if self.tally.ends() {
                return Ok("idle connections, at the end");
            }
            match wire.receive() {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {}
                Err(error) => return wrong(format!("an idle connection: {error} in {PATIENCE:?}")),
                Ok(()) => return wrong("an idle connection was told something".into()),
            }
            node.seen.kicked.fetch_add(1, Ordering::Relaxed);
        }
        Ok("idle connections, closed")
    }
}
