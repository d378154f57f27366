//! Simulates a machine that has its own disk and runs a server.

use super::WAIT_MAX;
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
    DataDirectoryOptions, DatabaseName, DatabaseOptions, KyotoMode, KyotoOptions, LimitOptions,
    ListenOptions, MasterAddress, MasterProtocol, ProtocolOptions, ReplicationOptions, Server, ServerOptions,
};

/// The records by key: the Unix second of the expiry, and the value.
pub(crate) type Records = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

/// The name of a hash on disk that has an update log for replicas.
pub(crate) const HASH: &str = "/x.hash";

pub(crate) struct Site {
    number: u16,
    engine: &'static str,
    disk: CrashDisk,
    folder: tempfile::TempDir,
    pub(crate) master: Option<SocketAddr>,
    running: Option<Running>,
    /// The connection through which replicas reach this server.
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
        // With this interval, almost only the rounds of replicas sync the log, so that a loss of
        // power loses many changes.
        let mut data = DataDirectoryOptions::new("/data".into(), SyncPolicy::Every(Duration::from_secs(2)));
        data.segment_len = 256 << 10;
        data.checkpoints.log_kept_len = 1 << 30;
        data.is_for_replicas = self.engine == HASH;
        let master = self.master.map(|to| MasterAddress { host: to.ip().to_string(), port: to.port() });
        let position_file = Some(self.position_file());
        let replication = ReplicationOptions {
            server_id: self.number,
            master,
            protocol: MasterProtocol::Kyoto,
            position_file,
            interval: Duration::from_millis(1),
            ..ReplicationOptions::default()
        };
        let database = DatabaseName::parse(self.engine).ok();
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
                // Threads of the previous server may keep the data open until they notice that
                // their disk has ended.
                Err(error) if is_taken(&error) && since.elapsed() < WAIT_MAX => {
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

    /// Stops the server. If it does not stop in time, it abandons its disk and ends like a killed
    /// one.
    pub(crate) fn stop(&mut self) {
        self.line.lead_to(None);
        let Some(mut running) = self.running.take() else { return };
        running.handle.stop();
        running.handle.stop();
        if running.outcome().is_err() {
            self.end_process(None);
        }
    }

    /// Kills the process. With a seed, the machine also loses power, and the seed decides which
    /// unsynced writes survive.
    pub(crate) fn crash(&mut self, power_lost: Option<u64>) {
        self.line.lead_to(None);
        self.end_process(power_lost);
    }

    fn end_process(&mut self, power_lost: Option<u64>) {
        self.disk.stop();
        let left = self.disk.state();
        self.running = None;
        // Threads of the server may not have noticed yet that it has ended. Their writes go to the
        // old disk, which is discarded.
        self.disk = CrashDisk::with(power_lost.map_or_else(|| left.clone(), |seed| left.reboot(seed)));
    }

    /// Returns true if the position in the master's log is on disk. All changes before that
    /// position are on disk, too.
    pub(crate) fn has_position(&self) -> bool {
        self.position_file().exists()
    }

    /// Removes the position in the master's log.
    pub(crate) fn forget_position(&self) {
        let _ = std::fs::remove_file(self.position_file());
    }

    pub(crate) fn client(&self) -> Client {
        let client = self.running.as_ref().expect("it runs").connect();
        client.stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        client.stream.set_write_timeout(Some(WAIT_MAX)).unwrap();
        client
    }

    /// Returns the server's records of these keys.
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

/// Returns true if the error shows that an earlier server still has the data open.
fn is_taken(error: &io::Error) -> bool {
    let text = error.to_string();
    text.contains("in use by another process") || text.contains("is open in another process")
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
