//! Converts ktserver's settings to the options of the server. This is the only module of `kyoto`
//! that knows what the server can do.

use super::settings::{KyotoSettings, SyncSettings};
use std::path::{Path, PathBuf};
use std::time::Duration;
use todana_server::{
    CheckpointOptions, DataDirectoryOptions, DatabaseName, DatabaseOptions, DatabaseSpec, DatabaseStorage,
    KyotoMode, KyotoOptions, LimitOptions, ListenOptions, MasterAddress, MemoryOptions, PluginOptions,
    ProtocolOptions, ReplicationOptions, ServerOptions, SnapshotCompression, SnapshotOptions, SyncPolicy,
};

/// The default number of threads. ktserver's default is 16, because its threads wait for each
/// other's locks. The threads of this server do not.
const THREADS: usize = 4;

/// The longest key or value that Kyoto Tycoon's protocols can carry.
const ITEM_SIZE_MAX: u64 = 1 << 28;

/// Bytes of the update log that are kept for each database, for replicas that are disconnected.
const LOG_KEPT_LEN: u64 = 1 << 30;

/// The shortest length of a log segment that can be set.
const SEGMENT_LEN_MIN: u64 = 4 << 10;

/// Converts the settings to the server's options. The error names the setting that the server
/// cannot satisfy.
pub(super) fn options(settings: &KyotoSettings, connections_max: usize) -> Result<ServerOptions, String> {
    expect_usable_paths(settings)?;
    let sync = sync(settings.synchronization);
    let mut databases = settings.databases.iter().cloned().enumerate().map(|(number, mut name)| {
        // ktserver with -ord creates no database either.
        name.tuning.must_exist |= settings.is_read_only && name.path.is_some();
        further(settings, number, name, sync)
    });
    let first = databases.next();
    let place = |host: &Option<String>, port: u16| match host {
        // An IPv6 address.
        Some(host) if host.contains(':') => format!("[{host}]:{port}"),
        Some(host) => format!("{host}:{port}"),
        None => format!("*:{port}"),
    };
    let mut listen = vec![place(&settings.host, settings.port.unwrap_or(0))];
    let compatible = settings.plugin.as_ref().map(|plugin| {
        listen.push(format!("proto[ascii]:{}", place(&plugin.host, plugin.port.unwrap_or(0))));
        PluginOptions {
            keeps_flags: plugin.keeps_flags,
            is_read_only: plugin.is_read_only,
            queue_wait_max: plugin
                .queue_wait_s
                .map(|seconds| Duration::from_secs_f64(seconds.clamp(0.001, 1e9))),
        }
    });
    let none = ServerOptions::default();
    let options = ServerOptions {
        listen: ListenOptions { addresses: listen, ..none.listen },
        memory: MemoryOptions {
            // The process has no memory limit. The name of a database can contain a limit for that
            // database.
            limit_mib: 0,
            ..none.memory
        },
        protocols: ProtocolOptions {
            kyoto: KyotoOptions {
                spoken: KyotoMode::Only,
                commands: Some(settings.commands.clone()),
                script: settings.script.clone(),
                script_time_max: settings
                    .script_time_s
                    .map_or(none.protocols.kyoto.script_time_max, |seconds| {
                        Duration::from_secs_f64(seconds.clamp(0.001, 1e9))
                    }),
                script_memory_max: settings
                    .script_memory
                    .map_or(none.protocols.kyoto.script_memory_max, |len| {
                        usize::try_from(len).unwrap_or(usize::MAX)
                    }),
                // As in ktserver, scripts can access files in the directory in which the server was
                // started. A daemon leaves that directory, so it is noted here.
                files: std::env::current_dir().ok(),
                pages_allowed: true,
                plugin: compatible,
                read_only: settings.is_read_only,
            },
            ..none.protocols
        },
        databases: DatabaseOptions {
            stores_nothing: settings.stores_nothing,
            database: first.as_ref().map(|first| first.name.clone()),
            data: first.and_then(|first| first.data),
            further: databases.collect(),
            sync,
            replication: replication(settings),
            snapshots: snapshots(settings)?,
        },
        limits: LimitOptions {
            idle_timeout_s: settings.timeout_s.ceil() as u32,
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
    remove_empty_files(settings)?;
    Ok(options)
}

fn is_empty_file(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() == 0)
}

/// Removes empty files at the paths of databases. Scripts create such files with `mktemp`, and
/// ktserver turns them into databases. Here a database is a directory, so the file must be removed
/// first.
fn remove_empty_files(settings: &KyotoSettings) -> Result<(), String> {
    for path in settings.databases.iter().filter_map(|name| name.path.as_ref()) {
        if is_empty_file(path) {
            std::fs::remove_file(path).map_err(|error| {
                format!("{}: an empty file, which cannot be removed: {error}", path.display())
            })?;
        }
    }
    Ok(())
}

/// Returns the options of one database. If there is an update log (`-ulog`), a database in memory
/// is restored from it, so that its replicas never have changes that the database has lost. Without
/// an update log, its records are lost at exit.
fn further(settings: &KyotoSettings, number: usize, name: DatabaseName, sync: SyncPolicy) -> DatabaseSpec {
    let log = settings.update_log.as_ref();
    let directory: Option<PathBuf> = match name.kind.storage() {
        DatabaseStorage::Cluster => None,
        DatabaseStorage::FilesAndLog => name.path.clone(),
        // The folder of the log is named after the number of the database, as the entries of
        // ktserver's log are.
        DatabaseStorage::Memory | DatabaseStorage::Files => {
            log.map(|log| log.directory.join(format!("{number:08}")))
        }
    };
    let is_for_replicas = name.kind.storage() == DatabaseStorage::Files;
    // If the log is only for replicas, the database's own files decide which changes are durable.
    let sync = if is_for_replicas { DatabaseOptions::default().sync } else { sync };
    let data = directory.map(|directory| {
        let mut place =
            DataDirectoryOptions { is_for_replicas, ..DataDirectoryOptions::new(directory, sync) };
        if let Some(log) = log {
            place.checkpoints = CheckpointOptions { log_kept_len: LOG_KEPT_LEN, ..place.checkpoints };
            place.segment_len = log.file_len_max.unwrap_or(place.segment_len).max(SEGMENT_LEN_MIN);
            if let (Some(interval), true) = (log.sync_interval_s, sync != SyncPolicy::Always) {
                place.sync = every(interval);
            }
        }
        place
    });
    DatabaseSpec { name, data }
}

fn replication(settings: &KyotoSettings) -> ReplicationOptions {
    let asked = &settings.replication;
    let none = ReplicationOptions::default();
    ReplicationOptions {
        server_id: settings.server_id.unwrap_or(none.server_id),
        master: asked.master.clone().map(|(host, port)| MasterAddress { host, port }),
        protocol: none.protocol,
        position_file: asked.position.clone(),
        interval: asked
            .interval_ms
            .map_or(none.interval, |ms| Duration::from_secs_f64(ms.min(86_400e3) / 1e3)),
        ..none
    }
}

fn snapshots(settings: &KyotoSettings) -> Result<Option<SnapshotOptions>, String> {
    let Some(asked) = settings.snapshots.clone() else { return Ok(None) };
    let packing = match asked.compression.as_deref() {
        None => SnapshotCompression::None,
        Some("zlib") => SnapshotCompression::Zlib,
        Some(name) => {
            return Err(format!(
                "-bgsc {name}: not supported; use zlib, or leave out -bgsc for no compression"
            ));
        }
    };
    let interval = Duration::from_secs_f64(asked.interval_s.clamp(0.1, 1e9));
    Ok(Some(SnapshotOptions { directory: asked.directory, interval, packing }))
}

fn every(interval_s: f64) -> SyncPolicy {
    SyncPolicy::Every(Duration::from_secs_f64(interval_s.clamp(0.001, 86400.0)))
}

/// Returns the durability of writes. The default is stricter than in ktserver, where the kernel
/// decides when to write.
fn sync(asked: SyncSettings) -> SyncPolicy {
    match asked {
        SyncSettings { is_immediate: true, .. } => SyncPolicy::Always,
        SyncSettings { is_hard: true, interval_s: Some(interval), .. } => every(interval),
        _ => DatabaseOptions::default().sync,
    }
}

/// Fails if a database or a directory cannot be used. The error names the option.
fn expect_usable_paths(settings: &KyotoSettings) -> Result<(), String> {
    // A database is a directory here, so a file at its path is an error.
    let file = |name: &&DatabaseName| {
        let path = name.path.as_ref().filter(|path| path.is_file());
        path.is_some_and(|path| settings.is_read_only || !is_empty_file(path))
    };
    if let Some(name) = settings.databases.iter().find(file) {
        return Err(format!(
            "{name}: is a file, and files of Kyoto Cabinet cannot be opened; give a new name, and copy the records with `kcpolymgr dump` and `todana load`"
        ));
    }
    let commands = &settings.commands;
    if !commands.is_dir() {
        return Err(format!("-cmd {}: no such directory", commands.display()));
    }
    Ok(())
}
