//! From the settings to the server's options: the one place that knows what the server can do.

use super::settings::{KyotoSettings, SyncSettings};
use std::path::{Path, PathBuf};
use std::time::Duration;
use todana_server::{
    CheckpointOptions, CompatiblePort, DataDirectoryOptions, DatabaseOptions, DatabaseSpec, KyotoMode,
    KyotoOptions, LimitOptions, ListenOptions, MasterAddress, MemoryOptions, Name, Packing, ProtocolOptions,
    ReplicationOptions, ServerOptions, SnapshotOptions, Storage, SyncPolicy,
};

/// Threads where nothing is said. The original's sixteen wait for each other's locks; these do not wait at all.
const THREADS: usize = 4;

/// The largest key or value that Kyoto Tycoon's protocols carry.
const ITEM_SIZE_MAX: u64 = 1 << 28;

/// So much of an update log is kept for replicas that are away, of each database.
const LOG_KEPT_LEN: u64 = 1 << 30;

/// The least length of a segment of it.
const SEGMENT_LEN_MIN: u64 = 4 << 10;

/// The server's options. The error names what cannot be.
pub(super) fn options(settings: &KyotoSettings, connections_max: usize) -> Result<ServerOptions, String> {
    expect_what_is_there(settings)?;
    let sync = sync(settings.synchronization);
    let mut databases = settings.databases.iter().cloned().enumerate().map(|(number, mut name)| {
        // As in the original nothing is made for somebody who only reads.
        name.tuning.must_exist |= settings.is_read_only && name.path.is_some();
        further(settings, number, name, sync)
    });
    let first = databases.next();
    let place = |host: &Option<String>, port: u16| match host {
        // Of an IPv6 address, too.
        Some(host) if host.contains(':') => format!("[{host}]:{port}"),
        Some(host) => format!("{host}:{port}"),
        None => format!("*:{port}"),
    };
    let mut listen = vec![place(&settings.host, settings.port.unwrap_or(0))];
    let compatible = settings.plugin.as_ref().map(|plugin| {
        listen.push(format!("proto[ascii]:{}", place(&plugin.host, plugin.port.unwrap_or(0))));
        CompatiblePort {
            keeps_flags: plugin.keeps_flags,
            is_read_only: plugin.is_read_only,
            queue_wait: plugin.queue_wait_s.map(|seconds| Duration::from_secs_f64(seconds.clamp(0.001, 1e9))),
        }
    });
    let none = ServerOptions::default();
    let options = ServerOptions {
        listen: ListenOptions { addresses: listen, ..none.listen },
        memory: MemoryOptions {
            // As much as there is: what bounds a database stands in its name.
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
                // As the original's scripts, in the folder where it is started; but nowhere else. A daemon leaves that.
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
    make_way(settings)?;
    Ok(options)
}

fn is_empty_file(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() == 0)
}

/// An empty file, as `mktemp` makes one, becomes a database, as in the original; ours is a directory.
fn make_way(settings: &KyotoSettings) -> Result<(), String> {
    for path in settings.databases.iter().filter_map(|name| name.path.as_ref()) {
        if is_empty_file(path) {
            std::fs::remove_file(path).map_err(|error| {
                format!("{}: an empty file, which cannot be removed: {error}", path.display())
            })?;
        }
    }
    Ok(())
}

/// Where a database keeps its data. One in memory is gone with the process, but for an update log (`-ulog`): its own brings it back,
/// so that it is never behind what its replicas have been told.
fn further(settings: &KyotoSettings, number: usize, name: Name, sync: SyncPolicy) -> DatabaseSpec {
    let log = settings.update_log.as_ref();
    let directory: Option<PathBuf> = match name.kind.storage() {
        Storage::FilesAndLog => name.path.clone(),
        // By number, as the original's log knows them.
        Storage::Memory | Storage::Files => log.map(|log| log.directory.join(format!("{number:08}"))),
    };
    let is_for_replicas = name.kind.storage() == Storage::Files;
    // Its own files vouch for its changes.
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
        position_file: asked.position.clone(),
        interval: asked
            .interval_ms
            .map_or(none.interval, |ms| Duration::from_secs_f64(ms.min(86_400e3) / 1e3)),
    }
}

fn snapshots(settings: &KyotoSettings) -> Result<Option<SnapshotOptions>, String> {
    let Some(asked) = settings.snapshots.clone() else { return Ok(None) };
    let packing = match asked.compression.as_deref() {
        None => Packing::None,
        Some("zlib") => Packing::Zlib,
        Some(name) => {
            return Err(format!("-bgsc {name}: snapshots are packed by zlib, or without -bgsc not at all"));
        }
    };
    let interval = Duration::from_secs_f64(asked.interval_s.clamp(0.1, 1e9));
    Ok(Some(SnapshotOptions { directory: asked.directory, interval, packing }))
}

fn every(interval_s: f64) -> SyncPolicy {
    SyncPolicy::Every(Duration::from_secs_f64(interval_s.clamp(0.001, 86400.0)))
}

/// When what is written is on disk. Where nothing is said it is sooner than in the original, which leaves it to the kernel.
fn sync(asked: SyncSettings) -> SyncPolicy {
    match asked {
        SyncSettings { is_immediate: true, .. } => SyncPolicy::Always,
        SyncSettings { is_hard: true, interval_s: Some(interval), .. } => every(interval),
        _ => DatabaseOptions::default().sync,
    }
}

/// Refuses what is asked for and not there, by its option.
fn expect_what_is_there(settings: &KyotoSettings) -> Result<(), String> {
    // A database is a directory here.
    let file = |name: &&Name| {
        let path = name.path.as_ref().filter(|path| path.is_file());
        path.is_some_and(|path| settings.is_read_only || !is_empty_file(path))
    };
    if let Some(name) = settings.databases.iter().find(file) {
        return Err(format!(
            "{name}: it is a file, and those of Kyoto Cabinet are not opened: give another name, and bring its records over there with `kcpolymgr dump` and `todana load`"
        ));
    }
    let commands = &settings.commands;
    if !commands.is_dir() {
        return Err(format!("-cmd {}: there is no such directory", commands.display()));
    }
    Ok(())
}
