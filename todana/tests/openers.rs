//! The short form of the fuzz target `data_directory`.

mod crash_disk;
mod kept;
mod opener;

use proptest::prelude::*;

#[test]
fn seeds_open_or_are_damaged() {
    let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/data_directory");
    for seed in std::fs::read_dir(seeds).unwrap() {
        opener::open_any(&std::fs::read(seed.unwrap().path()).unwrap());
    }
}

proptest! {
    #[test]
    fn any_bytes_open_or_are_damaged(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        opener::open_any(&bytes);
    }

    /// Contents that are nearly right.
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
}
