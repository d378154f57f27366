//! Compares the records that a server lists at the end with those that the workers expect.

use super::model::{ItemExpiry, ModelItem};
use super::observers::list_keys;
use super::server::{FullMemoryPolicy, SoakServer, stat};
use super::worker::SoakWorker;
use std::collections::HashMap;

struct ListedRecord {
    expiry: i64,
    size: usize,
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, more)) = rest.split_first() {
        rest = more;
        if first == b'%' {
            let (digits, more) = rest.split_first_chunk::<2>()?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = more;
        } else {
            bytes.push(first);
        }
    }
    Some(bytes)
}

/// Compares the list of all keys and the number of records with the records that the workers of
/// this server expect.
pub(super) fn check(server: &SoakServer, workers: &[SoakWorker]) -> Result<String, String> {
    let now = server.clock.read().map_err(|_| "a thread panicked")?.now;
    let mut listed: HashMap<Vec<u8>, ListedRecord> = HashMap::new();
    let mut count = 0u64;
    let mut bad = None;
    list_keys(server, "lru_crawler metadump all", "END", |line| {
        let field = |name: &str| {
            line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('=')).map(String::from)
        };
        let parsed = || {
            let name = decode(&field("key")?)?;
            let listed =
                ListedRecord { expiry: field("exp")?.parse().ok()?, size: field("size")?.parse().ok()? };
            Some((name, listed))
        };
        match parsed() {
            Some((name, _)) if listed.contains_key(&name) => bad = Some(format!("{line:?} stands twice")),
            Some((name, entry)) => drop(listed.insert(name, entry)),
            None => bad = Some(format!("{line:?}: not a line of a key list")),
        }
        count += 1;
    })
    .map_err(|error| format!("key list of {:?}: {error}", server.name))?;
    if let Some(bad) = bad {
        return Err(format!("key list of {:?}: {bad}", server.name));
    }
    let mut known = 0;
    for worker in workers {
        for (name, item) in worker.expected_records(now) {
            let Some(entry) = listed.remove(&name) else {
                if server.fullness == FullMemoryPolicy::Evicts || worker.is_unsure(&name) {
                    continue;
                }
                return Err(format!("key list of {:?}: lacks {}", server.name, name.escape_ascii()));
            };
            known += 1;
            check_entry(&name, item, &entry)
                .map_err(|error| format!("key list of {:?}: {error}", server.name))?;
        }
        let prefix = worker.keys.prefix().as_bytes();
        let alive = |entry: &ListedRecord| entry.expiry == -1 || entry.expiry > now as i64;
        if let Some((name, _)) = listed.iter().find(|(name, entry)| name.starts_with(prefix) && alive(entry))
        {
            return Err(format!(
                "key list of {:?}: has the unexpected key {}",
                server.name,
                name.escape_ascii()
            ));
        }
    }
    let items = stat(&server.stats("").map_err(|error| error.to_string())?, "curr_items")?;
    // The server counts expired records until it sweeps them, but does not list them.
    if items < count {
        return Err(format!("server {:?}: lists {count} records but counts {items}", server.name));
    }
    Ok(format!("{known} of {count} listed records checked, curr_items {items}"))
}

/// The bytes that memcached adds to the size of a record: its header, the version, and the ends of
/// key and value.
const RECORD_OVERHEAD: usize = 59;

fn check_entry(key: &[u8], item: &ModelItem, entry: &ListedRecord) -> Result<(), String> {
    let size = RECORD_OVERHEAD + key.len() + item.value.len() + if item.flags == 0 { 0 } else { 4 };
    let expiry = match item.expiry {
        ItemExpiry::Never => -1,
        ItemExpiry::At(at) => at as i64,
        ItemExpiry::Sliding { seconds, last } => (last + seconds) as i64,
    };
    if (size, expiry) == (entry.size, entry.expiry) {
        return Ok(());
    }
    Err(format!(
        "{}: size {} and expiry {}, expected {size} and {expiry}",
        key.escape_ascii(),
        entry.size,
        entry.expiry
    ))
}
