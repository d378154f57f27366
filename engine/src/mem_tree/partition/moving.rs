//! Moves a segment to another partition.

use super::super::closed;
use super::super::leaf::{Leaf, LeafEntryBody};
use super::super::segment::LeafSegment;
use super::{Partition, inline_record};
use crate::arena::{BlockHandle, BlockKind, MemoryNeed};
use crate::record::RecordReference;

impl Partition {
    /// Moves the leaves of a segment to the arena of another partition. The segment must have been
    /// taken out of this partition. Returns false if memory is short; then nothing has changed.
    pub(in crate::mem_tree) fn move_segment(
        &mut self,
        segment: &mut LeafSegment,
        other: &mut Partition,
    ) -> bool {
        // All blocks are allocated first, so that nothing must be undone halfway.
        let mut images = Vec::new();
        let mut new: Vec<(BlockHandle, usize, BlockKind)> = Vec::new();
        let mut is_room = true;
        for &handle in segment.leaves.iter().filter(|handle| !handle.is_none()) {
            let len = self.block_len(handle);
            let image = self.arena.bytes(handle)[..len].to_vec();
            let mut get = |len: usize, kind: BlockKind| match other.arena.alloc(len, kind, MemoryNeed::Upkeep)
            {
                Ok(handle) => new.push((handle, len, kind)),
                Err(_) => is_room = false,
            };
            get(image.len(), BlockKind::Bucket);
            // Closed leaves have no stubs.
            let entries = (!self.is_closed(handle)).then(|| self.leaf(handle).entries());
            for entry in entries.into_iter().flatten() {
                if let LeafEntryBody::Stub { reference: RecordReference::Block(block), .. } = entry.body {
                    get(inline_record(self.arena.bytes(BlockHandle(block))).value.end, BlockKind::Record);
                }
            }
            images.push(image);
            if !is_room {
                for (handle, len, kind) in new {
                    other.arena.free(handle, len, kind);
                }
                return false;
            }
        }
        let mut new = new.into_iter();
        let mut images = images.into_iter();
        for handle in segment.leaves.iter_mut().filter(|handle| !handle.is_none()) {
            let mut image = images.next().expect("one was made for each");
            let (home, _, _) = new.next().expect("one was made for each");
            self.leaf_bytes -= image.len();
            other.leaf_bytes += image.len();
            // Decoding requires some readable bytes after the leaf.
            let len = image.len();
            image.resize(len + 8, 0);
            let is_closed = self.is_closed(*handle);
            let opened = if is_closed { closed::open(&image, &self.codecs) } else { Vec::new() };
            let leaf = Leaf::new(if is_closed { &opened } else { &image });
            let mut mended = Vec::new();
            for entry in leaf.entries() {
                let plain = self.plain_size(leaf, &entry);
                self.classes.remove(plain);
                other.classes.add(plain);
                self.records -= 1;
                other.records += 1;
                let LeafEntryBody::Stub { reference, .. } = entry.body else { continue };
                let reference = match reference {
                    RecordReference::Huge(index) => other.huge.insert(self.huge.take_out(index)),
                    RecordReference::Block(block) => {
                        let bytes = self.arena.bytes(BlockHandle(block));
                        let len = inline_record(bytes).value.end;
                        let (to, _, _) = new.next().expect("one was made for each");
                        other.arena.write(to, 0, &bytes[..len]);
                        other.block_bytes += len;
                        self.free_referenced(reference);
                        to.0
                    }
                };
                mended.push((entry.at + entry.len - 4, reference));
            }
            for (at, reference) in mended {
                image[at..at + 4].copy_from_slice(&reference.to_le_bytes());
            }
            other.arena.write(home, 0, &image[..len]);
            self.uncount_closed(*handle);
            self.arena.free(*handle, len, BlockKind::Bucket);
            other.count_closed(home);
            *handle = home;
        }
        true
    }
}
