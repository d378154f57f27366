//! Runs the fuzz target `salvage` on some generated inputs.

use crate::fuzz_inputs;
use crate::spoiled;

use proptest::prelude::*;

#[test]
fn inputs_of_the_fuzz_target_are_salvaged() {
    fuzz_inputs::play_all("salvage", 5, spoiled::salvage_any);
}

/// Returns a file: its shape, its position and its contents.
fn file() -> impl Strategy<Value = Vec<u8>> {
    let entry = prop_oneof![
        Just(vec![17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        Just(vec![4, 1, 1, b'k', b'v']),
        Just(vec![3, 3, 1, b'k']),
        Just(vec![1, 4]),
    ];
    let entries = (0u8..8, any::<[u8; 2]>(), proptest::collection::vec(entry, 0..4))
        .prop_map(|(damage, place, entries)| [vec![damage, place[0], place[1]], entries.concat()].concat());
    let blocks = (0u64..60, 0u8..12, any::<[u8; 2]>(), 0u8..16).prop_map(|(until, damage, place, head)| {
        [&until.to_le_bytes()[..], &[damage, place[0], place[1], head, 0, 0]].concat()
    });
    let content = prop_oneof![
        entries.clone().prop_map(|content| (1u8, content)),
        entries.prop_map(|content| (1u8, content)),
        blocks.prop_map(|content| (3u8, content)),
        (0u8..3, proptest::collection::vec(any::<u8>(), 0..80)),
    ];
    (content, prop_oneof![Just(0u64), 0u64..100, Just(25u64), Just(37u64), any::<u64>()]).prop_map(
        |((shape, content), position)| {
            let shape = if position > 100 { shape | 0x1c } else { shape };
            let len = (content.len() as u16).to_le_bytes();
            [&[shape][..], &position.to_le_bytes(), &len, &content].concat()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
    #[test]
    fn any_directory_is_salvaged_or_refused(
        head in prop_oneof![Just(0u8), 0u8..16],
        files in proptest::collection::vec(file(), 0..4),
    ) {
        spoiled::salvage_any(&[vec![head], files.concat()].concat());
    }
}
