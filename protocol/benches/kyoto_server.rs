//! What does the server side of Kyoto Tycoon's codec cost: decoding one request of each common
//! kind, and decoding plus writing its answer? A buffer contains 16 requests, as from a pipelining
//! client. A bulk request has 16 records, and the time is per record.
//!
//! Run: `cargo bench -p todana-protocol --bench kyoto_server`

use std::hint::black_box;
use std::time::{Duration, Instant};
use todana_protocol::kyoto::{
    AnswerBanner, AnswerStatus, BulkOperation, BulkRecord, KyotoDecoder, KyotoLimits, KyotoRequest,
    KyotoStep, MapScratch, RestAction, RestAnswer, answer, answer_rest, binary, client,
};

const PIPELINED: u32 = 16;
const ROUNDS: usize = 7;
const ROUND_TIME: Duration = Duration::from_millis(60);

fn main() {
    println!("{:<34} {:>12} {:>16}", "request", "decode, ns", "and answer, ns");
    let post = |name: &str, body: &str| {
        let len = body.len();
        format!(
            "POST /rpc/{name} HTTP/1.1\r\nHost: localhost:1978\r\nContent-Length: {len}\r\n\
             Content-Type: text/tab-separated-values\r\n\r\n{body}"
        )
    };
    let value = "0123456789abcdef0123456789abcdef";
    for (name, request) in [
        ("get, posted", post("get", "key\tuser:12345678\n")),
        (
            "get, in the query",
            "GET /rpc/get?key=user:12345678 HTTP/1.1\r\nHost: localhost:1978\r\n\r\n".into(),
        ),
        ("set", post("set", &format!("key\tuser:12345678\nvalue\t{value}\n"))),
        ("set with xt", post("set", &format!("key\tuser:12345678\nvalue\t{value}\nxt\t300\n"))),
        ("REST get", "GET /user:12345678 HTTP/1.1\r\nHost: localhost:1978\r\n\r\n".into()),
        ("REST put", format!("PUT /user:12345678 HTTP/1.1\r\nContent-Length: 32\r\n\r\n{value}")),
    ] {
        measure(name, request.repeat(PIPELINED as usize).as_bytes());
    }
    let record = BulkRecord { key: b"user:12345678", value: value.as_bytes(), xt: i64::MAX, database: 0 };
    let mut stream = Vec::new();
    client::put_bulk(BulkOperation::Set, PIPELINED, false, &mut stream);
    (0..PIPELINED).for_each(|_| client::put_record(&record, &mut stream));
    measure("bulk set", &stream);
    stream.clear();
    client::put_bulk(BulkOperation::Get, PIPELINED, false, &mut stream);
    (0..PIPELINED).for_each(|_| client::put_key(0, record.key, &mut stream));
    measure("bulk get", &stream);
}

fn measure(name: &str, stream: &[u8]) {
    let (decode, both) = (nanoseconds_a_request(stream, false), nanoseconds_a_request(stream, true));
    println!("{name:<34.34} {decode:>12.1} {both:>16.1}");
}

/// Returns the best of several rounds, because other work on the machine can only add time.
fn nanoseconds_a_request(stream: &[u8], with_answer: bool) -> f64 {
    let (mut out, mut scratch, banner) =
        (Vec::with_capacity(1 << 16), MapScratch::default(), AnswerBanner::new("T", 0));
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let (start, mut streams) = (Instant::now(), 0u32);
        while start.elapsed() < ROUND_TIME {
            for _ in 0..64 {
                run(black_box(stream), with_answer, &mut scratch, &banner, &mut out);
                streams += 1;
            }
        }
        let each = start.elapsed().as_secs_f64() * 1e9 / f64::from(streams) / f64::from(PIPELINED);
        best = best.min(each);
    }
    best
}

fn run(
    mut unread: &[u8],
    with_answer: bool,
    scratch: &mut MapScratch,
    banner: &AnswerBanner,
    out: &mut Vec<u8>,
) {
    let (limits, mut dialect) = (KyotoLimits::default(), KyotoDecoder::default());
    out.clear();
    while !unread.is_empty() {
        let KyotoStep::Request { consumed, request } = dialect.decode(&limits, unread, scratch) else {
            panic!("the streams are whole");
        };
        unread = &unread[consumed..];
        if with_answer {
            write(&request, banner, out);
        } else {
            black_box(&request);
        }
    }
    black_box(out);
}

fn write(request: &KyotoRequest<'_>, banner: &AnswerBanner, out: &mut Vec<u8>) {
    let value = b"0123456789abcdef0123456789abcdef";
    match request {
        KyotoRequest::Call(call) => {
            let pairs: &[(&str, &[u8])] = match call.optional(b"value") {
                Some(_) => &[],
                None => &[("value", value)],
            };
            black_box((call.target(), call.has_signals(), call.required(b"key").is_ok(), call.xt()));
            answer(&call.form, banner, AnswerStatus::Ok, pairs, out);
        }
        KyotoRequest::Rest(rest) => {
            let done = match rest.action {
                RestAction::Get => RestAnswer::Found { value, xt: None },
                _ => RestAnswer::Stored { port: 1978 },
            };
            answer_rest(rest, banner, &done, out);
        }
        KyotoRequest::Bulk(piece) => match (piece.operation, piece.record) {
            (BulkOperation::Get, Some(record)) => {
                binary::put_record(&BulkRecord { value, ..record }, out);
            }
            (operation, _) if piece.remaining == 0 => binary::put_hits(operation, 1, out),
            _ => {}
        },
        request => panic!("{request:?}"),
    }
}
