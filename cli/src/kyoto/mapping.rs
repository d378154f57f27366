//! From the settings to the server's options: the one place that knows what the server can do.

use super::settings::{Settings, Synchronization};
use std::path::PathBuf;
use std::time::Duration;
use todana_server::{CompatiblePort, DataPlace, Further, Kind, Kyoto, Name, Options, Sync};

/// Threads where nothing is said. The original's sixteen wait for each other's locks; these do not wait at all.
const THREADS: usize = 4;

/// The largest key or value that Kyoto Tycoon's protocols carry.
const ITEM_SIZE_MAX: u64 = 1 << 28;

/// The server's options. The error names what cannot be.
pub(super) fn options(settings: &Settings, connections_max: usize) -> Result<Options, String> {
    expect_what_is_there(settings)?;
    let sync = sync(settings.synchronization);
    let mut databases = settings.databases.iter().cloned().map(|mut name| {
        // As in the original nothing is made for somebody who only reads.
        name.tuning.must_exist |= settings.is_read_only && name.path.is_some();
        further(name, sync)
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
        CompatiblePort { keeps_flags: plugin.keeps_flags, is_read_only: plugin.is_read_only }
    });
    let options = Options {
        listen,
        kyoto: Kyoto::Only,
        kyoto_commands: Some(settings.commands.clone()),
        kyoto_script: settings.script.clone(),
        kyoto_pages_allowed: true,
        kyoto_plugin: compatible,
        read_only: settings.is_read_only,
        idle_timeout_s: settings.timeout_s.ceil() as u32,
        idle_between_requests: true,
        // As much as there is: what bounds a database stands in its name.
        memory_limit_mib: 0,
        item_size_max: ITEM_SIZE_MAX,
        connections_max,
        connections_refused: false,
        threads: settings.threads.unwrap_or(THREADS),
        database: first.as_ref().map(|first| first.name.clone()),
        data: first.and_then(|first| first.data),
        further: databases.collect(),
        sync,
        ..Options::default()
    };
    options.validate().map_err(|error| error.to_string())?;
    Ok(options)
}

/// Where a database keeps its data. Those in memory are gone with the process; an update log (`-ulog`) is to keep them in a
/// data directory of this server's own, which belongs here.
fn further(name: Name, sync: Sync) -> Further {
    let directory: Option<PathBuf> = match name.kind {
        Kind::DiskTree => name.path.clone(),
        Kind::DiskHash | Kind::MemHash | Kind::MemTree => None,
    };
    Further { name, data: directory.map(|directory| DataPlace::new(directory, sync)) }
}

/// When what is written is on disk. Where nothing is said it is sooner than in the original, which leaves it to the kernel.
fn sync(asked: Synchronization) -> Sync {
    match asked {
        Synchronization { is_immediate: true, .. } => Sync::Always,
        Synchronization { is_hard: true, interval_s: Some(interval), .. } => {
            Sync::Every(Duration::from_secs_f64(interval.clamp(0.001, 86400.0)))
        }
        _ => Options::default().sync,
    }
}

/// Refuses what is asked for and not there, by its option.
fn expect_what_is_there(settings: &Settings) -> Result<(), String> {
    // A database is a directory here.
    let file = |name: &&Name| name.path.as_ref().is_some_and(|path| path.is_file());
    if let Some(name) = settings.databases.iter().find(file) {
        return Err(format!(
            "{name}: it is a file, and those of Kyoto Cabinet are not opened: another name makes a database to bring its records over to"
        ));
    }
    let missing = |option: &str, what: &str| Err(format!("{option}: {what} not there yet"));
    let commands = &settings.commands;
    if !commands.is_dir() {
        return Err(format!("-cmd {}: there is no such directory", commands.display()));
    }
    if let Some(log) = &settings.update_log {
        return missing(&format!("-ulog {}", log.directory.display()), "Kyoto Tycoon's update log is");
    }
    if let Some((host, _)) = &settings.replication.master {
        return missing(&format!("-mhost {host}"), "replication from a master is");
    }
    if let Some(path) = &settings.replication.position {
        return missing(&format!("-rts {}", path.display()), "replication from a master is");
    }
    if let Some(snapshots) = &settings.snapshots {
        return missing(
            &format!("-bgs {}", snapshots.directory.display()),
            "snapshots in the background are",
        );
    }
    Ok(())
}
