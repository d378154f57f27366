//! A machine with a disk of its own, on which a server runs.

use super::PATIENCE;
use super::line::Line;
use crate::crash_disk::CrashDisk;
use crate::running::{Client, Running, options};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana::update_log::SyncPolicy;
use todana_server::{
    DataDirectoryOptions, DatabaseOptions, KyotoMode, KyotoOptions, LimitOptions, ListenOptions,
    MasterAddress, Name, ProtocolOptions, ReplicationOptions, Server, ServerOptions,
};

/// Values, and the seconds when they expire, by key.
pub(crate) type Records = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

/// A hash on disk, with an update log for replicas.
pub(crate) const HASH: &str = "/x.hash";

pub(crate) struct Site {
    number: u16,
    engine: &'static str,
    disk: CrashDisk,
    folder: tempfile::TempDir,
    pub(crate) master: Option<SocketAddr>,
    running: Option<Running>,
    /// The line to this server.
    pub(crate) line: Line,
}

impl Site {
    pub(crate) fn new(number: u16, engine: &'static str) -> Site {
        let (disk, folder) = (CrashDisk::new(), tempfile::tempdir().unwrap());
        Site { number, engine, disk, folder, master: None, running: None, line: Line::new() }
    }

    fn position_file(&self) -> PathBuf {
        self.folder.path().join("position")
    }

    fn options(&self) -> ServerOptions {
        // Synced by replicas' rounds alone, nearly: a loss of power takes much with it.
        let mut data = DataDirectoryOptions::new("/data".into(), SyncPolicy::Every(Duration::from_secs(2)));
        data.segment_len = 256 << 10;
        data.checkpoints.log_kept_len = 1 << 30;
        data.is_for_replicas = self.engine == HASH;
        let master = self.master.map(|to| MasterAddress { host: to.ip().to_string(), port: to.port() });
        let position_file = Some(self.position_file());
        let replication = ReplicationOptions {
            server_id: self.number,
            master,
            position_file,
            interval: Duration::from_millis(1),
        };
        let database = Name::parse(self.engine).ok();
        let data = Some(data);
        ServerOptions {
            listen: ListenOptions { port: 0, ..options().listen },
            protocols: ProtocolOptions {
                kyoto: KyotoOptions { spoken: KyotoMode::Beside, ..options().protocols.kyoto },
                ..options().protocols
            },
            databases: DatabaseOptions { database, data, replication, ..options().databases },
            limits: LimitOptions { threads: 1, ..options().limits },
            ..options()
        }
    }

    pub(crate) fn start(&mut self) {
        let disk = || Arc::new(self.disk.clone());
        let open = || {
            let mut server = Server::bind_on(self.options(), None, disk())?;
            server.load(&mut |_| ()).map(|_| server)
        };
        let since = Instant::now();
        let server = loop {
            match open() {
                Ok(server) => break server,
                // Threads of the one before may still have to find out that their disk is gone.
                Err(error) if is_taken(&error) && since.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) => panic!("{error}"),
            }
        };
        let running = Running::of(server);
        self.line.lead_to(Some(running.addresses[0]));
        self.running = Some(running);
    }

    pub(crate) fn runs(&self) -> bool {
        self.running.is_some()
    }

    /// Stops in good order. A server that has not been given the time for it gives its disk up, and
    /// ends as one that is killed.
    pub(crate) fn stop(&mut self) {
        self.line.lead_to(None);
        let Some(mut running) = self.running.take() else { return };
        running.handle.stop();
        running.handle.stop();
        if running.outcome().is_err() {
            self.end_process(None);
        }
    }

    /// The process is killed or, with a seed, the machine loses its power.
    pub(crate) fn crash(&mut self, power_lost: Option<u64>) {
        self.line.lead_to(None);
        self.end_process(power_lost);
    }

    fn end_process(&mut self, power_lost: Option<u64>) {
        self.disk.stop();
        let left = self.disk.state();
        self.running = None;
        // Threads of the server may not have found out yet that it is over: what they write goes to
        // a disk that is gone.
        self.disk = CrashDisk::with(power_lost.map_or_else(|| left.clone(), |seed| left.reboot(seed)));
    }

    /// How far the master has been followed is on disk, and all before it.
    pub(crate) fn has_position(&self) -> bool {
        self.position_file().exists()
    }

    /// Forgets how far the master has been followed.
    pub(crate) fn forget_position(&self) {
        let _ = std::fs::remove_file(self.position_file());
    }

    pub(crate) fn client(&self) -> Client {
        let client = self.running.as_ref().expect("it runs").connect();
        client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        client.stream.set_write_timeout(Some(PATIENCE)).unwrap();
        client
    }

    /// What it has of these keys.
    pub(crate) fn records(&self, keys: &[Vec<u8>]) -> Records {
        let mut request = vec![0xBA, 0, 0, 0, 0];
        request.extend_from_slice(&(keys.len() as u32).to_be_bytes());
        for key in keys {
            request.extend_from_slice(&[0, 0]);
            request.extend_from_slice(&(key.len() as u32).to_be_bytes());
            request.extend_from_slice(key);
        }
        let mut client = self.client();
        client.send(&request);
        client.expect(&[0xBA]);
        let mut records = Records::new();
        for _ in 0..number(&client.take(4)) {
            let head = client.take(18);
            let (key_len, value_len) = (number(&head[2..6]), number(&head[6..10]));
            let key = client.take(key_len as usize);
            records.insert(key, (number(&head[10..]), client.take(value_len as usize)));
        }
        records
    }
}

/// Whether a server before it still has the data.
fn is_taken(error: &io::Error) -> bool {
    let text = error.to_string();
    text.contains("in use by another process") || text.contains("is open in another process")
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
