//! Compresses leaves that are not being written to. A compressed leaf is called closed.
//!
//! ```text
//! closed leaf = 0 | codec (u8) | len (u16) | key_len (u8) | key | leaf_len (u16) | payload
//! ```
//!
//! `len` is the length of the complete block. `key` is the beginning of the first key, at most 255
//! bytes, by which the leaf is found when its block moves. With codec 1 the payload is a Zstandard
//! frame without magic number and content size. With codec 0 the payload is the plain leaf, because
//! compression did not make it smaller. An open leaf never begins with 0.
//!
//! A leaf with stubs stays open, because its references change when other blocks move. When a
//! closed leaf is read, an open copy is kept in [`LeafCopies`], which discards the oldest copies.
//! When a closed leaf is written to, it is opened and stays open until the clock hand of its
//! partition reaches it.

use super::leaf::Leaf;
use crate::arena::MemoryBudget;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use zstd::zstd_safe::{DCtx, DParameter, FrameFormat};

const RAW: u8 = 0;
const ZSTD: u8 = 1;
/// The length of the header before the key.
const HEADER: usize = 5;
/// The maximum size of a compressed leaf, in percent of the plain leaf. A larger one is not worth
/// the time of decompressing it.
const WORTH_HUNDREDTHS: usize = 90;
/// The compression level. Level 3 would make leaves 4 % smaller and take half as long again (Nov
/// 2026, 10 million decimal records).
const LEVEL: i32 = 1;

struct LeafCodec {
    /// The compressor. It is created again when it is needed after it was freed.
    compressor: Option<zstd::bulk::Compressor<'static>>,
    decompressor: DCtx<'static>,
    /// The memory of this codec that the budget counts.
    bytes: usize,
}

impl LeafCodec {
    /// Creates a codec. Returns `None` if memory is short.
    fn new() -> Option<LeafCodec> {
        let mut decompressor = DCtx::try_create()?;
        decompressor.set_parameter(DParameter::Format(FrameFormat::Magicless)).ok()?;
        Some(LeafCodec { compressor: None, decompressor, bytes: 0 })
    }

    fn compress(&mut self, image: &[u8]) -> Option<Vec<u8>> {
        if self.compressor.is_none() {
            let mut compressor = zstd::bulk::Compressor::new(LEVEL).ok()?;
            // The lengths are stored in the leaf, and no other program reads these frames.
            compressor.include_contentsize(false).ok()?;
            compressor.include_checksum(false).ok()?;
            compressor.include_magicbytes(false).ok()?;
            self.compressor = Some(compressor);
        }
        self.compressor.as_mut()?.compress(image).ok()
    }

    /// Returns the memory that the codec uses. The memory grows at the first use.
    fn held(&mut self) -> usize {
        let compressor = self.compressor.as_mut().map_or(0, |compressor| compressor.context_mut().sizeof());
        compressor + self.decompressor.sizeof()
    }
}

/// The compression contexts of a database, some hundred KiB each. There are as many as threads have
/// needed at once. Once a context exists, at least one that can decompress always remains, because
/// compressed leaves must stay readable when memory is short.
pub(super) struct CodecPool {
    all: Mutex<PooledCodecs>,
    codec_returned: Condvar,
    budget: Arc<MemoryBudget>,
    make: fn() -> Option<LeafCodec>,
}

#[derive(Default)]
struct PooledCodecs {
    idle: Vec<LeafCodec>,
    /// The number of contexts, including those in use.
    count: usize,
}

impl CodecPool {
    pub(super) fn new(budget: Arc<MemoryBudget>) -> CodecPool {
        CodecPool { all: Mutex::default(), codec_returned: Condvar::new(), budget, make: LeafCodec::new }
    }

    /// Runs `work` with a context. If memory is too short for another context, waits for one that
    /// is in use. Returns `None` if there is no context at all, which is possible only before
    /// anything has been compressed.
    fn with<T>(&self, work: impl FnOnce(&mut LeafCodec) -> Option<T>) -> Option<T> {
        let mut codec = self.take()?;
        let outcome = work(&mut codec);
        let held = codec.held();
        if held > codec.bytes {
            self.budget.commit_anyway(held - codec.bytes);
        } else {
            self.budget.release(codec.bytes - held);
        }
        codec.bytes = held;
        self.all.lock().idle.push(codec);
        self.codec_returned.notify_one();
        outcome
    }

    fn take(&self) -> Option<LeafCodec> {
        if let Some(codec) = self.all.lock().idle.pop() {
            return Some(codec);
        }
        let new = (self.make)();
        let mut all = self.all.lock();
        if new.is_some() {
            all.count += 1;
            return new;
        }
        while all.count > 0 {
            if let Some(codec) = all.idle.pop() {
                return Some(codec);
            }
            self.codec_returned.wait(&mut all);
        }
        None
    }

    /// Frees all contexts except one, and the compressor of that one. They are created again when
    /// they are needed. Until its next use, the budget does not count the remaining context, so
    /// that an empty tree counts no memory.
    pub(super) fn forget(&self) {
        let mut all = self.all.lock();
        while all.count > 1 {
            let Some(codec) = all.idle.pop() else { return };
            all.count -= 1;
            self.budget.release(codec.bytes);
        }
        if let Some(last) = all.idle.last_mut() {
            last.compressor = None;
            self.budget.release(std::mem::take(&mut last.bytes));
        }
    }
}

impl Drop for CodecPool {
    fn drop(&mut self) {
        for codec in self.all.get_mut().idle.drain(..) {
            self.budget.release(codec.bytes);
        }
    }
}

/// Returns true if these are the bytes of a closed leaf.
#[inline]
pub(super) fn is_closed(bytes: &[u8]) -> bool {
    bytes[0] == 0
}

/// Returns the length of a closed leaf.
pub(super) fn len(bytes: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([bytes[2], bytes[3]]))
}

/// Returns the beginning of the first key of a closed leaf.
pub(super) fn key(bytes: &[u8]) -> &[u8] {
    &bytes[HEADER..HEADER + usize::from(bytes[4])]
}

/// Compresses an open leaf.
pub(super) fn close(leaf: Leaf<'_>, codecs: &CodecPool) -> Vec<u8> {
    let image = leaf.image();
    let first = leaf.entry(leaf.records_at());
    let mut key = [leaf.prefix(), &leaf.bytes()[first.key]].concat();
    key.truncate(255);
    let mut closed = vec![0, RAW, 0, 0, key.len() as u8];
    closed.extend_from_slice(&key);
    closed.extend_from_slice(&(image.len() as u16).to_le_bytes());
    let packed = codecs.with(|codec| codec.compress(image));
    match packed.filter(|packed| packed.len() * 100 <= image.len() * WORTH_HUNDREDTHS) {
        Some(packed) => {
            closed[1] = ZSTD;
            closed.extend_from_slice(&packed);
        }
        None => closed.extend_from_slice(image),
    }
    let len = closed.len() as u16;
    closed[2..4].copy_from_slice(&len.to_le_bytes());
    closed
}

/// Decompresses a closed leaf. Returns the bytes of the leaf, followed by eight bytes that make it
/// readable as a leaf.
pub(super) fn open(bytes: &[u8], codecs: &CodecPool) -> Vec<u8> {
    let at = HEADER + usize::from(bytes[4]);
    let leaf_len = usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let payload = &bytes[at + 2..len(bytes)];
    let mut leaf = Vec::with_capacity(leaf_len + 8);
    if bytes[1] == ZSTD {
        // The bytes never left this process, so they cannot be damaged.
        codecs
            .with(|codec| codec.decompressor.decompress(&mut leaf, payload).ok())
            .expect("what was compressed here can be decompressed");
    } else {
        leaf.extend_from_slice(payload);
    }
    assert_eq!(leaf.len(), leaf_len, "a leaf comes back as it was");
    leaf.resize(leaf_len + 8, 0);
    leaf
}

/// Open copies of closed leaves, found by the handles of their blocks.
pub(super) struct LeafCopies {
    /// The copies with their handles. Frequently used copies are near the front.
    copies: Vec<(u32, Arc<[u8]>)>,
    bytes: usize,
    bytes_max: usize,
    budget: Arc<MemoryBudget>,
}

impl LeafCopies {
    pub(super) fn new(bytes_max: usize, budget: Arc<MemoryBudget>) -> LeafCopies {
        LeafCopies { copies: Vec::new(), bytes: 0, bytes_max, budget }
    }

    pub(super) fn get(&mut self, handle: u32) -> Option<Arc<[u8]>> {
        let index = self.copies.iter().position(|(of, _)| *of == handle)?;
        // The copy moves only halfway to the front, so that a copy that is read once does not
        // displace frequently used ones.
        self.copies[index / 2..=index].rotate_right(1);
        Some(Arc::clone(&self.copies[index / 2].1))
    }

    pub(super) fn put(&mut self, handle: u32, leaf: Arc<[u8]>) {
        // Two readers may have opened the same leaf at once. A second copy would survive `remove`,
        // and could later be mistaken for another leaf in the same block.
        self.remove(handle);
        while self.bytes + leaf.len() > self.bytes_max {
            let Some((_, removed)) = self.copies.pop() else { break };
            self.forget(removed.len());
        }
        self.bytes += leaf.len();
        self.budget.commit_anyway(leaf.len());
        let middle = self.copies.len() / 2;
        self.copies.insert(middle, (handle, leaf));
    }

    /// Removes the copy of a block that was freed or changed.
    pub(super) fn remove(&mut self, handle: u32) {
        if let Some(index) = self.copies.iter().position(|(of, _)| *of == handle) {
            let (_, removed) = self.copies.remove(index);
            self.forget(removed.len());
        }
    }

    /// Removes all copies. Returns true if there were any.
    pub(super) fn clear(&mut self) -> bool {
        let any = !self.copies.is_empty();
        self.copies.clear();
        self.forget(self.bytes);
        any
    }

    fn forget(&mut self, len: usize) {
        self.bytes -= len;
        self.budget.release(len);
    }
}

impl Drop for LeafCopies {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::super::leaf::{LeafBuilder, LeafItem, entry, put_record};
    use super::*;
    use todana_core::{Attributes, MemoryLimit, WhenFull};

    /// Returns a leaf as it is stored in the arena.
    fn image() -> Vec<u8> {
        let mut records = Vec::new();
        for n in 0..50 {
            let mut bytes = Vec::new();
            put_record(
                &mut bytes,
                format!("key:{n:04}").as_bytes(),
                b"a value like others",
                &Attributes::default(),
            );
            records.push(bytes);
        }
        let items: Vec<LeafItem<'_>> =
            records.iter().map(|bytes| LeafItem { bytes, entry: entry(bytes, 0), prefix: &[] }).collect();
        let mut new = LeafBuilder::default();
        new.build(&items);
        new.image.resize(new.image.len() + 8, 0);
        new.image
    }

    #[test]
    fn closed_leaf_is_readable_without_memory_for_contexts() {
        let budget = Arc::new(MemoryBudget::new(MemoryLimit { bytes: None, when_full: WhenFull::Evict }));
        let mut codecs = CodecPool::new(Arc::clone(&budget));
        let image = image();
        let closed = close(Leaf::new(&image), &codecs);
        assert_eq!(closed[1], ZSTD);
        codecs.make = || None;
        codecs.forget();
        let open = || open(&closed, &codecs);
        assert!(open() == image);
        // A second reader waits for the last context while it is in use.
        let (sender, receiver) = std::sync::mpsc::channel();
        let both_are_there = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let (both_are_there, open) = (&both_are_there, &open);
            scope.spawn(move || {
                both_are_there.wait();
                sender.send(open()).unwrap();
            });
            codecs.with(|_| {
                both_are_there.wait();
                Some(())
            });
            assert!(receiver.recv().unwrap() == image);
        });
        // Compression needs more memory.
        assert_eq!(close(Leaf::new(&image), &codecs)[1], ZSTD);
    }

    #[test]
    fn codec_pool_releases_its_complete_budget() {
        let budget = Arc::new(MemoryBudget::new(MemoryLimit { bytes: None, when_full: WhenFull::Evict }));
        let before = budget.committed();
        let codecs = CodecPool::new(Arc::clone(&budget));
        let closed = close(Leaf::new(&image()), &codecs);
        let compressing = budget.committed();
        codecs.forget();
        assert_eq!(budget.committed(), before);
        open(&closed, &codecs);
        let opening = budget.committed();
        assert!(before < opening && opening < compressing, "{before} {opening} {compressing}");
        drop(codecs);
        assert_eq!(budget.committed(), before);
    }

    #[test]
    fn concurrently_opened_leaf_has_one_copy() {
        let budget = Arc::new(MemoryBudget::new(MemoryLimit { bytes: None, when_full: WhenFull::Evict }));
        let mut copies = LeafCopies::new(1000, Arc::clone(&budget));
        copies.put(7, [1; 100].into());
        copies.put(8, [2; 100].into());
        copies.put(7, [1; 100].into());
        assert_eq!(copies.bytes, 200);
        copies.remove(7);
        assert_eq!(copies.get(7), None);
        assert_eq!(copies.get(8).as_deref(), Some(&[2; 100][..]));
        assert_eq!(copies.bytes, 100);
    }
}
