//! A fake server: a listener whose connections delay, cut and falsify replies, as a random number
//! decides for each request.

use super::fake_request::FakeRequest;
use super::fake_store::FakeStore;
use fastrand::Rng;
use socket2::SockRef;
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// The error with which a fake server refuses a request.
pub(crate) const REFUSAL: &str = "SERVER_ERROR the fake server refuses";
/// Lines that are no replies.
const GARBAGE: [&[u8]; 5] =
    [b"GARBAGE\r\n", b"\x81\x00\x00\x05hello\r\n", b"VALUE\r\n", b"VALUE x 0 many\r\n", b"\r\n"];

/// The behaviour of a fake server.
#[derive(Clone, Copy)]
pub(crate) struct FaultPlan {
    /// One of this many requests meets a fault; 0 for none.
    pub(crate) every: u32,
    /// The time after which the proxy counts a reply as late.
    pub(crate) timeout: Duration,
    /// True if the server knows the text dialect only.
    pub(crate) is_text_only: bool,
}

/// A fault of a server.
#[derive(Clone, Copy)]
enum Fault {
    CutBefore,
    CutAfter,
    CutInReply,
    AnswerLate,
    ExecuteLate,
    Dribble,
    WrongKey,
    Garbage,
    Refuse,
    Silence,
    Restart,
}

const FAULTS: [Fault; 11] = [
    Fault::CutBefore,
    Fault::CutAfter,
    Fault::CutInReply,
    Fault::AnswerLate,
    Fault::ExecuteLate,
    Fault::Dribble,
    Fault::WrongKey,
    Fault::Garbage,
    Fault::Refuse,
    Fault::Silence,
    Fault::Restart,
];

/// A fake server. It ends when it is dropped.
pub(crate) struct FakeServer {
    pub(crate) address: SocketAddr,
    shared: Arc<FakeShared>,
}

struct FakeShared {
    plan: FaultPlan,
    listener: TcpListener,
    store: Mutex<FakeStore>,
    state: Mutex<FakeState>,
    /// Notified at the end of the server.
    ended: Condvar,
    /// All keys that requests named.
    keys: Mutex<HashSet<String>>,
    /// The mistakes of the proxy.
    mistakes: Mutex<Vec<String>>,
}

#[derive(Default)]
struct FakeState {
    is_over: bool,
    connections: Vec<TcpStream>,
    served: u64,
}

impl FakeServer {
    pub(crate) fn start(plan: FaultPlan, seed: u64) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(FakeShared {
            plan,
            listener,
            store: Mutex::default(),
            state: Mutex::default(),
            ended: Condvar::new(),
            keys: Mutex::default(),
            mistakes: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accepting.accept_all(seed));
        FakeServer { address, shared }
    }

    /// Returns the keys that requests named.
    pub(crate) fn keys(&self) -> HashSet<String> {
        self.shared.keys.lock().unwrap().clone()
    }

    /// Returns what the proxy did wrong.
    pub(crate) fn mistakes(&self) -> Vec<String> {
        self.shared.mistakes.lock().unwrap().clone()
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap().is_over = true;
        self.shared.ended.notify_all();
        self.shared.close_all();
        let _ = SockRef::from(&self.shared.listener).shutdown(Shutdown::Both);
    }
}

impl FakeShared {
    fn is_over(&self) -> bool {
        self.state.lock().unwrap().is_over
    }

    /// Waits for this time. The end of the server ends the wait.
    fn pause(&self, time: Duration) {
        let state = self.state.lock().unwrap();
        drop(self.ended.wait_timeout_while(state, time, |state| !state.is_over));
    }

    fn close_all(&self) {
        for connection in self.state.lock().unwrap().connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    fn accept_all(self: Arc<FakeShared>, seed: u64) {
        let mut random = Rng::with_seed(seed);
        while !self.is_over() {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nodelay(true).unwrap();
                    let mut state = self.state.lock().unwrap();
                    state.connections.push(stream.try_clone().unwrap());
                    state.served += 1;
                    drop(state);
                    let (shared, random) = (Arc::clone(&self), random.fork());
                    std::thread::spawn(move || shared.serve(stream, random));
                }
                // The listener was shut down: connections are refused until it listens again.
                Err(_) => {
                    self.pause(Duration::from_millis(random.u64(1..60)));
                    if !self.is_over() {
                        SockRef::from(&self.listener).listen(128).unwrap();
                    }
                }
            }
        }
    }

    fn serve(&self, mut stream: TcpStream, mut random: Rng) {
        let (mut input, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            match stream.read(&mut buffer) {
                Ok(len) if len > 0 => input.extend_from_slice(&buffer[..len]),
                _ => break,
            }
            let mut out = Vec::new();
            let mut consumed = 0;
            loop {
                match FakeRequest::parse(&input[consumed..]) {
                    Ok(Some((len, request))) => {
                        consumed += len;
                        if !self.answer(&request, &mut stream, &mut out, &mut random) {
                            let _ = stream.shutdown(Shutdown::Both);
                            return;
                        }
                    }
                    Ok(None) => break,
                    Err(mistake) => return self.mistakes.lock().unwrap().push(mistake),
                }
            }
            input.drain(..consumed);
            if stream.write_all(&out).is_err() {
                break;
            }
        }
    }

    /// Answers a request. Returns false if the connection must end.
    fn answer(
        &self,
        request: &FakeRequest,
        stream: &mut TcpStream,
        out: &mut Vec<u8>,
        random: &mut Rng,
    ) -> bool {
        self.check(request);
        let every = self.plan.every;
        // Probes and the choice of the dialect meet faults, too, but less often.
        let rate = if request.keys().is_empty() { every * 4 } else { every };
        if rate == 0 || random.u32(..rate) != 0 {
            self.execute(request, out);
            return true;
        }
        let mut reply = Vec::new();
        let late = self.plan.timeout.mul_f32(random.f32() * 2.5);
        match FAULTS[random.usize(..FAULTS.len())] {
            Fault::CutBefore => return false,
            Fault::CutAfter => {
                self.execute(request, &mut reply);
                let _ = stream.write_all(out);
                return false;
            }
            Fault::CutInReply => {
                self.execute(request, &mut reply);
                let _ = stream.write_all(out);
                let _ = stream.write_all(&reply[..random.usize(..reply.len())]);
                return false;
            }
            Fault::AnswerLate => {
                self.execute(request, &mut reply);
                let _ = stream.write_all(out);
                out.clear();
                self.pause(late);
            }
            Fault::ExecuteLate => {
                let _ = stream.write_all(out);
                out.clear();
                self.pause(late);
                self.execute(request, &mut reply);
            }
            Fault::Dribble => {
                self.execute(request, &mut reply);
                out.append(&mut reply);
                for piece in out.chunks(out.len().div_ceil(8).max(1)) {
                    let _ = stream.write_all(piece);
                    self.pause(self.plan.timeout.mul_f32(random.f32() * 0.6));
                }
                out.clear();
            }
            Fault::WrongKey if matches!(request.name(), "get" | "gets" | "gat" | "gats") => {
                let cas = if request.name().ends_with('s') { " 1" } else { "" };
                reply.extend_from_slice(format!("VALUE of:another 0 3{cas}\r\nbad\r\nEND\r\n").as_bytes());
            }
            Fault::Garbage | Fault::WrongKey => {
                reply.extend_from_slice(GARBAGE[random.usize(..GARBAGE.len())])
            }
            Fault::Refuse => reply.extend_from_slice(format!("{REFUSAL}\r\n").as_bytes()),
            Fault::Silence => {
                let _ = stream.write_all(out);
                while stream.read(&mut [0; 1024]).is_ok_and(|len| len > 0) {}
                return false;
            }
            Fault::Restart => {
                let _ = SockRef::from(&self.listener).shutdown(Shutdown::Both);
                self.close_all();
                return false;
            }
        }
        out.append(&mut reply);
        true
    }

    fn execute(&self, request: &FakeRequest, out: &mut Vec<u8>) {
        if self.plan.is_text_only && matches!(request.name(), "mg" | "ms" | "md" | "ma" | "mn") {
            out.extend_from_slice(b"ERROR\r\n");
        } else {
            self.store.lock().unwrap().execute(request, out);
        }
    }

    /// Notes a request that the proxy must not send.
    fn check(&self, request: &FakeRequest) {
        let mut mistakes = self.mistakes.lock().unwrap();
        if request.is_quiet() {
            mistakes.push(format!("{:?}: may have no reply", request.words));
        }
        if request.keys().iter().any(|key| key.len() > 250) {
            mistakes.push(format!("{:?}: has a key that is too long", request.words));
        }
        self.keys.lock().unwrap().extend(request.keys().iter().cloned());
    }
}
