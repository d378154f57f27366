//! What does the server side of the memcached codec cost: decoding one request of each common kind,
//! and decoding plus writing its reply? A buffer contains 16 requests, as from a pipelining client.
//!
//! Run: `cargo bench -p todana-protocol --bench memcached_server`

use std::hint::black_box;
use std::time::{Duration, Instant};
use todana_core::{Attributes, Expiry, HitReply, Operation, Record, Reply, StoredReply, UnixSeconds};
use todana_protocol::memcached::MemcachedCommand;
use todana_protocol::memcached::{MemcachedDecoder, MemcachedLimits, MemcachedStep, encode};

const PIPELINED: usize = 16;
const ROUNDS: usize = 7;
const ROUND_TIME: Duration = Duration::from_millis(60);

fn main() {
    println!("{:<34} {:>12} {:>16}", "request", "decode, ns", "and encode, ns");
    for request in [
        "get k\r\n",
        "get memtier-12345678\r\n",
        "gets memtier-12345678\r\n",
        "get memtier-1 memtier-2 memtier-3 memtier-4\r\n",
        "set memtier-12345678 0 0 32\r\n0123456789abcdef0123456789abcdef\r\n",
        "set memtier-12345678 0 0 32 noreply\r\n0123456789abcdef0123456789abcdef\r\n",
        "incr memtier-12345678 1\r\n",
        "delete memtier-12345678\r\n",
        "mg memtier-12345678 v\r\n",
        "mg memtier-12345678 s v f c t k O123 q\r\n",
        "mg bWVtdGllci0xMjM0NTY3OA== b v k\r\n",
        "ms memtier-12345678 32 T0\r\n0123456789abcdef0123456789abcdef\r\n",
        "md memtier-12345678 q\r\n",
        "mn\r\n",
    ] {
        let stream = request.repeat(PIPELINED);
        let decode = nanoseconds_a_request(stream.as_bytes(), false);
        let both = nanoseconds_a_request(stream.as_bytes(), true);
        let line = request.split("\r\n").next().unwrap_or_default();
        println!("{line:<34.34} {decode:>12.1} {both:>16.1}");
    }
}

/// Returns the best of several rounds, because other work on the machine can only add time.
fn nanoseconds_a_request(stream: &[u8], with_reply: bool) -> f64 {
    let mut out = Vec::with_capacity(1 << 16);
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let (start, mut streams) = (Instant::now(), 0u32);
        while start.elapsed() < ROUND_TIME {
            for _ in 0..64 {
                run(black_box(stream), with_reply, &mut out);
                streams += 1;
            }
        }
        let each = start.elapsed().as_secs_f64() * 1e9 / f64::from(streams) / PIPELINED as f64;
        best = best.min(each);
    }
    best
}

fn run(mut unread: &[u8], with_reply: bool, out: &mut Vec<u8>) {
    let (limits, mut dialect, mut scratch) =
        (MemcachedLimits::default(), MemcachedDecoder::default(), Vec::new());
    out.clear();
    while !unread.is_empty() {
        let MemcachedStep::Request { consumed, request } = dialect.decode(&limits, unread, &mut scratch)
        else {
            panic!("the streams are whole");
        };
        unread = &unread[consumed..];
        if with_reply {
            encode(&request.form, &black_box(reply(&request.command)), out);
        } else {
            black_box(&request);
        }
    }
    black_box(out);
}

fn reply(command: &MemcachedCommand<'_>) -> Reply<'static> {
    match command {
        MemcachedCommand::Operation(Operation::Get(_)) => Reply::Hit(HitReply {
            record: Record::new(
                b"0123456789abcdef0123456789abcdef",
                Attributes { version: 7, ..Attributes::default() },
            ),
            expiry_before: Expiry::Never,
            access_before: None,
            recache: Default::default(),
            now: UnixSeconds(1000),
        }),
        MemcachedCommand::Operation(Operation::Store(_)) => Reply::Stored(StoredReply::default()),
        MemcachedCommand::Operation(Operation::Delete(_)) => Reply::Deleted,
        MemcachedCommand::Operation(Operation::Arithmetic(_)) => Reply::NotFound,
        _ => Reply::Done,
    }
}
