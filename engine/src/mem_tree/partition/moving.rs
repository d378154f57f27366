//! A segment's way from one partition to another.

use super::super::closed;
use super::super::leaf::{Body, Leaf};
use super::super::segment::Segment;
use super::{Partition, whole};
use crate::arena::{Handle, Kind, Need};
use crate::record::Elsewhere;

impl Partition {
    /// Copies what belongs to the leaves of a segment, which is listed nowhere, into the arena of another partition; false
    /// if the system does not have the memory, and nothing has been done then.
    pub(in crate::mem_tree) fn hand_over(&mut self, segment: &mut Segment, other: &mut Partition) -> bool {
        // Room for all of it first, so that nothing has to be undone halfway.
        let mut images = Vec::new();
        let mut new: Vec<(Handle, usize, Kind)> = Vec::new();
        let mut is_room = true;
        for &handle in segment.leaves.iter().filter(|handle| !handle.is_none()) {
            let len = self.block_len(handle);
            let image = self.arena.bytes(handle)[..len].to_vec();
            let mut get = |len: usize, kind: Kind| match other.arena.alloc(len, kind, Need::Upkeep) {
                Ok(handle) => new.push((handle, len, kind)),
                Err(_) => is_room = false,
            };
            get(image.len(), Kind::Bucket);
            // A closed leaf has no stubs.
            let entries = (!self.is_closed(handle)).then(|| self.leaf(handle).entries());
            for entry in entries.into_iter().flatten() {
                if let Body::Stub { elsewhere: Elsewhere::Block(block), .. } = entry.body {
                    get(whole(self.arena.bytes(Handle(block))).value.end, Kind::Record);
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
            // Entries are read with some bytes behind them.
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
                let Body::Stub { elsewhere, .. } = entry.body else { continue };
                let reference = match elsewhere {
                    Elsewhere::Huge(index) => other.huge.insert(self.huge.take_out(index)),
                    Elsewhere::Block(block) => {
                        let bytes = self.arena.bytes(Handle(block));
                        let len = whole(bytes).value.end;
                        let (to, _, _) = new.next().expect("one was made for each");
                        other.arena.write(to, 0, &bytes[..len]);
                        other.block_bytes += len;
                        self.free_elsewhere(elsewhere);
                        to.0
                    }
                };
                mended.push((entry.at + entry.len - 4, reference));
            }
            for (at, reference) in mended {
                image[at..at + 4].copy_from_slice(&reference.to_le_bytes());
            }
            other.arena.write(home, 0, &image[..len]);
            self.forget_closed(*handle);
            self.arena.free(*handle, len, Kind::Bucket);
            other.learn_closed(home);
            *handle = home;
        }
        true
    }
}
