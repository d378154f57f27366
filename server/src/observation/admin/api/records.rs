//! Finds keys; reads, stores and removes a record.

use super::query::ApiQuery;
use super::{ApiError, ApiResult};
use crate::execution::LocalDatabase;
use crate::observation::admin::http::HttpStatus;
use crate::options::LimitOptions;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use regex::bytes::{Regex, RegexBuilder};
use serde_json::{Value, json};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana::{Database, Records, ScanDirection};
use todana_core::{
    Delete, Get, Operation, Record, RefusalReason, Reply, ReplyNeeds, ScanPosition, Store, Ttl,
};
use todana_protocol::memcached::{item_size, refusal_text};

/// The number of records in an answer, unless the request gives another one.
const LIMIT: u64 = 100;
const LIMIT_MAX: u64 = 1000;
const HOT_KEYS_SHOWN: usize = 50;
/// The time after which a search is interrupted. The page continues it with another request.
const SEARCH_TIME: Duration = Duration::from_millis(10);
/// The time for which a change waits for the disk. The other pages wait meanwhile.
const DURABLE_WITHIN: Duration = Duration::from_secs(2);
/// The number of bytes of a value in an answer. `value_len` shows that there are more.
const VALUE_MAX: usize = 1 << 20;

/// Where a search continues: a position of the engine, or a key after which to continue.
enum SearchPlace {
    At(ScanPosition),
    After(Vec<u8>),
}

impl SearchPlace {
    fn parse(text: &str) -> Option<SearchPlace> {
        let key = |rest: &str| percent_decode_str(rest).collect::<Vec<u8>>();
        Some(match text.split_at_checked(1)? {
            ("n", rest) => SearchPlace::At(ScanPosition::Number(rest.parse().ok()?)),
            ("p", rest) => {
                let (first, second) = rest.split_once('.')?;
                SearchPlace::At(ScanPosition::Pair(first.parse().ok()?, second.parse().ok()?))
            }
            ("k", rest) => SearchPlace::At(ScanPosition::Key(Arc::from(key(rest)))),
            ("a", rest) => SearchPlace::After(key(rest)),
            _ => return None,
        })
    }

    fn text(&self) -> String {
        match self {
            SearchPlace::At(ScanPosition::Number(number)) => format!("n{number}"),
            SearchPlace::At(ScanPosition::Pair(first, second)) => format!("p{first}.{second}"),
            SearchPlace::At(ScanPosition::Key(key)) => format!("k{}", encoded(key)),
            SearchPlace::After(key) => format!("a{}", encoded(key)),
        }
    }
}

/// Returns the records whose keys match `pattern`, in which `*` stands for any bytes and `?` for
/// one, and whose values have `min_len` bytes at least. An answer may have no records and still a
/// place at which to continue.
pub(super) fn search(local: &LocalDatabase, query: &ApiQuery) -> ApiResult {
    let database = database(local)?;
    let pattern = query.bytes("pattern").unwrap_or(b"*");
    let expression = expression(pattern).ok_or_else(|| invalid("the pattern is too long"))?;
    let wildcard = pattern.iter().position(|byte| b"*?".contains(byte));
    let prefix = &pattern[..wildcard.unwrap_or(pattern.len())];
    let limit = query.number("limit", LIMIT)?.clamp(1, LIMIT_MAX) as usize;
    let after = query.text("after").filter(|text| !text.is_empty());
    let place = after.map(|text| SearchPlace::parse(&text).ok_or_else(|| invalid("after is malformed")));
    let mut place = place.transpose()?;
    let len_min = query.number("min_len", 0)?;
    let (mut found, mut seen) = (Vec::new(), 0u64);
    let began = Instant::now();
    loop {
        let mut is_beyond = false;
        let mut see = |key: &[u8], record: Record<'_>| {
            seen += 1;
            if record.value.len() as u64 >= len_min && expression.is_match(key) {
                found.push(listed(database, key, &record));
            }
            ControlFlow::Continue(())
        };
        let next = if database.engine().ordered().is_some() {
            let from = match &place {
                Some(SearchPlace::After(key)) => Bound::Excluded(&**key),
                _ => Bound::Included(prefix),
            };
            let last = database.walk_group(ScanDirection::Up, from, &mut |key, record| {
                is_beyond = !key.starts_with(prefix);
                if is_beyond { ControlFlow::Break(()) } else { see(key, record) }
            })?;
            last.map(SearchPlace::After)
        } else {
            let from = match place {
                Some(SearchPlace::At(position)) => Some(position),
                _ => None,
            };
            database.read_group(from, &mut see)?.map(SearchPlace::At)
        };
        place = next.filter(|_| !is_beyond);
        if place.is_none() || found.len() >= limit || began.elapsed() >= SEARCH_TIME {
            let next = place.as_ref().map(SearchPlace::text);
            return Ok(json!({ "records": found, "seen": seen, "next": next }));
        }
    }
}

/// Returns the keys that are requested most, with the estimated number of their requests in the
/// last minutes.
pub(super) fn hot_keys(local: &LocalDatabase) -> Value {
    let all = local.served().hot_keys.all();
    let shown = all.iter().take(HOT_KEYS_SHOWN).map(|hot| {
        let key = String::from_utf8_lossy(&hot.key);
        json!({ "key": key, "id": encoded(&hot.key), "requests": hot.requests })
    });
    json!({ "keys": shown.collect::<Vec<_>>() })
}

/// Returns the attributes and the value of a record.
pub(super) fn read(local: &LocalDatabase, query: &ApiQuery) -> ApiResult {
    let database = database(local)?;
    let key = key(query)?;
    let mut found = None;
    let now = database.now();
    database.peek(key, &mut |record| {
        if record.attributes.expiry.is_live(now) {
            let shown = &record.value[..record.value.len().min(VALUE_MAX)];
            found = Some((listed(database, key, &record), shown.to_vec()));
        }
    })?;
    let (mut value, shown) = found.ok_or_else(|| ApiError::not_found("such record"))?;
    value["value_base64"] = BASE64_STANDARD.encode(shown).into();
    Ok(value)
}

/// Does the same as [`read`], and gives the record a version if it has none, so that a later change
/// can depend on it.
pub(super) fn read_for_change(local: &LocalDatabase, query: &ApiQuery) -> ApiResult {
    database(local)?;
    let needs = ReplyNeeds { version: true, access: false };
    let get = Get { key: key(query)?, needs, silent: true, ..Get::default() };
    let mut refusal = None;
    Records::execute(local, &Operation::Get(get), &mut |reply| {
        if let Reply::Refused(reason) = reply {
            refusal = Some(reason);
        }
    })?;
    match refusal {
        Some(reason) => Err(refused(reason)),
        None => read(local, query),
    }
}

/// Stores a record with the body as its value, and the parameters `flags` and `ttl` (seconds; never
/// if it is missing). With `version`, does so only if the record still has this version.
pub(super) fn store(
    local: &LocalDatabase,
    query: &ApiQuery,
    value: &[u8],
    limits: &LimitOptions,
) -> ApiResult {
    let fits = |number: u64| u32::try_from(number).map_err(|_| invalid("a number is above 2^32 - 1"));
    let ttl = match query.bytes("ttl").filter(|ttl| !ttl.is_empty()) {
        Some(_) => Ttl::Seconds(fits(query.number("ttl", 0)?)?),
        None => Ttl::Never,
    };
    let flags = fits(query.number("flags", 0)?)?;
    let (key, compare) = (key(query)?, version(query)?);
    if item_size(key.len() as u64, value.len() as u64, flags) > limits.item_size_max {
        return Err(refused(RefusalReason::TooLarge));
    }
    change(local, &Operation::Store(Store { key, value, flags, ttl, compare, ..Store::default() }))
}

/// Removes a record. With `version`, does so only if the record still has this version.
pub(super) fn remove(local: &LocalDatabase, query: &ApiQuery) -> ApiResult {
    let (key, compare) = (key(query)?, version(query)?);
    change(local, &Operation::Delete(Delete { key, compare, ..Delete::default() }))
}

fn key(query: &ApiQuery) -> Result<&[u8], ApiError> {
    match query.required("key")? {
        b"" => Err(invalid("the key is empty")),
        key => Ok(key),
    }
}

fn version(query: &ApiQuery) -> Result<Option<u64>, ApiError> {
    let is_given = query.bytes("version").is_some();
    is_given.then(|| query.number("version", 0)).transpose()
}

/// Executes a change, and waits until it is durable.
fn change(local: &LocalDatabase, operation: &Operation<'_>) -> ApiResult {
    let database = database(local)?;
    let mut outcome = Err(ApiError::not_found("such record"));
    let conflict = |why: &str| Err(ApiError::new(HttpStatus::Conflict, why));
    Records::execute(local, operation, &mut |reply| {
        outcome = match reply {
            Reply::Stored(_) | Reply::Deleted => Ok(json!({ "is_done": true })),
            Reply::Exists => conflict("the record has changed meanwhile"),
            Reply::NotFound => Err(ApiError::not_found("such record")),
            Reply::Refused(reason) => Err(refused(reason)),
            _ => conflict("the record was not changed"),
        }
    })?;
    if let (Some(point), Some(durability)) = (local.take_commit(), database.durability()) {
        durability.request(point);
        let deadline = Instant::now() + DURABLE_WITHIN;
        if !durability.wait_while(point, &|| Instant::now() < deadline) {
            // The next change waits for this one, too.
            local.note_commit(point);
            let why = "the change was made, but is not on disk yet";
            return Err(ApiError::new(HttpStatus::Unavailable, why));
        }
    }
    outcome
}

fn refused(reason: RefusalReason) -> ApiError {
    ApiError::new(HttpStatus::Conflict, refusal_text(reason).trim_start_matches("SERVER_ERROR "))
}

fn invalid(why: &str) -> ApiError {
    ApiError::new(HttpStatus::BadRequest, why)
}

/// Returns the database, unless its records are on a cluster.
fn database(local: &LocalDatabase) -> Result<&Database, ApiError> {
    let why = "the records are on a cluster; use its own tools to look at them";
    match local.served().is_on_cluster() {
        true => Err(ApiError::new(HttpStatus::Conflict, why)),
        false => Ok(&local.served().database),
    }
}

fn listed(database: &Database, key: &[u8], record: &Record<'_>) -> Value {
    let attributes = &record.attributes;
    let ttl_s = attributes.expiry.at().map(|at| at.0.saturating_sub(database.now().0));
    json!({
        "key": String::from_utf8_lossy(key),
        "id": encoded(key),
        "value_len": record.value.len(),
        "flags": attributes.flags,
        "version": attributes.version.to_string(),
        "ttl_s": ttl_s,
    })
}

/// Returns a key as it is written in a URL.
fn encoded(key: &[u8]) -> String {
    percent_encode(key, NON_ALPHANUMERIC).to_string()
}

/// Returns the expression for a pattern; `None` if it becomes too large.
fn expression(pattern: &[u8]) -> Option<Regex> {
    let mut text = String::from("^");
    for byte in pattern {
        match byte {
            b'*' => text.push_str(".*"),
            b'?' => text.push('.'),
            byte => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text.push('$');
    RegexBuilder::new(&text).unicode(false).dot_matches_new_line(true).size_limit(1 << 20).build().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_any_bytes() {
        for (pattern, key, matches) in [
            (&b"a*"[..], &b"a\xff\n"[..], true),
            (b"a*", b"ba", false),
            (b"*:7:*", b"user:7:x", true),
            (b"a?c", b"a\0c", true),
            (b"a?c", b"ac", false),
            (b"a.c", b"abc", false),
            (b"\xff(", b"\xff(", true),
        ] {
            assert_eq!(expression(pattern).unwrap().is_match(key), matches, "{pattern:?} {key:?}");
        }
    }

    #[test]
    fn places_keep_any_key() {
        let place = SearchPlace::After(b"a\0%&\xff".to_vec());
        let text = place.text();
        assert!(matches!(SearchPlace::parse(&text), Some(SearchPlace::After(key)) if key == b"a\0%&\xff"));
        assert!(SearchPlace::parse("").is_none() && SearchPlace::parse("nx").is_none());
    }
}
