//! Samples a memcached, or a server of Todana.

use super::sample::{RecordSample, SampledRecord, SampledServer};
use crate::CommandFailure;
use crate::dump::read_listed;
use crate::server_options::ServerTarget;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use todana_client::{Address, Connection, Error};

/// The number of keys in one request.
const KEYS_AT_ONCE: usize = 64;
/// How often a busy crawler is asked again, and the pause before.
const TRIES_MAX: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// A key, and whether its record expires.
type ListedKey = (Vec<u8>, bool);

/// Reads a share of the records of each slab class, because a class has records of one size.
pub(super) fn sample(
    target: &ServerTarget,
    sample: &mut RecordSample,
) -> Result<SampledServer, CommandFailure> {
    let mut connection = target.connect()?;
    let figures: BTreeMap<String, String> = connection.stats("")?.into_iter().collect();
    let count = |name: &str| figures.get(name).and_then(|text| text.parse::<u64>().ok());
    let records = count("curr_items").unwrap_or(0);
    let is_todana = figures.contains_key("todana_version");
    let classes = match is_todana {
        true => vec![("all".to_string(), records)],
        false => classes(&connection.stats("items")?),
    };
    let takes_meta = connection.takes_meta()?;
    let all: u64 = classes.iter().map(|(_, count)| count).sum();
    for (class, count) in &classes {
        let quota = (sample.wanted() * count).div_ceil(all.max(1)).min(*count);
        let keys = keys(target, &mut connection, class, quota as usize, sample)?;
        for batch in keys.chunks(KEYS_AT_ONCE) {
            if sample.is_complete() {
                break;
            }
            read(&mut connection, batch, takes_meta, sample)?;
        }
    }
    let name = match figures.get("todana_version") {
        Some(version) => format!("todana {version}"),
        None => format!("memcached {}", figures.get("version").map_or("", String::as_str)),
    };
    let slabs = connection.stats("slabs").unwrap_or_default();
    let allocated = slabs.iter().find(|(name, _)| name == "total_malloced");
    let allocated = allocated.and_then(|(_, value)| value.parse::<u64>().ok()).unwrap_or(0);
    let memory = resident(&target.destination.address, count("pid"))
        .map(|bytes| (bytes, "the process"))
        .or(count("todana_anonymous_bytes").map(|bytes| (bytes, "the process")))
        .or(Some((allocated + count("hash_bytes").unwrap_or(0), "slabs and index")));
    let mut notes = Vec::new();
    if !is_todana {
        notes.push("versions (CAS) and statistics start anew".into());
    }
    Ok(SampledServer { name, records, memory, notes })
}

/// Returns the slab classes with their numbers of records.
fn classes(items: &[(String, String)]) -> Vec<(String, u64)> {
    let class = |(name, value): &(String, String)| {
        let class = name.strip_prefix("items:")?.strip_suffix(":number")?;
        Some((class.to_string(), value.parse().ok()?))
    };
    items.iter().filter_map(class).collect()
}

/// Returns keys of a class, with their expiry.
fn keys(
    target: &ServerTarget,
    connection: &mut Connection,
    class: &str,
    quota: usize,
    sample: &RecordSample,
) -> Result<Vec<ListedKey>, CommandFailure> {
    if quota == 0 {
        return Ok(Vec::new());
    }
    for _ in 0..TRIES_MAX {
        match crawl(target, class, quota, sample) {
            // The crawler is still at the listing before, or at work of its own.
            Err(Error::Unexpected(line)) if line.starts_with("BUSY") => std::thread::sleep(PAUSE),
            Err(Error::Refused(_)) => break,
            found => return Ok(found?),
        }
    }
    // Without the crawler, memcached lists the newest keys of a class.
    let dumped = connection.stats(&format!("cachedump {class} {quota}"))?;
    let is_expiring = |text: &str| !text.contains(" 0 s]");
    Ok(dumped.into_iter().map(|(key, text)| (key.into_bytes(), is_expiring(&text))).collect())
}

/// Lists keys of a class by the crawler.
fn crawl(
    target: &ServerTarget,
    class: &str,
    quota: usize,
    sample: &RecordSample,
) -> Result<Vec<ListedKey>, Error> {
    let mut found = Vec::new();
    // Ending a listing makes its connection unusable.
    let mut listing = target.connect().map_err(|failure| io::Error::other(failure.message().to_string()))?;
    let listed = listing.metadump_of(class, |line| {
        let (key, expiry) = read_listed(line).ok_or(Error::MalformedReply)?;
        found.push((key, expiry.at != 0));
        match found.len() < quota && !sample.is_complete() {
            true => Ok(()),
            false => Err(io::Error::from(io::ErrorKind::Interrupted).into()),
        }
    });
    match listed {
        Err(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// Reads the values of keys. A record that is gone, or that no request can name, is left out.
fn read(
    connection: &mut Connection,
    keys: &[ListedKey],
    takes_meta: bool,
    sample: &mut RecordSample,
) -> Result<(), CommandFailure> {
    let names: Vec<&[u8]> = keys.iter().map(|(key, _)| key.as_slice()).collect();
    let mut see = |at: usize, found: Result<todana_client::FoundRecord<'_>, Error>| {
        let Ok(found) = found else { return };
        let (key, expires) = &keys[at];
        sample.add(SampledRecord {
            key: key.clone(),
            value: found.value.to_vec(),
            flags: found.flags,
            expires: Some(*expires),
        });
    };
    // Meta commands do not count as accesses.
    match takes_meta {
        true => Ok(connection.peek_any(&names, &mut see)?),
        false => Ok(connection.read_any(&names, &mut see)?),
    }
}

/// Returns the memory of a process of this machine, if it is the server.
fn resident(address: &Address, pid: Option<u64>) -> Option<u64> {
    let is_here = match address {
        Address::Unix(_) => true,
        Address::Tcp(host, _) | Address::Tls(host, _) => {
            host == "localhost" || host == "::1" || host.starts_with("127.")
        }
    };
    let pid = pid.filter(|_| is_here)?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    if !["todana", "memcached"].iter().any(|known| name.trim() == *known) {
        return None;
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_read_from_statistics() {
        let items = [("items:1:number", "3"), ("items:1:age", "9"), ("items:12:number", "40")];
        let items = items.map(|(name, value)| (name.to_string(), value.to_string()));
        assert_eq!(classes(&items), [("1".to_string(), 3), ("12".to_string(), 40)]);
    }
}
