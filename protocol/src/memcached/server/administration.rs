//! Decodes the administrative commands: `lru_crawler`, `watch`, the tuning of memcached's
//! internals, and `todana`, which memcached does not have (docs/protocol/exports.md).
//!
//! `slabs`, `lru` and `extstore` control parts that Todana does not have. Scripts still send these
//! commands, so they are parsed by memcached's rules and answered by `OK` if they are correct.

use super::form::ReplyForm;
use super::frame::LineFrame;
use super::words::{LineWords, ends_in_noreply};
use super::{BAD_FORMAT, MemcachedStep, number};
use crate::memcached::{
    ClassSet, CrawlerCommand, ExportKind, ExportRequest, LogStart, MemcachedCommand, RecordListing,
    WatchStreams,
};
use std::num::NonZeroU64;
use todana_core::Operation;

const BAD_CLASS: &str = "BADCLASS invalid class id";

/// The highest number of a slab class.
const CLASS_MAX: u64 = 63;

/// The longest pause of the crawler between two records.
const SLEEP_MAX_US: u64 = 1_000_000;

/// The largest percentage of memory for hot and warm records. memcached keeps at least a fifth of
/// its memory for other records.
const HOT_WARM_PERCENT_MAX: u64 = 80;

/// The settings that `extstore` tunes.
const EXTSTORE: [&[u8]; 9] = [
    b"item_size",
    b"item_age",
    b"low_ttl",
    b"recache_rate",
    b"compact_under",
    b"drop_under",
    b"max_sleep",
    b"max_frag",
    b"drop_unread",
];

/// Decodes a line that begins with one of these commands.
#[cold]
pub(super) fn decode<'a>(
    frame: LineFrame<'a>,
    command: &[u8],
    mut words: LineWords<'a>,
) -> MemcachedStep<'a> {
    let form = ReplyForm::line_unless(ends_in_noreply(frame.line()));
    if command == b"watch" {
        return match streams(words) {
            Some(streams) => frame.request(MemcachedCommand::Watch(streams), ReplyForm::LINE),
            None => frame.fault("ERROR", ReplyForm::LINE),
        };
    }
    if command == b"todana" {
        let mut after = words;
        if after.next() == Some(b"use") {
            return match database_number(after) {
                Some(number) => frame.request(MemcachedCommand::UseDatabase(number), ReplyForm::LINE),
                None => frame.fault(BAD_FORMAT, ReplyForm::LINE),
            };
        }
        return match export(words) {
            Ok(export) => frame.request(MemcachedCommand::Export(export), ReplyForm::LINE),
            Err(message) => frame.fault(message, ReplyForm::LINE),
        };
    }
    let outcome = match (command, words.next()) {
        (b"lru_crawler", Some(b"metadump")) => return list(frame, words, false),
        (b"lru_crawler", Some(b"mgdump")) => return list(frame, words, true),
        (b"lru_crawler", Some(word)) => crawler(word, words),
        (b"slabs", Some(b"reassign")) => reassign(words),
        (b"slabs", Some(b"automove")) => automove(words),
        (b"lru", Some(b"tune")) => tune(words),
        (b"lru", Some(b"mode")) => {
            accepted_if(matches!(words.next(), Some(b"flat" | b"segmented" | b"noreply")))
        }
        (b"lru", Some(b"temp_ttl")) => accepted_if(words.next().and_then(number::signed).is_some()),
        (b"extstore", Some(b"free_memchunks")) => accepted_if(is_free_memchunks(words)),
        (b"extstore", Some(word)) => {
            accepted_if(EXTSTORE.contains(&word) && words.next().and_then(fraction).is_some())
        }
        _ => Err("ERROR"),
    };
    match outcome {
        Ok(command) => frame.request(command, form),
        Err(message) => frame.fault(message, form),
    }
}

/// A command, or the error message of a malformed command.
type ParsedCommand = Result<MemcachedCommand<'static>, &'static str>;

/// The result for a correct command that has no effect.
const ACCEPTED: ParsedCommand = Ok(MemcachedCommand::Operation(Operation::Noop));

fn accepted_if(is_right: bool) -> ParsedCommand {
    if is_right { ACCEPTED } else { Err("ERROR") }
}

fn list<'a>(frame: LineFrame<'a>, mut words: LineWords<'a>, keys_only: bool) -> MemcachedStep<'a> {
    let Some(word) = words.next() else { return frame.fault("ERROR", ReplyForm::LINE) };
    // `hash` lists the same records in another order.
    let classes = if matches!(word, b"all" | b"hash") { Some(ClassSet::ALL) } else { classes(word) };
    let Some(classes) = classes else { return frame.fault(BAD_CLASS, ReplyForm::LINE) };
    let form = if keys_only { ReplyForm::KEYS } else { ReplyForm::LINE };
    frame.request(MemcachedCommand::List(RecordListing { classes, keys_only }), form)
}

/// Returns the number of a database, if it is the last word of the line.
fn database_number(mut words: LineWords<'_>) -> Option<u32> {
    let number = words.next().and_then(number::unsigned).and_then(|number| u32::try_from(number).ok());
    number.filter(|_| words.is_empty())
}

/// Parses an export command. Extra words are refused, because a later version may give them a
/// meaning.
fn export(mut words: LineWords<'_>) -> Result<ExportRequest, &'static str> {
    const DATABASE: Option<&[u8]> = Some(b"db");
    let what = words.next();
    let mut word = words.next();
    let what = match what {
        Some(b"checkpoint") => ExportKind::Checkpoint,
        Some(b"promote") => {
            let is_forced = word == Some(b"force");
            if is_forced {
                word = words.next();
            }
            ExportKind::Promotion { is_forced }
        }
        Some(b"backup") => {
            let mut rate = None;
            if word.is_some() && word != DATABASE {
                let number = word.and_then(number::unsigned).and_then(NonZeroU64::new);
                rate = Some(number.ok_or(BAD_FORMAT)?);
                word = words.next();
            }
            ExportKind::Backup { rate }
        }
        Some(b"log") => {
            let from = match word {
                Some(b"first") => LogStart::First,
                Some(b"end") => LogStart::End,
                Some(word) => LogStart::At(number::unsigned(word).ok_or(BAD_FORMAT)?),
                None => return Err(BAD_FORMAT),
            };
            word = words.next();
            let follows = word == Some(b"follow");
            if follows {
                word = words.next();
            }
            ExportKind::Log { from, follows }
        }
        _ => return Err("ERROR"),
    };
    let database = match word {
        None => 0,
        DATABASE => return Ok(ExportRequest { database: database_number(words).ok_or(BAD_FORMAT)?, what }),
        Some(_) => return Err(BAD_FORMAT),
    };
    Ok(ExportRequest { database, what })
}

/// Parses class numbers separated by commas.
fn classes(word: &[u8]) -> Option<ClassSet> {
    word.split(|&byte| byte == b',').try_fold(ClassSet::NONE, |classes, id| match number::unsigned(id) {
        Some(id @ 1..=CLASS_MAX) => Some(classes.with(id as usize)),
        _ => None,
    })
}

fn crawler(word: &[u8], mut words: LineWords<'_>) -> ParsedCommand {
    let argument = words.next();
    let crawler = match (word, argument) {
        (b"enable", _) => CrawlerCommand::Enable,
        (b"disable", _) => CrawlerCommand::Disable,
        (b"crawl", Some(b"all")) => CrawlerCommand::Crawl(ClassSet::ALL),
        (b"crawl", Some(ids)) => CrawlerCommand::Crawl(classes(ids).ok_or(BAD_CLASS)?),
        (b"sleep", Some(microseconds)) => match number::unsigned(microseconds) {
            Some(microseconds @ 0..=SLEEP_MAX_US) => CrawlerCommand::Sleep(microseconds as u32),
            Some(_) => return Err("CLIENT_ERROR sleep must be one second or less"),
            None => return Err(BAD_FORMAT),
        },
        (b"tocrawl", Some(records)) => {
            let records = number::unsigned(records).ok_or(BAD_FORMAT)?;
            CrawlerCommand::RecordsMax(u32::try_from(records).unwrap_or(u32::MAX))
        }
        _ => return Err("ERROR"),
    };
    Ok(MemcachedCommand::Crawler(crawler))
}

fn reassign(mut words: LineWords<'_>) -> ParsedCommand {
    let (Some(from), Some(to)) = (words.next(), words.next()) else { return Err("ERROR") };
    let (Some(from), Some(to)) = (number::signed(from), number::signed(to)) else { return Err(BAD_FORMAT) };
    let is_class = |class: i32| u64::try_from(class).is_ok_and(|class| class <= CLASS_MAX);
    if from == to {
        return Err("SAME src and dst class are identical");
    }
    // A source of -1 leaves the choice to the server.
    if !(is_class(from) || from == -1) || !is_class(to) {
        return Err("BADCLASS invalid src or dst class id");
    }
    ACCEPTED
}

fn automove(mut words: LineWords<'_>) -> ParsedCommand {
    match (words.next(), words.next()) {
        (Some(b"ratio" | b"freeratio"), Some(value)) => accepted_if(fraction(value).is_some()),
        (Some(b"window"), Some(value)) => {
            accepted_if(number::unsigned(value).is_some_and(|window| (3..=1800).contains(&window)))
        }
        (Some(b"ratio" | b"freeratio" | b"window") | None, _) => Err("ERROR"),
        (Some(level), _) => match number::unsigned(level) {
            Some(0..=2) => ACCEPTED,
            Some(_) => Err("ERROR"),
            None => Err(BAD_FORMAT),
        },
    }
}

fn tune(mut words: LineWords<'_>) -> ParsedCommand {
    let mut percent = || words.next().and_then(number::unsigned);
    let (Some(hot), Some(warm)) = (percent(), percent()) else { return Err("ERROR") };
    let mut factor = || words.next().and_then(fraction);
    let (Some(hot_factor), Some(warm_factor)) = (factor(), factor()) else { return Err("ERROR") };
    if hot.saturating_add(warm) > HOT_WARM_PERCENT_MAX {
        return Err("ERROR hot and warm pcts must not exceed 80");
    }
    if hot_factor <= 0.0 || warm_factor <= 0.0 {
        return Err("ERROR hot/warm age factors must be greater than 0");
    }
    ACCEPTED
}

/// Returns true for a class and a number of chunks. memcached 1.6.18 accepts this command, later
/// versions do not.
fn is_free_memchunks(mut words: LineWords<'_>) -> bool {
    let class = words.next().and_then(number::unsigned);
    let chunks = words.next().and_then(number::unsigned);
    matches!(class, Some(1..=CLASS_MAX)) && chunks.is_some()
}

fn fraction(word: &[u8]) -> Option<f64> {
    std::str::from_utf8(word).ok()?.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Returns the streams that the words name. Without a word these are the reads. Returns `None` if a
/// word is unknown.
fn streams(words: LineWords<'_>) -> Option<WatchStreams> {
    if words.is_empty() {
        return Some(WatchStreams::FETCHERS);
    }
    let mut streams = WatchStreams::NONE;
    for word in words {
        streams = streams.and(match word {
            b"fetchers" => WatchStreams::FETCHERS,
            b"mutations" => WatchStreams::MUTATIONS,
            b"evictions" => WatchStreams::EVICTIONS,
            b"connevents" => WatchStreams::CONNECTIONS,
            b"deletions" => WatchStreams::DELETIONS,
            b"sysevents" => WatchStreams::SYSTEM,
            b"rawcmds" => WatchStreams::REQUESTS,
            // Todana has no proxy, so these streams have no events.
            b"proxyreqs" | b"proxyevents" | b"proxyuser" => WatchStreams::NONE,
            _ => return None,
        });
    }
    Some(streams)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_is_used_by_its_number() {
        for (words, number) in [
            (&b" 0"[..], Some(0)),
            (b" 4294967295 ", Some(u32::MAX)),
            (b" 4294967296", None),
            (b" carts", None),
            (b" 1 2", None),
            (b"", None),
        ] {
            assert_eq!(database_number(LineWords::new(words)), number, "{}", words.escape_ascii());
        }
    }

    #[test]
    fn export_commands_accept_no_extra_words() {
        let of = |database, what| Ok(ExportRequest { database, what });
        let log = |from, follows| of(0, ExportKind::Log { from, follows });
        let cases: [(&[u8], Result<ExportRequest, &str>); 28] = [
            (b" promote", of(0, ExportKind::Promotion { is_forced: false })),
            (b" promote force", of(0, ExportKind::Promotion { is_forced: true })),
            (b" promote now", Err(BAD_FORMAT)),
            (b" checkpoint", of(0, ExportKind::Checkpoint)),
            (b" checkpoint  ", of(0, ExportKind::Checkpoint)),
            (b" checkpoint db 3", of(3, ExportKind::Checkpoint)),
            (b" checkpoint db", Err(BAD_FORMAT)),
            (b" checkpoint db carts", Err(BAD_FORMAT)),
            (b" checkpoint db 4294967296", Err(BAD_FORMAT)),
            (b" checkpoint db 1 db 2", Err(BAD_FORMAT)),
            (b" backup db 1", of(1, ExportKind::Backup { rate: None })),
            (b" backup 1000 db 1", of(1, ExportKind::Backup { rate: NonZeroU64::new(1000) })),
            (b" log 7 follow db 2", of(2, ExportKind::Log { from: LogStart::At(7), follows: true })),
            (b" checkpoint now", Err(BAD_FORMAT)),
            (b" backup", of(0, ExportKind::Backup { rate: None })),
            (b" backup 1000", of(0, ExportKind::Backup { rate: NonZeroU64::new(1000) })),
            (b" backup 0", Err(BAD_FORMAT)),
            (b" backup -1", Err(BAD_FORMAT)),
            (b" backup 1 2", Err(BAD_FORMAT)),
            (b" log", Err(BAD_FORMAT)),
            (b" log first", log(LogStart::First, false)),
            (b" log end follow", log(LogStart::End, true)),
            (b" log 17 follow", log(LogStart::At(17), true)),
            (b" log 17 follows", Err(BAD_FORMAT)),
            (b" log 18446744073709551616", Err(BAD_FORMAT)),
            (b" log first follow x", Err(BAD_FORMAT)),
            (b" restore", Err("ERROR")),
            (b"", Err("ERROR")),
        ];
        for (words, expected) in cases {
            assert_eq!(export(LineWords::new(words)), expected, "{}", words.escape_ascii());
        }
    }
}
