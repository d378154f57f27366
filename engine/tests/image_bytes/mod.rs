//! Adopts fuzz input as a block of an image.
//!
//!     choice(1) | block        choice: bits 0-1 the number of shards as a power of 2

use std::ops::ControlFlow;
use todana_core::{Action, Engine, ErrorKind, ImageForm, ImagedEngine, Record, ScanOrder, Visitor};
use todana_engine::{MemHash, MemHashOptions, read_bucket_block};

/// The most buckets of a hash, by the form of the image. Their number limits the memory that a
/// block can request.
const BUCKETS_MAX: u64 = 1 << 12;
const SEED: u64 = 3;

/// Overwrites a record.
pub(crate) struct Put<'a>(pub(crate) Record<'a>);

impl Visitor for Put<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Put(self.0)
    }
}

struct Remove;

impl Visitor for Remove {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Remove
    }
}

/// Adopts a block with the seed of the fuzz target.
pub(crate) fn adopt_any(bytes: &[u8]) {
    let Some((choice, block)) = bytes.split_first() else { return };
    let order = ScanOrder { seed: SEED, groups: BUCKETS_MAX };
    adopt(block, &ImageForm { bucket_format: 2, shards: 1 << (choice & 3), order });
}

/// Adopts a block in an empty hash, and then changes all of its records. Returns true if the block
/// is refused. The hash must then still be one that works.
pub(crate) fn adopt(block: &[u8], form: &ImageForm) -> bool {
    let order = ScanOrder { groups: form.order.groups.min(BUCKETS_MAX), ..form.order };
    let form = ImageForm { order, ..*form };
    let (shards, seed) = (Some(form.shards as usize), Some(form.order.seed));
    let hash = MemHash::new(MemHashOptions { shards, seed, ..MemHashOptions::default() }).unwrap();
    assert!(hash.begin_image_load(&form));
    let mut put = |key: &[u8], record: Record<'_>| hash.visit(key, &mut Put(record));
    let adopted = hash.adopt_buckets(&form, block, &mut |_| (), &mut put);
    hash.end_ordered_load();
    // Another engine refuses the same blocks, and reads the same number of records.
    let read = read_bucket_block(&form, block, &mut |_, _| Ok(()));
    assert_eq!(read.as_ref().ok(), adopted.as_ref().ok());
    let mut keys = Vec::new();
    let scanned = hash.scan(None, &mut |key, _| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    });
    scanned.unwrap();
    assert_eq!(hash.status().records, keys.len() as u64);
    assert!(hash.status().committed_bytes < 8 << 20, "{:?}", hash.status());
    for n in 0..200u32 {
        put(n.to_string().as_bytes(), Record::new(b"value", Default::default())).unwrap();
    }
    while hash.maintain() {}
    for key in &keys {
        // A block may contain a key twice.
        let mut is_there = true;
        while is_there {
            hash.visit(key, &mut Remove).unwrap();
            is_there = hash.peek(key, &mut |_| ()).unwrap();
        }
    }
    while hash.maintain() {}
    assert!(hash.status().records <= 200);
    hash.clear(&mut || ()).unwrap();
    let status = hash.status();
    assert_eq!((status.records, status.live_bytes), (0, 0));
    adopted.is_err_and(|error| error.kind() == ErrorKind::Corrupt)
}
