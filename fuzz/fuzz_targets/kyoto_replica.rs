//! Data that Kyoto Tycoon's servers send to a replica or to a client: any bytes, split in any way,
//! yield the same results. An update that has been read is the same after being written and read
//! again.
//!
//! The input is a byte that selects the reader, a byte with the number of cuts, the cuts (two bytes
//! each), and the stream.
#![no_main]

mod kyoto_cuts;
#[path = "../../protocol/tests/kyoto_files/pieces.rs"]
#[allow(dead_code)]
mod pieces;

use kyoto_cuts::{assert_cuts_do_not_matter, stream_and_cuts};
use pieces::{Read, read_in_pieces};
use todana_protocol::kyoto::client::{AnswerDecoder, AnswerStep, BinaryAnswerDecoder, BinaryStep};
use todana_protocol::kyoto::replication::{MasterMessage, ReplicaDecoder, ReplicaStep};
use todana_protocol::kyoto::{KyotoLimits, MapScratch, UpdateMessage};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((who, rest)) = input.split_first() else { return };
    let Some((stream, cuts)) = stream_and_cuts(rest) else { return };
    assert_cuts_do_not_matter(stream, &cuts, |cuts| match who % 4 {
        0 | 1 => replica(stream, cuts),
        2 => answers(stream, cuts),
        _ => binary_answers(stream, cuts),
    });
});

fn replica(stream: &[u8], cuts: &[usize]) -> Vec<String> {
    let mut replica = ReplicaDecoder::default();
    read_in_pieces(stream, cuts, |input| match replica.decode(input) {
        ReplicaStep::Message { consumed, master_message } => {
            if let MasterMessage::Update { message, .. } = master_message {
                let mut written = Vec::new();
                message.put(&mut written);
                assert_eq!(written.len(), message.len());
                assert_eq!(UpdateMessage::parse(&written), Some(message));
            }
            Read::Item(consumed, format!("{master_message:?}"))
        }
        ReplicaStep::NeedMore { at_least } => Read::More(at_least),
        ReplicaStep::Malformed => Read::Last("malformed".into()),
    })
}

fn answers(stream: &[u8], cuts: &[usize]) -> Vec<String> {
    let (mut answers, mut scratch, mut count) = (AnswerDecoder::default(), MapScratch::default(), 0);
    read_in_pieces(stream, cuts, |input| {
        // Every third answer belongs to a HEAD request.
        match answers.decode(&KyotoLimits::default(), input, &mut scratch, count % 3 != 2) {
            AnswerStep::Answer { consumed, answer } => {
                count += 1;
                let error = answer.error().map(<[u8]>::to_vec);
                Read::Item(consumed, format!("{answer:?} {:?} {error:?}", answer.outcome()))
            }
            AnswerStep::NeedMore { at_least } => Read::More(at_least),
            AnswerStep::Malformed => Read::Last("malformed".into()),
        }
    })
}

fn binary_answers(stream: &[u8], cuts: &[usize]) -> Vec<String> {
    let mut answers = BinaryAnswerDecoder::default();
    read_in_pieces(stream, cuts, |input| match answers.decode(input) {
        BinaryStep::Answer { consumed, answer } => Read::Item(consumed, format!("{answer:?}")),
        BinaryStep::NeedMore { at_least } => Read::More(at_least),
        BinaryStep::Malformed => Read::Last("malformed".into()),
    })
}
