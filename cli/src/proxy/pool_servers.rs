//! Reads the servers of a pool: a list, a file with one in each line, a map of vbuckets, or the
//! server that is asked for them.

use super::config_file::text_of;
use super::config_value::ConfigValue;
use super::table_reader::{TableReader, elements, some_text, text};
use std::path::{Path, PathBuf};
use todana_client::Address;
use todana_client::ring::{ServerEntry, VbucketMap};
use todana_server::{PoolOptions, PoolVbuckets};

/// Reads `servers`, `servers-file`, `vbuckets` and `discover`.
pub(super) fn read(pool: &mut PoolOptions, table: &mut TableReader<'_>) {
    let given = ["servers", "servers-file", "vbuckets", "discover"].into_iter().filter(|key| table.has(key));
    match &given.collect::<Vec<_>>()[..] {
        [] => table.own_problem("servers is missing"),
        [_] => {}
        several => table.own_problem(format!("only one of {} is allowed", several.join(", "))),
    }
    if table.has("vbuckets") && table.has("ring") {
        table.problem(table.line_of("vbuckets"), "vbuckets: the map replaces the ring; leave out ring");
    }
    if let Some(entry) = table.take("servers") {
        if elements(&entry.value).is_empty() {
            table.problem(entry.line, "servers: must have a server");
        }
        for value in elements(&entry.value) {
            match text(value).and_then(|text| server(&text)) {
                Ok(server) => pool.servers.push(server),
                Err(problem) => table.problem(value.line, format!("servers: {problem}")),
            }
        }
    }
    if let Some((path, servers)) = table.get("servers-file", servers_file) {
        pool.servers = servers;
        pool.servers_file = Some(path);
    }
    if let Some((vbuckets, servers)) = table.get("vbuckets", |value| vbuckets(Path::new(&some_text(value)?)))
    {
        pool.servers = servers;
        pool.vbuckets = Some(vbuckets);
    }
    pool.discover = table.get("discover", |value| match server(&some_text(value)?)?.address {
        address @ Address::Tcp(..) => Ok(address),
        _ => Err("must be HOST:PORT".into()),
    });
}

fn server(text: &str) -> Result<ServerEntry, String> {
    text.parse().map_err(|error| format!("{error}"))
}

/// Reads a file with a map of vbuckets.
pub(super) fn vbuckets(path: &Path) -> Result<(PoolVbuckets, Vec<ServerEntry>), String> {
    let parsed = VbucketMap::parse(&text_of(path)?);
    let (map, servers) = parsed.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok((PoolVbuckets { file: Some(path.into()), map }, servers))
}

fn servers_file(value: &ConfigValue) -> Result<(PathBuf, Vec<ServerEntry>), String> {
    let path = PathBuf::from(some_text(value)?);
    let servers = servers_of_lines(&path, &text_of(&path)?)?;
    Ok((path, servers))
}

/// Parses a list with one server in each line. Empty lines and those that begin with `#` do not
/// count.
fn servers_of_lines(path: &Path, text: &str) -> Result<Vec<ServerEntry>, String> {
    let lines = text.lines().enumerate().filter(|(_, line)| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#')
    });
    let servers = lines.map(|(index, line)| {
        server(line).map_err(|problem| format!("{}, line {}: {problem}", path.display(), index + 1))
    });
    servers.collect()
}
