//! The connection of a replica to its master, with or without TLS.

use crate::options::PoolTlsOptions;
use crate::replica::master_follower::connect;
use crate::replica::options::{MasterAddress, NativeReplicaOptions};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use todana_client::{Tls, TlsFiles, TlsStream};

/// A read ends after this time without a byte.
pub(super) const READ_TIME_MAX: Duration = Duration::from_millis(100);
/// The time limit of a write, and of the TLS handshake.
const REPLY_TIME_MAX: Duration = Duration::from_secs(30);
/// The longest password file in bytes.
const FILE_LEN_MAX: u64 = 64 << 10;

/// A connection to a master.
pub(super) enum MasterStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl MasterStream {
    fn connect(master: &MasterAddress, tls: Option<&PoolTlsOptions>) -> io::Result<MasterStream> {
        let socket = connect(master)?;
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(REPLY_TIME_MAX))?;
        socket.set_read_timeout(Some(READ_TIME_MAX))?;
        let Some(options) = tls else { return Ok(MasterStream::Plain(socket)) };
        // The files are read again for each connection, because certificates are renewed.
        let (ca, cert, key) = (options.ca.clone(), options.cert.clone(), options.key.clone());
        let tls = Tls::load(&TlsFiles { ca, cert, key })?;
        let name = options.server_name.as_deref().unwrap_or(&master.host);
        socket.set_read_timeout(Some(REPLY_TIME_MAX))?;
        let stream = tls.connect(name, socket)?;
        stream.socket_ref().set_read_timeout(Some(READ_TIME_MAX))?;
        Ok(MasterStream::Tls(Box::new(stream)))
    }

    /// Reads some bytes. Fails with `WouldBlock` or `TimedOut` if none arrive in time.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            MasterStream::Plain(stream) => stream.read(buffer),
            MasterStream::Tls(stream) => stream.read(buffer),
        }
    }

    /// Sends all bytes.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            MasterStream::Plain(stream) => stream.write_all(bytes),
            MasterStream::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }
}

/// A connection that a thread of its own opens: neither the search for the address of a name nor a
/// handshake can be interrupted.
pub(super) struct PendingStream(Receiver<io::Result<MasterStream>>);

impl PendingStream {
    pub(super) fn open(master: &MasterAddress, tls: Option<&PoolTlsOptions>) -> io::Result<PendingStream> {
        let (master, tls) = (master.clone(), tls.cloned());
        let (sender, opened) = channel();
        std::thread::Builder::new().name("connect".into()).spawn(move || {
            // If this fails, the server has stopped.
            let _ = sender.send(MasterStream::connect(&master, tls.as_ref()));
        })?;
        Ok(PendingStream(opened))
    }

    /// Waits for a moment. Returns `None` if the connection is still being opened.
    pub(super) fn wait(&self) -> Option<io::Result<MasterStream>> {
        match self.0.recv_timeout(READ_TIME_MAX) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(io::Error::other("the thread panicked"))),
        }
    }
}

/// Returns the user and the password for the master; both are empty without a login. The file of
/// the password is read again for each connection.
pub(super) fn login(options: &NativeReplicaOptions) -> io::Result<(String, String)> {
    let Some(login) = &options.login else { return Ok(Default::default()) };
    let password = match &login.password {
        Some(password) => password.clone(),
        None => {
            let path = &login.password_file;
            let wrong = |error: io::Error| {
                let text = format!("{}: cannot read the password: {error}", path.display());
                io::Error::new(error.kind(), text)
            };
            let file = std::fs::File::open(path).map_err(wrong)?;
            let mut text = String::new();
            file.take(FILE_LEN_MAX).read_to_string(&mut text).map_err(wrong)?;
            text.lines().next().unwrap_or_default().to_string()
        }
    };
    Ok((login.user.clone(), password))
}
