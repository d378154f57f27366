//! The binary protocol.

use todana_protocol::tyrant::{
    FieldBuffer, FieldList, MISC_NOT_LOGGED, TyrantDecoder, TyrantLimits, TyrantPutMode, TyrantRequest,
    TyrantStep, reply,
};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let digit = |byte: u8| (byte as char).to_digit(16).expect("a hexadecimal digit") as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn put<'a>(mode: TyrantPutMode, key: &'a [u8], value: &'a [u8]) -> TyrantRequest<'a> {
    TyrantRequest::Put { mode, key, value }
}

/// Passes all requests with their bytes to a callback.
fn with_vectors(see: &mut dyn FnMut(&str, TyrantRequest<'_>)) {
    use TyrantPutMode::{Cat, Keep, NoReply, Put};
    use TyrantRequest::*;
    let list = |fields: &[&'static str]| fields.iter().map(|field| field.as_bytes()).collect::<FieldBuffer>();
    let mut misc = |hex: &str, name: &str, options, arguments: &[&'static str]| {
        let arguments = list(arguments);
        see(hex, Misc { name: name.as_bytes(), options, arguments: arguments.list() });
    };
    misc("c890000000030000000000000002707574000000026d6b000000026d76", "put", 0, &["mk", "mv"]);
    misc("c890000000030000000000000001676574000000026d6b", "get", 0, &["mk"]);
    misc("c890000000030000000100000001676574000000026d6b", "get", MISC_NOT_LOGGED, &["mk"]);
    misc("c890000000030000000000000000666f6f", "foo", 0, &[]);
    misc(
        "c8900000000700000000000000057075746c697374 000000026131 000000027631 000000026132 000000027632
         000000036f6464",
        "putlist",
        0,
        &["a1", "v1", "a2", "v2", "odd"],
    );
    misc(
        "c89000000007000000000000000367657470617274000000026d6b00000001310000000131",
        "getpart",
        0,
        &["mk", "1", "1"],
    );
    let mut get_several = |hex: &str, keys: &[&'static str]| see(hex, MGet { keys: list(keys).list() });
    get_several(
        "c83100000004000000026e72000000046e6f7065000000026b32000000026e72",
        &["nr", "nope", "k2", "nr"],
    );
    get_several("c83100000001000000046e6f7065", &["nope"]);
    get_several("c83100000000", &[]);
    for (hex, request) in [
        ("c81000000003000000056162633132333435", put(Put, b"abc", b"12345")),
        ("c811000000030000000161626358", put(Keep, b"abc", b"X")),
        ("c81200000003000000026162633637", put(Cat, b"abc", b"67")),
        ("c81800000002000000036e72796573", put(NoReply, b"nr", b"yes")),
        ("c810000000000000000165", put(Put, b"", b"e")),
        ("c8130000000300000002000000046162633839", PutShl { key: b"abc", value: b"89", width: 4 }),
        ("c8130000000300000002000000006162633839", PutShl { key: b"abc", value: b"89", width: 0 }),
        ("c81300000003000000050000000373686c4142434445", PutShl { key: b"shl", value: b"ABCDE", width: 3 }),
        ("c83000000003616263", Get { key: b"abc" }),
        ("c83000000000", Get { key: b"" }),
        ("c838000000026e72", VSiz { key: b"nr" }),
        ("c820000000026e72", Out { key: b"nr" }),
        ("c858000000010000000a6b", FwmKeys { prefix: b"k", limit: Some(10) }),
        ("c8580000000000000000", FwmKeys { prefix: b"", limit: Some(0) }),
        ("c85800000009ffffffff5b6d696e2c6d61785d", FwmKeys { prefix: b"[min,max]", limit: None }),
        ("c850", IterInit),
        ("c851", IterNext),
        ("c880", RNum),
        ("c881", Size),
        ("c888", Stat),
        ("c86000000001000000056e", AddInt { key: b"n", delta: 5 }),
        ("c86000000001fffffff96e", AddInt { key: b"n", delta: -7 }),
        ("c861000000010000000000000001000000746a52880064", AddDouble { key: b"d", delta: 1.5 }),
        ("c86100000001fffffffffffffffeffffffc5cad6bc0064", AddDouble { key: b"d", delta: -2.25 }),
        ("c8610000000100000000000000000000002e90edd00065", AddDouble { key: b"e", delta: 0.2 }),
        (
            "c861000000037fffffffffffffff0000000000000000696e66",
            AddDouble { key: b"inf", delta: f64::INFINITY },
        ),
        ("c870", Sync),
        ("c872", Vanish),
        ("c87100000000", Optimize { tuning: b"" }),
        ("c8730000000663702e746368", Copy { path: b"cp.tch" }),
        (
            "c874000000050000000000000001000000006e6f646972",
            Restore { path: b"nodir", since_micros: 1, options: 0 },
        ),
        (
            "c8780000000000000000000000000000000000000000",
            SetMst { host: b"", port: 0, since_micros: 0, options: 0 },
        ),
        (
            "c87800000009000074920000000000000005000000013132372e302e302e31",
            SetMst { host: b"127.0.0.1", port: 29842, since_micros: 5, options: 1 },
        ),
        (
            "c868000000040000000000000003000000036563686f6b657976616c",
            Ext { name: b"echo", options: 0, key: b"key", value: b"val" },
        ),
        ("c8a0000000000000000100000063", Repl { since_micros: 1, server_id: 99 }),
    ] {
        see(hex, request);
    }
}

#[test]
fn request_is_decoded_and_encoded_as_captured() {
    with_vectors(&mut |hex, request| {
        let input = bytes(hex);
        let step = TyrantDecoder::default().decode(&TyrantLimits::default(), &input);
        assert_eq!(step, TyrantStep::Request { consumed: input.len(), request }, "{hex}");
        let mut encoded = Vec::new();
        request.encode(&mut encoded);
        assert_eq!(encoded, input, "{hex}");
    });
}

#[test]
fn request_does_not_depend_on_input_cuts() {
    let mut stream = Vec::new();
    let mut lens = Vec::new();
    with_vectors(&mut |hex, _| {
        lens.push(bytes(hex).len());
        stream.extend_from_slice(&bytes(hex));
    });
    for step in [1, 2, 3, 5, 7, 11, 64, stream.len()] {
        let (mut decoder, mut begin, mut end, mut done) = (TyrantDecoder::default(), 0, 0, Vec::new());
        while done.len() < lens.len() {
            match decoder.decode(&TyrantLimits::default(), &stream[begin..end]) {
                TyrantStep::Request { consumed, request } => {
                    let mut encoded = Vec::new();
                    request.encode(&mut encoded);
                    assert_eq!(encoded, stream[begin..begin + consumed], "in steps of {step}");
                    begin += consumed;
                    done.push(consumed);
                }
                TyrantStep::NeedMore { at_least } => {
                    let missing = lens[done.len()] - (end - begin);
                    assert!((1..=missing).contains(&at_least), "{at_least} of {missing}, in steps of {step}");
                    end = (end + step).min(stream.len());
                }
                other => panic!("{other:?} in steps of {step}"),
            }
        }
        assert_eq!(done, lens, "in steps of {step}");
    }
}

#[test]
fn length_beyond_its_limit_closes() {
    for hex in [
        "c899",
        "c830ffffffff",
        "c83010000001",
        "c8100000000110000001",
        "c81300000001 00000001 ffffffff",
        "c8310010 0001",
        "c83100000001 10000001",
        "c86800000400",
        "c890000004000000",
        "c89000000003 00000000 ffffffff",
        "c89000000003 00000000 00000002 707574 00000001 61 80000000",
    ] {
        let input = bytes(hex);
        let step = TyrantDecoder::default().decode(&TyrantLimits::default(), &input);
        assert_eq!(step, TyrantStep::Close, "{hex}");
    }
}

#[test]
fn incomplete_request_is_bounded_by_the_room() {
    let limits = TyrantLimits { unfinished_len_max: 8, ..TyrantLimits::default() };
    let input = bytes("c81000000003000000056162633132333435");
    let decode = |len: usize| TyrantDecoder::default().decode(&limits, &input[..len]);
    assert_eq!(decode(8), TyrantStep::NeedMore { at_least: 2 });
    assert_eq!(decode(10), TyrantStep::Close);
    assert!(matches!(decode(input.len()), TyrantStep::Request { .. }), "a complete request needs no room");
}

#[test]
fn other_first_byte_is_text() {
    for input in [&b"get k\r\n"[..], b"\x80\x00", b"GET / HTTP/1.1"] {
        assert_eq!(TyrantDecoder::default().decode(&TyrantLimits::default(), input), TyrantStep::Text);
    }
}

#[test]
fn reply_is_as_captured() {
    fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }
    let fields =
        |fields: &[&'static str]| fields.iter().map(|field| field.as_bytes()).collect::<FieldBuffer>();
    for (hex, reply) in [
        ("00", written(|out| reply::put_status(true, out))),
        ("01", written(|out| reply::put_status(false, out))),
        ("000000000436373839", written(|out| reply::put_value(b"6789", None, out))),
        ("0000000000", written(|out| reply::put_value(b"", None, out))),
        ("0000000003", written(|out| reply::put_len(3, out))),
        (
            "000000000300000002000000036e7279657300000002000000026b32763200000002000000036e72796573",
            written(|out| {
                out.extend_from_slice(&reply::count_head(3));
                reply::put_record(b"nr", b"yes", None, out);
                reply::put_record(b"k2", b"v2", None, out);
                reply::put_record(b"nr", b"yes", None, out);
            }),
        ),
        ("0000000001000000026b32", written(|out| reply::put_keys(&fields(&["k2"]).list(), out))),
        ("0000000000", written(|out| reply::put_keys(&FieldList::default(), out))),
        ("00fffffffe", written(|out| reply::put_integer(-2, out))),
        ("000000000000000000ffffff5160843400", written(|out| reply::put_real(-0.75, out))),
        ("00000000000000000c", written(|out| reply::put_number(12, out))),
        ("0000000001000000026d76", written(|out| reply::put_fields(true, &fields(&["mv"]).list(), out))),
        ("0100000000", written(|out| reply::put_fields(false, &fields(&["mv"]).list(), out))),
    ] {
        assert_eq!(reply, bytes(hex), "{hex}");
    }
}
