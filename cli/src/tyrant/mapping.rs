//! Converts ttserver's settings to the options of the server. This is the only module of `tyrant`
//! that knows what the server can do.

use super::settings::{ListenAddress, MasterSettings, TyrantSettings};
use todana::cabinet_file_problem;
use todana_server::{
    CheckpointOptions, DataDirectoryOptions, DatabaseOptions, DatabaseStorage, LimitOptions, ListenOptions,
    MasterAddress, MasterProtocol, MemoryOptions, ProtocolOptions, ReplicationOptions, ServerOptions,
    TyrantMode, TyrantOptions,
};

/// The default number of threads. ttserver's default is 8, because each of its threads waits for
/// one client at a time. The threads of this server do not.
const THREADS: usize = 4;
/// The longest key or value that the protocols can carry.
const ITEM_SIZE_MAX: u64 = 1 << 28;
/// Bytes of the update log that are kept for replicas that are disconnected.
const LOG_KEPT_LEN: u64 = 1 << 30;
/// The shortest length of a log segment that can be set.
const SEGMENT_LEN_MIN: u64 = 4 << 10;

/// Converts the settings to the server's options. The error names the setting that the server
/// cannot satisfy.
pub(super) fn options(settings: &TyrantSettings, connections_max: usize) -> Result<ServerOptions, String> {
    expect_usable_path(settings)?;
    let none = ServerOptions::default();
    let listen = match &settings.address {
        ListenAddress::Unix(path) => {
            ListenOptions { unix_socket: Some(path.clone()), tcp: false, ..none.listen }
        }
        ListenAddress::Tcp { host, port } => {
            let port = port.unwrap_or(0);
            let place = match host {
                // An IPv6 address.
                Some(host) if host.contains(':') => format!("[{host}]:{port}"),
                Some(host) => format!("{host}:{port}"),
                None => format!("*:{port}"),
            };
            ListenOptions { addresses: vec![place], ..none.listen }
        }
    };
    let options = ServerOptions {
        listen,
        // The process has no memory limit. The name of the database can contain a limit for the
        // database.
        memory: MemoryOptions { limit_mib: 0, ..none.memory },
        protocols: ProtocolOptions {
            tyrant: TyrantOptions {
                spoken: TyrantMode::All,
                mask: settings.mask,
                script: settings.script.clone(),
                periodic: settings.periodic.clone(),
                // As in ttserver, scripts can use files in the directory in which the server was
                // started. A daemon leaves that directory, so it is noted here.
                files: settings.files.clone().or_else(|| std::env::current_dir().ok()),
                copies_anywhere: settings.files.is_none(),
                script_time_max: settings.script_time_max.unwrap_or(none.protocols.tyrant.script_time_max),
                script_memory_max: settings
                    .script_memory_max
                    .unwrap_or(none.protocols.tyrant.script_memory_max),
            },
            ..none.protocols
        },
        databases: DatabaseOptions {
            database: Some(settings.database.clone()),
            data: data(settings),
            replication: replication(settings),
            ..none.databases
        },
        limits: LimitOptions {
            idle_timeout_s: settings.timeout_s,
            idle_between_requests: true,
            item_size_max: ITEM_SIZE_MAX,
            connections_max,
            connections_refused: false,
            threads: settings.threads.unwrap_or(THREADS),
            ..none.limits
        },
        ..none
    };
    options.validate().map_err(|error| error.to_string())?;
    Ok(options)
}

/// Returns the options of replication. With the mask `slave`, no master can be followed.
fn replication(settings: &TyrantSettings) -> ReplicationOptions {
    let none = ReplicationOptions::default();
    let MasterSettings { master, position, checks_outcomes } = settings.replication.clone();
    let may_follow = !settings.mask.forbids_following();
    ReplicationOptions {
        // Without an ID, ttserver's is 0, which no replica can follow.
        server_id: settings.server_id.unwrap_or(0),
        master: master.filter(|_| may_follow).map(|(host, port)| MasterAddress { host, port }),
        protocol: MasterProtocol::Tyrant { checks_outcomes },
        position_file: may_follow.then_some(position),
        ..none
    }
}

/// Returns the options of the data directory. If there is an update log (`-ulog`), a database in
/// memory is restored from it, so that its replicas never have changes that the database has lost.
/// Without an update log, its records are lost at exit.
fn data(settings: &TyrantSettings) -> Option<DataDirectoryOptions> {
    let name = &settings.database;
    let log = settings.update_log.as_ref();
    let is_for_replicas = name.kind.storage() == DatabaseStorage::Files;
    let directory = match name.kind.storage() {
        DatabaseStorage::Cluster => return None,
        DatabaseStorage::FilesAndLog => name.path.clone()?,
        DatabaseStorage::Memory | DatabaseStorage::Files => log?.directory.clone(),
    };
    let place = DataDirectoryOptions {
        is_for_replicas,
        ..DataDirectoryOptions::new(directory, DatabaseOptions::default().sync)
    };
    Some(match log {
        None => place,
        Some(log) => DataDirectoryOptions {
            checkpoints: CheckpointOptions { log_kept_len: LOG_KEPT_LEN, ..place.checkpoints },
            segment_len: log.file_len_max.clamp(SEGMENT_LEN_MIN, place.segment_len),
            ..place
        },
    })
}

/// Fails if the path of the database is a file, for example one of Tokyo Cabinet, whose records
/// must be copied first.
fn expect_usable_path(settings: &TyrantSettings) -> Result<(), String> {
    let name = &settings.database;
    match name.path.as_ref().filter(|path| path.is_file()) {
        Some(path) => {
            let problem = cabinet_file_problem(path);
            let problem = problem.unwrap_or_else(|| "is a file; a database is a directory".into());
            Err(format!("{}: {problem}", path.display()))
        }
        None => Ok(()),
    }
}
