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
use parking_lot::{Condvar, Mutex};
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
    /// Made again where it has been given back.
    compressor: Option<zstd::bulk::Compressor<'static>>,
    decompressor: DCtx<'static>,
    /// What the budget knows of it.
    bytes: usize,
}

impl Codec {
    /// `None` where there is no memory for it.
    fn new() -> Option<Codec> {
        let mut decompressor = DCtx::try_create()?;
        decompressor.set_parameter(DParameter::Format(FrameFormat::Magicless)).ok()?;
        Some(Codec { compressor: None, decompressor, bytes: 0 })
    }

    fn compress(&mut self, image: &[u8]) -> Option<Vec<u8>> {
        if self.compressor.is_none() {
            let mut compressor = zstd::bulk::Compressor::new(LEVEL).ok()?;
            // The lengths are known without it, and nobody reads these but us.
            compressor.include_contentsize(false).ok()?;
            compressor.include_checksum(false).ok()?;
            compressor.include_magicbytes(false).ok()?;
            self.compressor = Some(compressor);
        }
        self.compressor.as_mut()?.compress(image).ok()
    }

    /// What they hold, which grows when they are first used.
    fn held(&mut self) -> usize {
        let compressor = self.compressor.as_mut().map_or(0, |compressor| compressor.context_mut().sizeof());
        compressor + self.decompressor.sizeof()
    }
}

/// The contexts of a database, some hundred KiB each: as many as there have been threads at work at once. Once there is one, there is
/// always one that can decompress: what is compressed must not become unreadable where there is no memory for another.
pub(super) struct Codecs {
    all: Mutex<All>,
    came_back: Condvar,
    budget: Arc<Budget>,
    make: fn() -> Option<Codec>,
}

#[derive(Default)]
struct All {
    idle: Vec<Codec>,
    /// How many there are, those at work included.
    count: usize,
}

impl Codecs {
    pub(super) fn new(budget: Arc<Budget>) -> Codecs {
        Codecs { all: Mutex::default(), came_back: Condvar::new(), budget, make: Codec::new }
    }

    /// Works with one of them. Where there is no memory for another one this waits for one that is at work; `None` if there is none, which
    /// is so only until something has been compressed.
    fn with<T>(&self, work: impl FnOnce(&mut Codec) -> Option<T>) -> Option<T> {
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
        self.came_back.notify_one();
        outcome
    }

    fn take(&self) -> Option<Codec> {
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
            self.came_back.wait(&mut all);
        }
        None
    }

    /// Gives back the memory of all but one, and of that what compresses; those who need one make it again. The budget knows of the one
    /// again when it is used: a tree that is empty holds nothing.
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

impl Drop for Codecs {
    fn drop(&mut self) {
        for codec in self.all.get_mut().idle.drain(..) {
            self.budget.release(codec.bytes);
        }
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
    use super::super::leaf::{Item, NewLeaf, entry, put_record};
    use super::*;
    use todana_core::{Attributes, MemoryLimit, WhenFull};

    /// A leaf as it stands in the arena.
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
        let items: Vec<Item<'_>> =
            records.iter().map(|bytes| Item { bytes, entry: entry(bytes, 0), prefix: &[] }).collect();
        let mut new = NewLeaf::default();
        new.build(&items);
        new.image.resize(new.image.len() + 8, 0);
        new.image
    }

    #[test]
    fn what_is_compressed_is_read_also_where_there_is_no_memory_for_another_context() {
        let budget = Arc::new(Budget::new(MemoryLimit { bytes: None, when_full: WhenFull::Evict }));
        let mut codecs = Codecs::new(Arc::clone(&budget));
        let image = image();
        let closed = close(Leaf::new(&image), &codecs);
        assert_eq!(closed[1], ZSTD);
        codecs.make = || None;
        codecs.forget();
        let open = || open(&closed, &codecs);
        assert!(open() == image);
        // Who comes while the last one is at work waits for it.
        let (told, tells) = std::sync::mpsc::channel();
        let both_are_there = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let (both_are_there, open) = (&both_are_there, &open);
            scope.spawn(move || {
                both_are_there.wait();
                told.send(open()).unwrap();
            });
            codecs.with(|_| {
                both_are_there.wait();
                Some(())
            });
            assert!(tells.recv().unwrap() == image);
        });
        // Compressing needs more.
        assert_eq!(close(Leaf::new(&image), &codecs)[1], ZSTD);
    }

    #[test]
    fn contexts_give_back_all_that_the_budget_knows_of() {
        let budget = Arc::new(Budget::new(MemoryLimit { bytes: None, when_full: WhenFull::Evict }));
        let before = budget.committed();
        let codecs = Codecs::new(Arc::clone(&budget));
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
