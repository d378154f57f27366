//! Leaves that are compressed while nobody writes to them.
//!
//! ```text
//! closed leaf = 0 | codec (u8) | len (u16) | key_len (u8) | key | leaf_len (u16) | payload
//! ```
//!
//! `len` is that of the whole block; `key` is what the first key begins with, 255 bytes at most, by which the leaf is found
//! when its block moves. Codec 1: the payload is a Zstandard frame without its header's size; 0: the leaf as it is, which could
//! not be made smaller. A leaf in the open never begins with 0.
//!
//! A leaf with stubs stays open, as its references change when other blocks move. What is read of closed leaves is kept in
//! [`Copies`], which forgets the oldest; what is written to is open until the hand of its partition comes by.

use super::leaf::Leaf;
use crate::arena::Budget;
use parking_lot::Mutex;
use std::sync::Arc;
use zstd::zstd_safe::{DCtx, DParameter, FrameFormat};

const RAW: u8 = 0;
const ZSTD: u8 = 1;
/// Before the key.
const HEADER: usize = 5;
/// A leaf must come down to so many hundredths to be worth the work of opening it.
const WORTH_HUNDREDTHS: usize = 90;
/// More gains little: 3 is 4 % smaller and takes half as long again [Nov 2026, 10 M decimal records].
const LEVEL: i32 = 1;

struct Codec {
    compressor: zstd::bulk::Compressor<'static>,
    decompressor: DCtx<'static>,
    /// What the budget knows of it.
    bytes: usize,
}

impl Codec {
    /// `None` where there is no memory for it.
    fn new() -> Option<Codec> {
        let mut compressor = zstd::bulk::Compressor::new(LEVEL).ok()?;
        // The lengths are known without it, and nobody reads these but us.
        compressor.include_contentsize(false).ok()?;
        compressor.include_checksum(false).ok()?;
        compressor.include_magicbytes(false).ok()?;
        let mut decompressor = DCtx::try_create()?;
        decompressor.set_parameter(DParameter::Format(FrameFormat::Magicless)).ok()?;
        Some(Codec { compressor, decompressor, bytes: 0 })
    }

    /// What they hold, which grows when they are first used.
    fn held(&mut self) -> usize {
        self.compressor.context_mut().sizeof() + self.decompressor.sizeof()
    }
}

/// The contexts of a database, some hundred KiB each: as many as there have been threads at work at once.
pub(super) struct Codecs {
    idle: Mutex<Vec<Codec>>,
    budget: Arc<Budget>,
}

impl Codecs {
    pub(super) fn new(budget: Arc<Budget>) -> Codecs {
        Codecs { idle: Mutex::default(), budget }
    }

    /// Works with one of them; `None` where there is no memory for another one.
    fn with<T>(&self, work: impl FnOnce(&mut Codec) -> Option<T>) -> Option<T> {
        let idle = self.idle.lock().pop();
        let mut codec = idle.or_else(Codec::new)?;
        let outcome = work(&mut codec);
        let held = codec.held();
        if held > codec.bytes {
            self.budget.commit_anyway(held - codec.bytes);
        } else {
            self.budget.release(codec.bytes - held);
        }
        codec.bytes = held;
        self.idle.lock().push(codec);
        outcome
    }

    /// Gives the memory of all back; those who need one make it again.
    pub(super) fn forget(&self) {
        for codec in self.idle.lock().drain(..) {
            self.budget.release(codec.bytes);
        }
    }
}

impl Drop for Codecs {
    fn drop(&mut self) {
        self.forget();
    }
}

/// True for the bytes of a closed leaf.
#[inline]
pub(super) fn is_closed(bytes: &[u8]) -> bool {
    bytes[0] == 0
}

/// The length of a block that holds a closed leaf.
pub(super) fn len(bytes: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([bytes[2], bytes[3]]))
}

/// What the first key of a closed leaf begins with.
pub(super) fn key(bytes: &[u8]) -> &[u8] {
    &bytes[HEADER..HEADER + usize::from(bytes[4])]
}

/// A closed leaf of an open one.
pub(super) fn close(leaf: Leaf<'_>, codecs: &Codecs) -> Vec<u8> {
    let image = leaf.image();
    let first = leaf.entry(leaf.records_at());
    let mut key = [leaf.prefix(), &leaf.bytes()[first.key]].concat();
    key.truncate(255);
    let mut closed = vec![0, RAW, 0, 0, key.len() as u8];
    closed.extend_from_slice(&key);
    closed.extend_from_slice(&(image.len() as u16).to_le_bytes());
    let packed = codecs.with(|codec| codec.compressor.compress(image).ok());
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

/// The bytes of the leaf that was closed, and eight more.
pub(super) fn open(bytes: &[u8], codecs: &Codecs) -> Vec<u8> {
    let at = HEADER + usize::from(bytes[4]);
    let leaf_len = usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let payload = &bytes[at + 2..len(bytes)];
    let mut leaf = Vec::with_capacity(leaf_len + 8);
    if bytes[1] == ZSTD {
        // Memory of our own: there is nobody to report damage to, and no other record to go on with.
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

/// Open copies of closed leaves, by the handles of their blocks.
pub(super) struct Copies {
    /// Those used more often are further to the front.
    copies: Vec<(u32, Arc<[u8]>)>,
    bytes: usize,
    bytes_max: usize,
    budget: Arc<Budget>,
}

impl Copies {
    pub(super) fn new(bytes_max: usize, budget: Arc<Budget>) -> Copies {
        Copies { copies: Vec::new(), bytes: 0, bytes_max, budget }
    }

    pub(super) fn get(&mut self, handle: u32) -> Option<Arc<[u8]>> {
        let index = self.copies.iter().position(|(of, _)| *of == handle)?;
        // Halfway to the front: one that was read once does not push out those that are read all the time.
        self.copies[index / 2..=index].rotate_right(1);
        Some(Arc::clone(&self.copies[index / 2].1))
    }

    pub(super) fn put(&mut self, handle: u32, leaf: Arc<[u8]>) {
        // Two readers may have opened the same leaf at once. A second copy would outlive what `remove` is for, and be taken for
        // what another leaf holds in that block.
        self.remove(handle);
        while self.bytes + leaf.len() > self.bytes_max {
            let Some((_, gone)) = self.copies.pop() else { break };
            self.forget(gone.len());
        }
        self.bytes += leaf.len();
        self.budget.commit_anyway(leaf.len());
        let middle = self.copies.len() / 2;
        self.copies.insert(middle, (handle, leaf));
    }

    /// The block is no more, or holds something else.
    pub(super) fn remove(&mut self, handle: u32) {
        if let Some(index) = self.copies.iter().position(|(of, _)| *of == handle) {
            let (_, gone) = self.copies.remove(index);
            self.forget(gone.len());
        }
    }

    /// Forgets all of them; true if there were any.
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

impl Drop for Copies {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use todana_core::{MemoryLimit, WhenFull};

    #[test]
    fn a_leaf_that_two_readers_have_opened_at_once_is_forgotten_whole() {
        let budget = Arc::new(Budget::new(MemoryLimit { bytes: None, when_full: WhenFull::Evict }));
        let mut copies = Copies::new(1000, Arc::clone(&budget));
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
