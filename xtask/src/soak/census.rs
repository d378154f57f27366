//! At the end: what a server lists must be what the workers know.

use super::model::{Expiry, Item};
use super::node::{Fullness, Node, stat};
use super::observers::list;
use super::worker::Worker;
use std::collections::HashMap;

struct Listed {
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

/// Compares the list of all keys, and the number of records, with what the workers of this server
/// know.
pub(super) fn take(node: &Node, workers: &[Worker]) -> Result<String, String> {
    let now = node.moment.read().map_err(|_| "a thread has failed")?.now;
    let mut listed: HashMap<Vec<u8>, Listed> = HashMap::new();
    let mut count = 0u64;
    let mut bad = None;
    list(node, "lru_crawler metadump all", "END", |line| {
        let field = |name: &str| {
            line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('=')).map(String::from)
        };
        let parsed = || {
            let name = decode(&field("key")?)?;
            let listed = Listed { expiry: field("exp")?.parse().ok()?, size: field("size")?.parse().ok()? };
            Some((name, listed))
        };
        match parsed() {
            Some((name, _)) if listed.contains_key(&name) => bad = Some(format!("{line:?} stands twice")),
            Some((name, entry)) => drop(listed.insert(name, entry)),
            None => bad = Some(format!("{line:?} is no line of a list")),
        }
        count += 1;
    })
    .map_err(|error| format!("the list of {:?}: {error}", node.name))?;
    if let Some(bad) = bad {
        return Err(format!("the list of {:?}: {bad}", node.name));
    }
    let mut known = 0;
    for worker in workers {
        for (name, item) in worker.held(now) {
            let Some(entry) = listed.remove(&name) else {
                if node.fullness == Fullness::Evicts || worker.is_unsure(&name) {
                    continue;
                }
                return Err(format!("the list of {:?} lacks {}", node.name, name.escape_ascii()));
            };
            known += 1;
            agree(&name, item, &entry).map_err(|error| format!("the list of {:?}: {error}", node.name))?;
        }
        let prefix = worker.keys.prefix().as_bytes();
        let alive = |entry: &Listed| entry.expiry == -1 || entry.expiry > now as i64;
        if let Some((name, _)) = listed.iter().find(|(name, entry)| name.starts_with(prefix) && alive(entry))
        {
            return Err(format!("the list of {:?} has {}", node.name, name.escape_ascii()));
        }
    }
    let items = stat(&node.stats("").map_err(|error| error.to_string())?, "curr_items")?;
    // Expired records that are not yet swept are counted, but not listed.
    if items < count {
        return Err(format!("{:?} lists {count} records and counts {items}", node.name));
    }
    Ok(format!("{known} records known and listed, {count} listed, curr_items {items}"))
}

fn agree(name: &[u8], item: &Item, entry: &Listed) -> Result<(), String> {
    let size = 59 + name.len() + item.value.len() + if item.flags == 0 { 0 } else { 4 };
    let expiry = match item.expiry {
        Expiry::Never => -1,
        Expiry::At(at) => at as i64,
        Expiry::Sliding { seconds, last } => (last + seconds) as i64,
    };
    if (size, expiry) == (entry.size, entry.expiry) {
        return Ok(());
    }
    Err(format!(
        "{}: size {} and expiry {} instead of {size} and {expiry}",
        name.escape_ascii(),
        entry.size,
        entry.expiry
    ))
}
