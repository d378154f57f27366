//! Defines the connection from a replica to its master. The address of the connection stays the
//! same while the master stops and starts. A test can cut the connection, or hold back its bytes.

use socket2::{Domain, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// The number of bytes that a master can send before they are read. It is small, so that a
/// connection that is held back soon blocks the master.
const WINDOW: usize = 64 << 10;

pub(crate) struct Line {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    target: Mutex<Option<SocketAddr>>,
    /// The sockets of both ends of each connection.
    streams: Mutex<Vec<TcpStream>>,
    is_held: Mutex<bool>,
    released: Condvar,
    /// The number of bytes that the master has sent while the connection was held back.
    kept_back: AtomicU64,
    ends: AtomicBool,
}

impl Line {
    pub(crate) fn new() -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, shared) = (listener.local_addr().unwrap(), Arc::<Shared>::default());
        let line = Arc::clone(&shared);
        let accepting = Some(std::thread::spawn(move || line.accept(&listener)));
        Line { address, shared, accepting }
    }

    /// Connects new clients to this address from now on. With `None`, new clients are not
    /// connected.
    pub(crate) fn lead_to(&self, target: Option<SocketAddr>) {
        *self.shared.target.lock().unwrap() = target;
    }

    pub(crate) fn cut(&self) {
        self.shared.cut();
    }

    /// Holds back all bytes of the master until `release` is called.
    pub(crate) fn hold(&self) {
        *self.shared.is_held.lock().unwrap() = true;
        self.shared.kept_back.store(0, Ordering::SeqCst);
    }

    pub(crate) fn release(&self) {
        *self.shared.is_held.lock().unwrap() = false;
        self.shared.released.notify_all();
    }

    /// Returns true if the master has sent bytes since `hold` was called.
    pub(crate) fn keeps_something_back(&self) -> bool {
        self.shared.kept_back.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        self.release();
        let _ = TcpStream::connect(self.address);
        let _ = self.accepting.take().map(JoinHandle::join);
        self.shared.cut();
    }
}

impl Shared {
    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn accept(self: &Arc<Shared>, listener: &TcpListener) {
        for replica in listener.incoming() {
            if self.ends.load(Ordering::SeqCst) {
                return;
            }
            let target = *self.target.lock().unwrap();
            let (Ok(replica), Some(Ok(master))) = (replica, target.map(connect)) else { continue };
            let mut streams = self.streams.lock().unwrap();
            for (from, to, is_held) in [(&replica, &master, false), (&master, &replica, true)] {
                streams.push(from.try_clone().unwrap());
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let line = Arc::clone(self);
                std::thread::spawn(move || line.pass_on(from, to, is_held));
            }
        }
    }

    fn pass_on(&self, mut from: TcpStream, mut to: TcpStream, can_be_held: bool) {
        let mut piece = vec![0; WINDOW];
        while let Ok(len @ 1..) = from.read(&mut piece) {
            if can_be_held {
                self.wait(len as u64);
            }
            if to.write_all(&piece[..len]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }

    fn wait(&self, len: u64) {
        let mut is_held = self.is_held.lock().unwrap();
        while *is_held {
            self.kept_back.fetch_add(len, Ordering::SeqCst);
            is_held = self.released.wait(is_held).unwrap();
        }
    }
}

fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_recv_buffer_size(WINDOW)?;
    socket.connect(&target.into())?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket.into())
}
