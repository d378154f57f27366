//! Memory used by compression counts as memory of the tree.

#[allow(dead_code, reason = "each test file uses its part")]
mod visitor;

use todana_core::{BoundedEngine, Engine, MemoryLimit, WhenFull};
use todana_engine::{Compression, MemTree, MemTreeOptions};
use visitor::Set;

#[test]
fn compression_memory_counts_until_it_is_freed() {
    let limit = MemoryLimit { bytes: None, when_full: WhenFull::Evict };
    let compression = Some(Compression { open_bytes: 64 << 10 });
    let options = MemTreeOptions { partitions: Some(1), limit, compression, ..Default::default() };
    let tree = MemTree::new(options).unwrap();
    let empty = tree.status().committed_bytes;
    for n in 0..20_000_u32 {
        tree.visit(format!("user:{n:08}").as_bytes(), &mut Set(b"a value like all others")).unwrap();
    }
    let held = || tree.status().committed_bytes;
    // When room is wanted, all leaves are compressed, and then the compressor is freed.
    tree.set_limit(MemoryLimit { bytes: Some(held() + (1 << 20)), when_full: WhenFull::Refuse });
    assert!(tree.visit(b"k", &mut Set(&vec![1; 4 << 20])).is_err());
    let packed = held();
    // Reading a leaf needs a decompressor of about 94 KiB, and keeps an open copy of 8 KiB.
    assert!(tree.view(b"user:00001000", &mut |_| {}).unwrap());
    let takes = held() - packed;
    assert!((64 << 10..2 << 20).contains(&takes), "{takes}");
    tree.clear(&mut || ()).unwrap();
    assert_eq!(held(), empty);
}
