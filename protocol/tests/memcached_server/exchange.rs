//! A server without a store: it feeds a decoder, answers every command depending on its key, and
//! checks the decoder's promises.

use std::sync::Arc;
use todana_core::{
    ArithmeticReply, Attributes, Expiry, HitReply, LastAccess, Operation, RecacheState, Record,
    RecordDetails, RefusalReason, Reply, SharedBytes, StoredReply, UnixSeconds,
};
use todana_protocol::memcached::MemcachedCommand;
use todana_protocol::memcached::{
    LongBlock, MemcachedDecoder, MemcachedLimits, MemcachedRequest, MemcachedStep, encode,
};

/// The time of all answers.
pub(crate) const NOW: UnixSeconds = UnixSeconds(1000);

/// The result of a stream of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Each command and its form, as text.
    pub(crate) requests: Vec<String>,
    /// All reply bytes.
    pub(crate) replies: Vec<u8>,
    /// True if the connection was closed, by the decoder or by `quit`.
    pub(crate) closed: bool,
    /// The number of unconsumed bytes of the stream.
    pub(crate) unread: usize,
}

impl Outcome {
    fn play(&mut self, dialect: &mut MemcachedDecoder, request: &MemcachedRequest<'_>) {
        self.requests.push(format!("{:?} {:?}", request.command, request.form));
        self.closed = matches!(request.command, MemcachedCommand::Quit) || request.form.closes();
        answer(&request.command, &mut |reply| {
            match reply {
                Reply::Authenticated => dialect.accept_login(),
                Reply::Challenge(_) | Reply::Refused(RefusalReason::NotAuthenticated) => {
                    dialect.revoke_login()
                }
                _ => {}
            }
            encode(&request.form, &reply, &mut self.replies);
        });
    }
}

/// One connection: its unread bytes, and the results so far.
#[derive(Default)]
pub(crate) struct Connection {
    limits: MemcachedLimits,
    dialect: MemcachedDecoder,
    unread: Vec<u8>,
    scratch: Vec<u8>,
    /// The number of bytes that the decoder requires before it can return anything.
    awaited: usize,
    /// The long block that is being received.
    block: Option<Block>,
    outcome: Outcome,
}

/// An announced block: the head of its request, and the lengths of the rest.
struct Block {
    head: Vec<u8>,
    value_len: usize,
    end_len: usize,
}

impl Connection {
    /// Creates a connection with these limits.
    pub(crate) fn new(limits: MemcachedLimits) -> Self {
        Connection { limits, ..Connection::default() }
    }

    /// Appends received bytes.
    pub(crate) fn arrive(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
        let mut used = 0;
        let arrived_before = self.unread.len() - bytes.len();
        while !self.outcome.closed {
            let input = &self.unread[used..];
            if let Some(block) = &self.block {
                let len = block.value_len + block.end_len;
                let Some(received) = input.get(..len) else { break };
                used += len;
                let (value, end) = received.split_at(block.value_len);
                let shared: SharedBytes = Arc::new(value.to_vec());
                let whole = LongBlock::Whole { value: &shared, end };
                let step = self.dialect.decode_block(&self.limits, &block.head, whole, &mut self.scratch);
                let MemcachedStep::Request { request, .. } = step else {
                    panic!("announced, yet no request")
                };
                // The result may depend on the login, and the decoder is still borrowed by the
                // request.
                let mut dialect = self.dialect;
                self.outcome.play(&mut dialect, &request);
                self.dialect = dialect;
                self.block = None;
                continue;
            }
            match self.dialect.decode(&self.limits, input, &mut self.scratch) {
                MemcachedStep::Request { consumed, request } => {
                    assert!(consumed >= 1, "a request that uses nothing up");
                    assert!(consumed <= input.len(), "uses {consumed} of {}", input.len());
                    assert!(
                        bytes.len() >= self.awaited || used > 0,
                        "{} bytes were not needed",
                        self.awaited
                    );
                    used += consumed;
                    self.outcome.play(&mut self.dialect, &request);
                }
                MemcachedStep::NeedMore { consumed, at_least } => {
                    assert!(consumed <= input.len(), "uses {consumed} of {}", input.len());
                    assert!(at_least >= 1, "needs nothing more, yet yields nothing");
                    if consumed == 0 && used == 0 && arrived_before > 0 && self.awaited > bytes.len() {
                        assert_eq!(at_least, self.awaited - bytes.len(), "what is missing is known exactly");
                    }
                    self.awaited = at_least;
                    used += consumed;
                    break;
                }
                MemcachedStep::Block { consumed, head_len, value_len, end_len } => {
                    assert!(value_len >= self.limits.long_block_len, "a block of {value_len} bytes");
                    let head = input[consumed..consumed + head_len].to_vec();
                    self.block = Some(Block { head, value_len, end_len });
                    used += consumed + head_len;
                    self.awaited = 0;
                }
                MemcachedStep::Close => self.outcome.closed = true,
            }
        }
        self.unread.drain(..used);
    }

    /// Ends the stream.
    pub(crate) fn finish(mut self) -> Outcome {
        self.outcome.unread = if self.outcome.closed { 0 } else { self.unread.len() };
        self.outcome
    }
}

/// Sends a stream in pieces that end at these offsets.
pub(crate) fn send_in_pieces(limits: MemcachedLimits, stream: &[u8], cuts: &[usize]) -> Outcome {
    let mut connection = Connection::new(limits);
    let mut from = 0;
    for &cut in cuts {
        connection.arrive(&stream[from..cut]);
        from = cut;
    }
    connection.arrive(&stream[from..]);
    connection.finish()
}

/// Sends a stream in one piece and byte by byte, and asserts that the results are the same.
pub(crate) fn send_within(limits: MemcachedLimits, stream: &[u8]) -> Outcome {
    let whole = send_in_pieces(limits, stream, &[]);
    let every_byte: Vec<usize> = (1..stream.len()).collect();
    let bytewise = send_in_pieces(limits, stream, &every_byte);
    assert_eq!(whole, bytewise, "byte by byte {:?} differs", stream.escape_ascii().to_string());
    whole
}

/// Does the same as [`send_within`] with the default limits.
#[allow(dead_code, reason = "the fuzz targets, which share this file, have limits of their own")]
pub(crate) fn send(stream: &[u8]) -> Outcome {
    send_within(MemcachedLimits::default(), stream)
}

/// Answers a command depending on its key: `missing`, `exists`, `notstored`, `full`, `large` and
/// `words` (not a number) select the outcome; any other key exists.
pub(crate) fn answer(command: &MemcachedCommand<'_>, reply: &mut dyn FnMut(Reply<'_>)) {
    match *command {
        MemcachedCommand::Operation(Operation::Get(get)) => reply(match get.key {
            b"missing" => Reply::Miss,
            b"full" => Reply::Refused(RefusalReason::OutOfMemory),
            key => Reply::Hit(hit(key)),
        }),
        MemcachedCommand::Operation(Operation::Store(store)) => {
            let version = if store.needs.version { 42 } else { 0 };
            let stored = StoredReply { version, value_len: store.value.len() as u64 };
            reply(by_key(store.key, Reply::Stored(stored)));
        }
        MemcachedCommand::Operation(Operation::RefusedStore(refused)) => {
            reply(Reply::Refused(refused.refusal))
        }
        MemcachedCommand::Operation(Operation::Delete(delete)) => reply(by_key(delete.key, Reply::Deleted)),
        MemcachedCommand::Operation(Operation::Arithmetic(arithmetic)) => {
            let version = if arithmetic.needs.version { 42 } else { 0 };
            let number = ArithmeticReply {
                value: 1234,
                version,
                expiry_before: Expiry::At(UnixSeconds(NOW.0 + 60)),
                expiry: Expiry::At(UnixSeconds(NOW.0 + 100)),
                created: false,
                now: NOW,
            };
            reply(by_key(arithmetic.key, Reply::Number(number)));
        }
        MemcachedCommand::Operation(Operation::Touch(touch)) => reply(by_key(touch.key, Reply::Touched)),
        // Returns the record of any other key: five bytes, flags 5, an expiry in one minute that
        // this request changes to 100 s, version 42, last read 9 seconds ago. `won`, `stale` and
        // `told` have marks, `forever` has no expiry, `past` has an expired one, `bare` has no
        // attributes.
        MemcachedCommand::Operation(Operation::Modify(_)) => reply(Reply::Unknown),
        MemcachedCommand::Operation(Operation::Inspect(inspect)) => reply(match inspect.key {
            b"missing" => Reply::Miss,
            key => Reply::Inspection(RecordDetails {
                expiry: if key == b"forever" { Expiry::Never } else { Expiry::At(UnixSeconds(NOW.0 + 60)) },
                access: (key != b"untracked")
                    .then_some(LastAccess { at: UnixSeconds(NOW.0 - 9), fetched: true }),
                version: 42,
                flags: 0,
                key_len: key.len() as u64,
                value_len: 5,
                further_values: 0,
                now: NOW,
            }),
        }),
        MemcachedCommand::Stats { group: b"" } => {
            reply(Reply::Statistic { name: "pid", value: "1" });
            reply(Reply::Statistic { name: "curr_items", value: "0" });
            reply(Reply::End);
        }
        MemcachedCommand::Stats { group: b"reset" } => reply(Reply::Reset),
        MemcachedCommand::Stats { .. } => reply(Reply::Unknown),
        MemcachedCommand::Version => reply(Reply::Version("1.6.45")),
        MemcachedCommand::Operation(Operation::Flush { .. })
        | MemcachedCommand::Verbosity(_)
        | MemcachedCommand::Operation(Operation::Noop) => reply(Reply::Done),
        MemcachedCommand::MemoryLimit { mebibytes } => reply(match mebibytes {
            0..8 => Reply::Refused(RefusalReason::LimitTooSmall),
            8..1_000 => Reply::Done,
            1_000..1_000_000_000 => Reply::Refused(RefusalReason::LimitNotAdjustable),
            _ => Reply::Refused(RefusalReason::LimitInBytes),
        }),
        MemcachedCommand::RefreshCertificates => reply(Reply::Faulty("Error TLS not enabled")),
        MemcachedCommand::ShiftClock(_) => reply(Reply::Done),
        MemcachedCommand::Shutdown { .. } => reply(Reply::Refused(RefusalReason::NotEnabled)),
        MemcachedCommand::List(_) => reply(Reply::End),
        MemcachedCommand::Crawler(_)
        | MemcachedCommand::Watch(_)
        | MemcachedCommand::Export(_)
        | MemcachedCommand::UseDatabase(_) => reply(Reply::Done),
        MemcachedCommand::Mechanisms => reply(Reply::Mechanisms("PLAIN")),
        MemcachedCommand::Authenticate(authenticate) => reply(match authenticate.response {
            b"\0missing\0secret" | b"missing secret" => Reply::Refused(RefusalReason::NotAuthenticated),
            b"" => Reply::Challenge(b"who are you"),
            _ => Reply::Authenticated,
        }),
        MemcachedCommand::Faulty { message } => reply(Reply::Faulty(message)),
        MemcachedCommand::Quit => {}
    }
}

/// Asserts the replies to each request of a table, alone and between two other commands.
pub(crate) fn hit(key: &[u8]) -> HitReply<'static> {
    let before = Expiry::At(UnixSeconds(NOW.0 + 60));
    let after = Expiry::At(UnixSeconds(NOW.0 + 100));
    let (expiry_before, expiry) = match key {
        b"forever" | b"bare" => (Expiry::Never, Expiry::Never),
        b"past" => (before, Expiry::At(UnixSeconds(NOW.0 - 1))),
        _ => (before, after),
    };
    let (flags, version) = if key == b"bare" { (0, 0) } else { (5, 42) };
    let access = LastAccess { at: UnixSeconds(NOW.0 - 9), fetched: true };
    HitReply {
        record: Record::new(b"value", Attributes { flags, expiry, version, ..Attributes::default() }),
        expiry_before,
        access_before: (key != b"bare").then_some(access),
        recache: RecacheState {
            won: matches!(key, b"won" | b"all marks"),
            stale: matches!(key, b"stale" | b"all marks"),
            token_sent: matches!(key, b"told" | b"all marks"),
        },
        now: NOW,
    }
}

fn by_key<'r>(key: &[u8], done: Reply<'r>) -> Reply<'r> {
    match key {
        b"missing" => Reply::NotFound,
        b"exists" => Reply::Exists,
        b"notstored" => Reply::NotStored,
        b"full" => Reply::Refused(RefusalReason::OutOfMemory),
        b"large" => Reply::Refused(RefusalReason::TooLarge),
        b"words" => Reply::Refused(RefusalReason::NonNumeric),
        _ => done,
    }
}

/// Asserts that a stream, split in any way, yields exactly these commands.
#[track_caller]
#[allow(dead_code, reason = "the fuzz targets share this file")]
pub(crate) fn assert_replies(table: &[(&str, &str)]) {
    for (request, replies) in table {
        let outcome = send(request.as_bytes());
        assert_eq!(
            outcome.replies.escape_ascii().to_string(),
            replies.as_bytes().escape_ascii().to_string(),
            "to {request:?}"
        );
        assert!(!outcome.closed, "closed after {request:?}");
        assert_eq!(outcome.unread, 0, "unread of {request:?}");

        let between = send(format!("version\r\n{request}mn\r\n").as_bytes());
        let expected = format!("VERSION 1.6.45\r\n{replies}MN\r\n");
        assert_eq!(
            between.replies.escape_ascii().to_string(),
            expected.as_bytes().escape_ascii().to_string()
        );
    }
}

/// Asserts that a stream, however cut, yields exactly these commands.
#[track_caller]
#[allow(dead_code, reason = "the fuzz targets share this file")]
pub(crate) fn assert_commands(stream: &[u8], commands: &[MemcachedCommand<'_>]) {
    let seen = send(stream).requests;
    let text = stream.escape_ascii();
    assert_eq!(seen.len(), commands.len(), "{text}: {seen:#?}");
    for (seen, command) in seen.iter().zip(commands) {
        let command = format!("{command:?} ");
        assert!(seen.starts_with(&command), "{text}:\n  {seen}\nis not\n  {command}");
    }
}
