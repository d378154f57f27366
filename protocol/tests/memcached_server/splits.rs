//! Tests that the results do not depend on how a stream is split, and that no bytes make the
//! decoder panic or stop.

use crate::exchange::send_in_pieces;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use todana_protocol::memcached::{MemcachedDecoder, MemcachedLimits, MemcachedStep};

/// Lines and blocks, valid and invalid, from which streams are assembled.
const PIECES: &[&[u8]] = &[
    b"get a\r\n",
    b"get a bb  ccc a\r\n",
    b"gets a b\n",
    b"gat 10 a b c\r\n",
    b"gat x a\r\n",
    b"set k 0 0 5\r\nhello\r\n",
    b"set k 1 60 0 noreply\r\n\r\n",
    b"set k 0 0 5\r\nhello, world\r\n",
    b"set k x 0 20\r\nget a\r\nget b\r\n....\r\n\r\n",
    b"set k 0 0 60\r\n",
    b"add k 0 0 61\r\n",
    b"ms k 60 q\r\n",
    b"cas k 0 0 2 7\r\nab\r\n",
    b"delete k\r\n",
    b"delete k b\r\n",
    b"incr n 1\r\n",
    b"touch k 0 noreply\r\n",
    b"flush_all\r\n",
    b"mg k v t T30 s O1\r\n",
    b"mg Zm9v b k v\r\n",
    b"mg kk b k v\r\n",
    b"ms k 2 T0 F1 k\r\nab\r\n",
    b"ms Zm9v 2 b k c\r\nab\r\n",
    b"ms k 8 v v\r\nmn\r\nmn\r\n\r\n",
    b"ms k 4 !\r\nmn\r\n\r\n",
    b"md k q\r\n",
    b"ma n D5 v\r\n",
    b"me k\r\n",
    b"mn\r\n",
    b"mn\n",
    b"\r\n",
    b"a\n",
    b"foo\r\n",
    b"foo noreply\r\n",
    b"stats items\r\n",
    b"version\r\n",
    b"quit\r\n",
    b"GET / HTTP/1.1\r\n",
    b" ",
    b"\0",
    b"\r",
    b"get ",
    b"set ",
    b"mg ",
    b"ms ",
    b"noreply ",
    b"k ",
    b"5 ",
    b"\n",
];

/// The beginnings of lines that may or may not grow long.
const LINE_STARTS: &[&[u8]] = &[b"get ", b"gets ", b"  get ", b"gat 0 ", b"mg ", b"x"];

fn small_limits() -> MemcachedLimits {
    MemcachedLimits {
        item_size_max: 100,
        line_len_max: 200,
        get_line_len_max: 400,
        ..MemcachedLimits::default()
    }
}

fn assert_cut_does_not_matter(stream: &[u8], cuts: &[Index]) {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
    cuts.sort_unstable();
    let every_byte: Vec<usize> = (1..stream.len()).collect();
    for limits in
        [MemcachedLimits::default(), small_limits(), MemcachedLimits { text_login: true, ..small_limits() }]
    {
        let whole = send_in_pieces(limits, stream, &[]);
        assert_eq!(whole, send_in_pieces(limits, stream, &cuts), "cut at {cuts:?}");
        assert_eq!(whole, send_in_pieces(limits, stream, &every_byte), "byte by byte");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1500) })]

    #[test]
    fn any_cut_of_requests_yields_the_same(
        pieces in vec(select(PIECES), 0..12),
        cuts in vec(any::<Index>(), 0..8),
    ) {
        assert_cut_does_not_matter(&pieces.concat(), &cuts);
    }

    #[test]
    fn any_cut_of_garbage_yields_the_same(
        stream in vec(any::<u8>(), 0..600),
        cuts in vec(any::<Index>(), 0..8),
    ) {
        assert_cut_does_not_matter(&stream, &cuts);
    }

    #[test]
    fn any_cut_of_damaged_requests_yields_the_same(
        pieces in vec(select(PIECES), 1..8),
        damage in vec((any::<Index>(), any::<u8>()), 0..6),
        cuts in vec(any::<Index>(), 0..8),
    ) {
        let mut stream = pieces.concat();
        for (at, byte) in damage {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        assert_cut_does_not_matter(&stream, &cuts);
    }

    #[test]
    fn long_line_rule_ignores_the_split(
        start in select(LINE_STARTS),
        words in vec("[a-z]{1,12}", 0..60),
        cuts in vec(any::<Index>(), 0..8),
    ) {
        let stream = [start, words.join(" ").as_bytes(), b"\r\nversion\r\n"].concat();
        assert_cut_does_not_matter(&stream, &cuts);
    }
}

#[test]
fn long_line_is_scanned_once() {
    // 4 MiB in 4-byte pieces are a million calls. If each call examined the line from its start,
    // this would take 2^41 byte steps, and the test would not end.
    let limits = MemcachedLimits { get_line_len_max: 8 << 20, ..MemcachedLimits::default() };
    let (mut dialect, mut scratch) = (MemcachedDecoder::default(), Vec::new());
    let line = ["get ", &"key ".repeat(1 << 20)].concat();
    for len in (4..=line.len()).step_by(4) {
        let step = dialect.decode(&limits, &line.as_bytes()[..len], &mut scratch);
        assert!(matches!(step, MemcachedStep::NeedMore { consumed: 0, at_least: 1 }));
    }
}

#[test]
fn long_list_of_keys_takes_one_pass() {
    let limits = MemcachedLimits { get_line_len_max: 8 << 20, ..MemcachedLimits::default() };
    let (mut dialect, mut scratch) = (MemcachedDecoder::default(), Vec::new());
    let line = ["get ", &"key ".repeat(1 << 20), "\r\n"].concat();
    let (mut unread, mut keys) = (line.as_bytes(), 0);
    while !unread.is_empty() {
        let step = dialect.decode(&limits, unread, &mut scratch);
        let MemcachedStep::Request { consumed, .. } = step else { panic!("{step:?}") };
        unread = &unread[consumed..];
        keys += 1;
    }
    assert_eq!(keys, 1 << 20);
}
