//! `stats`: the names that tools read, with the values we have.
//!
//! ```text
//! general   the process, connections, commands, memory; kept: the data directory
//! settings  options in force
//! items, slabs  by virtual class: where memcached would have put each record, by its size rule
//! sizes     how many records of which size, on request (`-o track_sizes`)
//! conns     one connection after the other
//! detail    reads and stores by prefix of the key
//! cachedump some keys of a class
//! databases what each database holds, by number
//! replication the master, and the replicas
//! ```
//!
//! Names and order are memcached 1.6's (protocol.txt and its source tree's documentation). Where it has something that we
//! have not, the value is that of what comes nearest, or 0; docs/protocol/memcached.md, "Statistics", says which.

mod cachedump;
mod conns;
mod databases;
mod detail;
mod general;
mod items;
mod kept;
mod replication;
mod settings;
mod slabs;

pub(crate) use databases::{pending_bytes, takes_writes};

use crate::observation::Baseline;
use crate::session::memcached::listing::{Histogram, Walk};
use crate::shared::Shared;
use std::collections::HashMap;
use std::fmt::{Display, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;
use todana::{ClassCounters, Database};
use todana_core::{Reply, SizeClass, SurveyedClass};
use todana_protocol::memcached::CHUNK_SIZES;

type Out<'a> = &'a mut dyn FnMut(Reply<'_>);

/// Writes statistics, one value buffer for all.
struct Writer<'a, 'b> {
    out: &'a mut (dyn FnMut(Reply<'_>) + 'b),
    baseline: Option<&'a Baseline>,
    value: String,
    name: String,
}

impl Writer<'_, '_> {
    fn put(&mut self, name: &str, value: impl Display) {
        self.value.clear();
        // A String takes whatever is written.
        let _ = write!(self.value, "{value}");
        (self.out)(Reply::Statistic { name, value: &self.value });
    }

    /// A count that goes on since the start, told from the last reset on.
    fn count(&mut self, name: &'static str, value: u64) {
        self.put(name, value.saturating_sub(self.baseline.map_or(0, |baseline| baseline.get(name))));
    }

    fn put_in(&mut self, prefix: &str, number: impl Display, name: &str, value: impl Display) {
        let mut full = std::mem::take(&mut self.name);
        full.clear();
        let _ = write!(full, "{prefix}{number}:{name}");
        self.put(&full, value);
        self.name = full;
    }
}

/// Answers `stats GROUP` for the connection with this descriptor, or says which walk over all records will.
pub(crate) fn answer(shared: &Shared, group: &[u8], asker: i32, out: Out<'_>) -> Option<Walk> {
    let mut words = group.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let word = words.next().unwrap_or_default();
    // Any beginning of these names is enough, as in memcached.
    let is = |name: &str| !word.is_empty() && name.as_bytes().starts_with(word);
    let mut writer = Writer {
        out,
        baseline: Some(&shared.observation.baseline),
        value: String::new(),
        name: String::new(),
    };
    match word {
        b"" => {
            general::put(shared, &mut writer);
            kept::put(shared, &mut writer);
            replication::put(shared, &mut writer);
        }
        b"items" => items::put(shared, &mut writer),
        b"slabs" => slabs::put(shared, &mut writer),
        b"sizes" if shared.options.observation.track_sizes => return Some(Walk::Sizes(Histogram::default())),
        b"sizes" => writer.put("sizes_status", "disabled"),
        _ if is("reset") => {
            reset(shared);
            out(Reply::Reset);
            return None;
        }
        _ if is("detail") => {
            detail::answer(shared, words.next(), out);
            return None;
        }
        _ if is("databases") => databases::put(shared, words.next(), &mut writer),
        b"replicas" => replication::put_each(shared, &mut writer),
        _ if is("settings") => settings::put(shared, &mut writer),
        _ if is("cachedump") => match cachedump::walk(shared, words.next(), words.next()) {
            Ok(walk) => return Some(walk),
            Err(message) => {
                out(Reply::Faulty(message));
                return None;
            }
        },
        _ if is("conns") => conns::put(shared, asker, &mut writer),
        // There is no external storage, and so nothing to say of it.
        _ if is("extstore") => {}
        _ => {
            out(Reply::Unknown);
            return None;
        }
    }
    out(Reply::End);
    None
}

fn reset(shared: &Shared) {
    shared.databases.each(Database::reset_counters);
    shared.observation.crawler.reset();
    shared.observation.baseline.set(counts(shared));
    shared.observation.connections.total.store(0, Ordering::Relaxed);
    shared.observation.connections.rejected.store(0, Ordering::Relaxed);
    shared.observation.reset_worker_sums();
    shared.observation.observers.prefixes.clear();
}

/// Returns the general statistics that are numbers. Those that are no counts are among them, and never asked for.
fn counts(shared: &Shared) -> HashMap<String, u64> {
    let mut counts = HashMap::new();
    let mut take = |reply: Reply<'_>| {
        if let Reply::Statistic { name, value } = reply
            && let Ok(value) = value.parse()
        {
            counts.insert(name.to_string(), value);
        }
    };
    let mut writer = Writer { out: &mut take, baseline: None, value: String::new(), name: String::new() };
    general::put(shared, &mut writer);
    counts
}

fn seconds(time: Duration) -> String {
    format!("{}.{:06}", time.as_secs(), time.subsec_micros())
}

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

/// One of memcached's size classes, and what our records of these sizes have come to.
#[derive(Default)]
struct Class {
    /// As memcached numbers it.
    number: usize,
    held: SizeClass,
    surveyed: SurveyedClass,
    happened: ClassCounters,
}

/// The classes that hold something, or ever did anything; what is larger than the last counts there.
fn classes(shared: &Shared) -> Vec<Class> {
    let last = CHUNK_SIZES.len();
    let mut classes: Vec<Class> = (1..=last).map(|number| Class { number, ..Class::default() }).collect();
    for (index, held) in shared.databases.primary().database.status().classes.iter().enumerate() {
        classes[index.min(last - 1)].held += *held;
    }
    for (index, surveyed) in shared.databases.primary().database.engine().survey().classes.iter().enumerate()
    {
        classes[index.min(last - 1)].surveyed += *surveyed;
    }
    for (index, happened) in shared.databases.primary().database.counters_by_class().iter().enumerate() {
        classes[index.min(last - 1)].happened += *happened;
    }
    let is_used =
        |class: &Class| class.held != SizeClass::default() || class.happened != ClassCounters::default();
    classes.retain(is_used);
    classes
}
