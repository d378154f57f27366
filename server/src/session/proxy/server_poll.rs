//! Asks all servers that are up a question about themselves, and makes one reply of their replies.
//!
//! A server that refuses, or does not answer in time, is left out.

use crate::proxy::ReplyDelivery;
use todana_client::pool::ReplyKind;
use todana_core::Reply;
use todana_protocol::memcached::client::{ServerDialect, put_statistics, put_version, statistics_of};
use todana_protocol::memcached::{ReplyForm, encode};

/// The longest reply of a server.
const REPLY_LEN_MAX: usize = 256 << 10;

/// The longest name of a statistic that is added up, and the greatest number of names.
const NAME_LEN_MAX: usize = 250;
const NAMES_MAX: usize = 1000;

/// A statistic of memcached that says something about all servers together only as their maximum.
const GREATEST: [&str; 2] = ["hash_power_level", "hash_is_expanding"];

/// The length of the header of a packet of the binary protocol.
const HEADER_LEN: usize = 24;

/// The question, with the part of the reply that does not depend on the servers.
#[derive(Debug)]
pub(super) enum PollQuestion {
    /// The general statistics. The counters of the servers are added up.
    Statistics {
        /// The statistics of the proxy, in the order of the reply.
        own: Vec<OwnStatistic>,
    },
    /// A reset of the statistics.
    Reset,
    /// The lowest version, or else this one.
    Version(&'static str),
}

/// A statistic of the proxy.
#[derive(Debug)]
pub(super) struct OwnStatistic {
    pub(super) name: String,
    pub(super) value: String,
    /// True if the counters of the servers take the place of the value.
    pub(super) is_of_servers: bool,
}

/// A question to servers whose replies become one.
#[derive(Debug)]
pub(super) struct ServerPoll {
    question: PollQuestion,
    form: ReplyForm<'static>,
    replies: Vec<PolledReply>,
    /// The number of servers that have not answered.
    missing: usize,
}

/// The reply of a server, which may be incomplete.
#[derive(Debug)]
struct PolledReply {
    dialect: ServerDialect,
    bytes: Vec<u8>,
    is_complete: bool,
}

impl ServerPoll {
    pub(super) fn new(question: PollQuestion, form: ReplyForm<'static>) -> ServerPoll {
        ServerPoll { question, form, replies: Vec::new(), missing: 0 }
    }

    /// Writes the question for a server, and returns the form of its reply.
    pub(super) fn put_question(&self, dialect: ServerDialect, out: &mut Vec<u8>) -> ReplyKind {
        let is_binary = dialect == ServerDialect::Binary;
        let (kind, group) = match self.question {
            PollQuestion::Version(_) => {
                put_version(dialect, out);
                return if is_binary { ReplyKind::Binary } else { ReplyKind::Single };
            }
            PollQuestion::Statistics { .. } => (ReplyKind::Statistics, &b""[..]),
            PollQuestion::Reset => (ReplyKind::Single, &b"reset"[..]),
        };
        // Each dialect can write these groups.
        let _ = put_statistics(dialect, group, out);
        if is_binary { ReplyKind::Binary } else { kind }
    }

    /// Returns the number of servers that were asked.
    pub(super) fn asked_len(&self) -> u32 {
        self.replies.len() as u32
    }

    /// Notes that the next server was asked. Its part has the number of those before it.
    pub(super) fn await_reply(&mut self, dialect: ServerDialect) {
        self.replies.push(PolledReply { dialect, bytes: Vec::new(), is_complete: false });
        self.missing += 1;
    }

    /// Notes what arrives from a server.
    pub(super) fn receive(&mut self, part: u32, delivery: ReplyDelivery<'_>) {
        let Some(reply) = self.replies.get_mut(part as usize) else { return };
        match delivery {
            ReplyDelivery::Part(part) => {
                if reply.bytes.len() + part.bytes.len() <= REPLY_LEN_MAX {
                    reply.bytes.extend_from_slice(part.bytes);
                }
                reply.is_complete = part.is_last && !part.is_error;
                self.missing -= usize::from(part.is_last);
            }
            ReplyDelivery::Lost { .. } => self.missing -= 1,
            _ => {}
        }
    }

    /// Writes the reply. Returns false, and writes nothing, while replies of servers are missing.
    pub(super) fn put(&self, out: &mut Vec<u8>) -> bool {
        if self.missing > 0 {
            return false;
        }
        let mut put = |reply: Reply<'_>| encode(&self.form, &reply, out);
        match &self.question {
            PollQuestion::Statistics { own } => self.put_statistics(own, &mut put),
            PollQuestion::Reset => put(Reply::Reset),
            PollQuestion::Version(own) => put(Reply::Version(self.lowest_version().unwrap_or(own))),
        }
        true
    }

    fn complete(&self) -> impl Iterator<Item = &PolledReply> {
        self.replies.iter().filter(|reply| reply.is_complete)
    }

    fn put_statistics(&self, own: &[OwnStatistic], put: &mut dyn FnMut(Reply<'_>)) {
        let mut sums = StatisticSums::default();
        for reply in self.complete() {
            for found in statistics_of(reply.dialect, &reply.bytes).unwrap_or_default() {
                sums.add(found.name, found.value);
            }
        }
        for OwnStatistic { name, value, is_of_servers } in own {
            let sum = sums.take(name).unwrap_or_default().to_string();
            put(Reply::Statistic { name, value: if *is_of_servers { &sum } else { value } });
        }
        for (name, sum) in sums.0 {
            put(Reply::Statistic { name: &name, value: &sum.to_string() });
        }
        put(Reply::End);
    }

    fn lowest_version(&self) -> Option<&str> {
        let versions = self.complete().filter_map(|reply| {
            let text = match reply.dialect {
                ServerDialect::Binary => reply.bytes.get(HEADER_LEN..)?,
                ServerDialect::Text | ServerDialect::Meta => reply.bytes.strip_prefix(b"VERSION ")?,
            };
            let text = std::str::from_utf8(text).ok()?.trim();
            let numbers = text.split('.').map(|number| number.parse().ok());
            Some((numbers.collect::<Option<Vec<u32>>>()?, text))
        });
        versions.min().map(|(_, text)| text)
    }
}

/// The sums of the statistics of servers, in the order of their first servers.
#[derive(Default)]
struct StatisticSums(Vec<(String, u64)>);

impl StatisticSums {
    /// Adds a statistic of a server if it is a number that can be added.
    fn add(&mut self, name: &[u8], value: &[u8]) {
        let (Ok(name), Ok(value)) = (std::str::from_utf8(name), std::str::from_utf8(value)) else { return };
        // The proxy has its own statistics of its program.
        let Ok(value) = value.parse::<u64>() else { return };
        if name.len() > NAME_LEN_MAX || name.starts_with("todana_") {
            return;
        }
        let is_full = self.0.len() >= NAMES_MAX;
        match self.0.iter_mut().find(|(found, _)| found == name) {
            Some((_, sum)) if GREATEST.contains(&name) => *sum = value.max(*sum),
            Some((_, sum)) => *sum = sum.saturating_add(value),
            None if is_full => {}
            None => self.0.push((name.into(), value)),
        }
    }

    /// Removes a sum.
    fn take(&mut self, name: &str) -> Option<u64> {
        let at = self.0.iter().position(|(found, _)| found == name)?;
        Some(self.0.remove(at).1)
    }
}
