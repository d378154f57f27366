//! Runs the fuzz target `data_directory` on some generated inputs.

use crate::fuzz_inputs;
use crate::opener;

use proptest::prelude::*;

#[test]
fn fuzz_inputs_open_or_are_damaged() {
    fuzz_inputs::play_all("data_directory", 5, opener::open_any);
}

/// The seeds with intact images are read, and not only refused.
#[test]
fn seeds_with_images_have_records() {
    for (name, records) in [("image_bucket", 3), ("image_other_seed", 3), ("image_bucket_and_rows", 3)] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/seeds/data_directory");
        let bytes = std::fs::read(format!("{folder}/{name}")).unwrap();
        let kept = opener::open_checkpoint(&bytes[1..]).unwrap();
        assert_eq!(kept.records().len(), records, "{name}");
        kept.kill();
    }
}

proptest! {
    #[test]
    fn any_bytes_open_or_are_damaged(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        opener::open_any(&bytes);
    }

    /// Contents that are almost valid.
    #[test]
    fn any_entries_open_or_are_damaged(
        damage in any::<[u8; 3]>(),
        contents in proptest::collection::vec((0u8..8, proptest::collection::vec(0u8..4, 0..12)), 0..12),
    ) {
        let mut bytes = vec![3];
        bytes.extend_from_slice(&damage);
        for (tag, content) in contents {
            bytes.push(content.len() as u8 + 1);
            bytes.push(tag);
            bytes.extend_from_slice(&content);
        }
        opener::open_any(&bytes);
    }

    /// Blocks that are almost valid, and later log.
    #[test]
    fn any_blocks_open_or_are_damaged(
        damage in 0u8..12,
        place in any::<[u8; 2]>(),
        head in (0u8..64, 0u8..64, prop_oneof![Just(0u8), any::<u8>()]),
        blocks in proptest::collection::vec(block(), 0..6),
        log in proptest::option::of(proptest::collection::vec((1u8..6, proptest::collection::vec(0u8..4, 0..8)), 0..6)),
    ) {
        let mut checkpoint = vec![damage, place[0], place[1], head.0, head.1, head.2];
        for (shape, records, content) in blocks {
            checkpoint.extend_from_slice(&[shape, records]);
            checkpoint.extend_from_slice(&(content.len() as u16).to_le_bytes());
            checkpoint.extend_from_slice(&content);
        }
        let Some(log) = log else {
            opener::open_any(&[&[5], &checkpoint[..]].concat());
            return Ok(());
        };
        let mut bytes = [&[6], &(checkpoint.len() as u16).to_le_bytes()[..], &checkpoint].concat();
        bytes.extend_from_slice(&[9, 0, 0]);
        for (tag, content) in log {
            bytes.extend_from_slice(&[content.len() as u8 + 1, tag]);
            bytes.extend_from_slice(&content);
        }
        opener::open_any(&bytes);
    }
}

/// Shape, number of records, content.
fn block() -> impl Strategy<Value = (u8, u8, Vec<u8>)> {
    let (bytes, small) =
        (proptest::collection::vec(any::<u8>(), 0..40), proptest::collection::vec(0u8..4, 0..40));
    let content = prop_oneof![bytes, small, rows(), rows(), rows()];
    let shape = prop_oneof![Just(1u8), Just(9), Just(13), any::<u8>()];
    let of_any = (shape, 0u8..4, content);
    // Each block has one plain record. A long record has a key of 1 byte and a value of 3 bytes,
    // and may be incomplete.
    let long = Just((2, 1, b"\0\x01\0\0\0\x03\0\0\0".to_vec()));
    let piece = proptest::collection::vec(any::<u8>(), 0..5).prop_map(|content| (3, 0, content));
    prop_oneof![
        of_any,
        rows().prop_map(|content| (1, 2, content)),
        rows().prop_map(|content| (9, 2, content)),
        buckets().prop_map(|content| (0, 1, content)),
        long,
        piece
    ]
}

/// A run of an image with one bucket, almost valid: a record and a tail.
fn buckets() -> impl Strategy<Value = Vec<u8>> {
    let place = prop_oneof![Just(0u64), any::<u64>()];
    let sizes = (prop_oneof![Just(1u32), 0u32..5], prop_oneof![Just(1u32), 0u32..3]);
    let record = prop_oneof![
        Just(vec![0x00, 7, 9]),
        Just(b"\xef\x03\x05keyvalue".to_vec()),
        Just(b"\xf1\xef\x03\x01\xac\x02keyv".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..20),
    ];
    let tail =
        prop_oneof![Just(vec![0xF0]), Just(b"\xf8\xc1\x02\0\0\0\0\0\0\x04\x05".to_vec()), Just(Vec::new())];
    (place, sizes, record, tail).prop_map(|(place, (directory, buckets), record, tail)| {
        [&place.to_le_bytes()[..], &directory.to_le_bytes(), &buckets.to_le_bytes(), &record, &tail].concat()
    })
}

/// Two records in columns, almost valid: numbers, text, attributes.
fn rows() -> impl Strategy<Value = Vec<u8>> {
    let form = prop_oneof![Just(0x00u8), Just(0x08), Just(0x80), Just(0x88), any::<u8>()];
    let tag = prop_oneof![Just(0u8), Just(1), 0u8..64];
    (form.clone(), form, tag.clone(), tag, proptest::collection::vec(0u8..4, 0..12), 0u8..6).prop_map(
        |(one, other, tag, other_tag, rest, off)| {
            let forms = [one, other];
            let texts = forms
                .iter()
                .map(|form| usize::from(form >> 4 == 8) + usize::from(form & 15 == 8))
                .sum::<usize>();
            let mut content = vec![(texts as u8).wrapping_add(off / 5), 0, 0, 0];
            content.extend_from_slice(&[(tag.count_ones() + other_tag.count_ones()) as u8, 0, 0, 0]);
            content.extend_from_slice(&[forms.iter().filter(|&&form| form >> 4 == 8).count() as u8, 0, 0, 0]);
            content.extend_from_slice(&[tag, other_tag, one, other]);
            content.extend_from_slice(&[1; 16][..8 - texts.min(8)]);
            content.extend_from_slice(&rest);
            content
        },
    )
}
