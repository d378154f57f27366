//! The text of `stat`, which clients show and monitoring agents read.

use super::counters::TyrantCounters;
use super::{LIBRARY_VERSION, PROTOCOL_VERSION, VERSION};
use crate::databases::ServedDatabase;
use crate::process;
use crate::shared::SharedState;
use std::fmt::{Display, Write};
use todana::DatabaseKind;
use todana::table::visible_records;
use todana_protocol::tyrant::TyrantCommand;

/// The name of the operating system, as in the original.
const SYSTEM: &str = if cfg!(target_os = "linux") { "Linux" } else { std::env::consts::OS };

/// Returns the lines of `stat`, or only those of the counters.
pub(super) fn statistics(shared: &SharedState, only_counters: bool) -> String {
    let mut text = String::new();
    if !only_counters {
        put_facts(shared, &mut text);
    }
    let mut line = |name: &str, value: u64| {
        writeln!(text, "{name}\t{value}").expect("a string takes any text");
    };
    let sum = |counter: &dyn Fn(&TyrantCounters) -> u64| {
        shared.observation.workers.iter().map(|worker| counter(&worker.tyrant)).sum::<u64>()
    };
    for &command in TyrantCommand::ALL {
        line(&format!("cnt_{}", command.name()), sum(&|counters| counters.of(command).get()));
    }
    line("cnt_put_miss", sum(&|counters| counters.put_misses.get()));
    line("cnt_out_miss", sum(&|counters| counters.out_misses.get()));
    line("cnt_get_miss", sum(&|counters| counters.get_misses.get()));
    text
}

/// Writes the lines about the server and its database.
fn put_facts(shared: &SharedState, text: &mut String) {
    let served = shared.databases.primary();
    let mut line = |name: &str, value: &dyn Display| {
        writeln!(text, "{name}\t{value}").expect("a string takes any text");
    };
    let now = process::unix_time();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let (user, system) = process::cpu_time();
    let real = process::started_at().map_or(now, |started_at| now.saturating_sub(started_at));
    let seconds = |time: std::time::Duration| format!("{:.6}", time.as_secs_f64());
    line("version", &VERSION);
    line("libver", &LIBRARY_VERSION);
    line("protver", &PROTOCOL_VERSION);
    line("os", &SYSTEM);
    line("time", &seconds(now));
    line("pid", &std::process::id());
    line("sid", &shared.options.databases.replication.server_id);
    line("type", &kind(served));
    line("path", &path(served));
    line("rnum", &visible_records(&served.database));
    line("size", &size(served));
    line("bigend", &u8::from(cfg!(target_endian = "big")));
    let link = shared.master_link.follow_state();
    if let Some(master) = &link.master {
        let position = link.position_time();
        line("mhost", &master.host);
        line("mport", &master.port);
        line("rts", &position.as_micros());
        line("delay", &seconds(now.saturating_sub(position)));
    }
    line("fd", &process::open_files().unwrap_or(0));
    line("loadavg", &load.split(' ').next().unwrap_or("0"));
    line("memsize", &process::virtual_bytes().unwrap_or(0));
    line("memrss", &process::resident_bytes());
    line("ru_user", &seconds(user));
    line("ru_sys", &seconds(system));
    line("ru_real", &seconds(real));
}

/// Returns the size of a database: of its files, or its memory.
pub(super) fn size(served: &ServedDatabase) -> u64 {
    match served.disk_bytes() {
        0 => served.database.status().committed_bytes,
        on_disk => on_disk,
    }
}

fn kind(served: &ServedDatabase) -> &'static str {
    match served.name.kind {
        DatabaseKind::MemHash => "on-memory hash",
        DatabaseKind::MemTree => "on-memory tree",
        DatabaseKind::DiskHash => "hash",
        DatabaseKind::DiskTree => "B+ tree",
        DatabaseKind::MemFixed | DatabaseKind::DiskFixed => "fixed-length",
        DatabaseKind::MemTable | DatabaseKind::DiskTable => "table",
        DatabaseKind::Cluster => "cluster",
    }
}

fn path(served: &ServedDatabase) -> String {
    match (&served.name.path, served.name.kind) {
        (Some(path), _) => path.display().to_string(),
        (None, DatabaseKind::MemHash) => "*".to_owned(),
        (None, DatabaseKind::MemTree) => "+".to_owned(),
        (None, kind) => kind.word().to_owned(),
    }
}
