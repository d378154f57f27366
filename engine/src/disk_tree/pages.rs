//! The pages of an LMDB file, read without mapping them: what LMDB itself takes on trust (docs/format/disk-tree.md, section 4).
//!
//! ```text
//! page  = number (8) | 2 | flags (2) | lower (2) | upper (2) | offsets of nodes (2 each) ... | nodes
//!         of an overflow page: number (8) | 2 | flags (2) | how many pages (4) | bytes
//! meta  = page header (16) | magic (4) | version (4) | 8 | map size (8) | free tree (48) | main tree (48) | last page (8)
//!         | transaction (8)
//! tree  = page size, in the free tree (4) | flags (2) | depth (2) | 3 x pages (8) | entries (8) | root (8)
//! node  = low half (2) | high half (2) | flags (2) | key length (2) | key | data
//! ```

use crate::disk::File;
use std::io;
use todana_core::{Error, ErrorKind, Result};

const MAGIC: u32 = 0xBEEF_C0DE;
const VERSION: u32 = 1;
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
const OVERFLOW: u16 = 4;
const META: u16 = 8;
const HEADER_LEN: usize = 16;
const META_LEN: usize = 152;
const TREE_LEN: usize = 48;
/// Of a node: its data is the number of an overflow page.
const BIG: u16 = 1;
/// Of a node: its data is a tree.
const SUBTREE: u16 = 2;
/// The root of a tree without pages.
const NO_PAGE: u64 = u64::MAX;
const DEPTH_MAX: u16 = 32;

/// What the newer meta page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    page_size: u64,
    last_page: u64,
    transaction: u64,
    free: Tree,
    main: Tree,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tree {
    /// How its keys are compared, and whether they can come twice; 0 in the trees of ours.
    flags: u16,
    depth: u16,
    root: u64,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, message)
}

fn unreadable(error: io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("cannot be read: {error}"))
}

impl Tree {
    fn new(bytes: &[u8], at: usize) -> Option<Tree> {
        Some(Tree {
            flags: u16_at(bytes, at + 4)?,
            depth: u16_at(bytes, at + 6)?,
            root: u64_at(bytes, at + 40)?,
        })
    }
}

impl Meta {
    /// The newer meta page of a file, both of which must be whole. `None` for a file of no bytes.
    pub(super) fn read(file: &dyn File) -> Result<Option<Meta>> {
        let file_bytes = file.len().map_err(unreadable)?;
        if file_bytes == 0 {
            return Ok(None);
        }
        let older = Meta::read_at(file, 0)?;
        let newer = Meta::read_at(file, older.page_size)?;
        if older.page_size != newer.page_size {
            return Err(corrupt("its meta pages differ in the size of a page"));
        }
        let meta = if newer.transaction > older.transaction { newer } else { older };
        if file_bytes < 2 * meta.page_size {
            return Err(corrupt(format!("it ends within its meta pages, at {file_bytes} bytes")));
        }
        for tree in [meta.free, meta.main] {
            if tree.root != NO_PAGE && !(2..=meta.last_page).contains(&tree.root) {
                return Err(corrupt(format!("its meta page names page {} of {}", tree.root, meta.last_page)));
            }
        }
        if meta.last_page >= u64::MAX / (64 << 10) {
            return Err(corrupt(format!("its meta page says that it has {} pages", meta.last_page)));
        }
        Ok(Some(meta))
    }

    fn read_at(file: &dyn File, offset: u64) -> Result<Meta> {
        let mut bytes = [0; META_LEN];
        let len = file.read_at(offset, &mut bytes).map_err(unreadable)?;
        let wrong = |what: &str| corrupt(format!("the meta page at offset {offset} {what}"));
        if len < META_LEN {
            return Err(wrong("is cut short"));
        }
        let number = |at| u32_at(&bytes, at).expect("within the page");
        if u16_at(&bytes, 10) != Some(META) || number(16) != MAGIC {
            return Err(wrong("is none of LMDB's"));
        }
        if number(20) != VERSION {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("it is of version {} of LMDB's format, and this reads {VERSION}", number(20)),
            ));
        }
        let page_size = u64::from(number(40));
        if !page_size.is_power_of_two() || !(256..=64 << 10).contains(&page_size) {
            return Err(wrong("has an impossible page size"));
        }
        let tree = |at| Tree::new(&bytes, at).expect("within the page");
        let last_page = u64_at(&bytes, 136).expect("within the page");
        let transaction = u64_at(&bytes, 144).expect("within the page");
        Ok(Meta { page_size, last_page, transaction, free: tree(40), main: tree(88) })
    }

    /// How long the file has to be, so that every page that may be read is in it.
    pub(super) fn file_bytes(&self) -> u64 {
        (self.last_page + 1) * self.page_size
    }
}

/// Looks at every page that the trees lead to: whether the file has it, it is what the tree says, and its keys ascend. Returns how many
/// pages that are. Memory: one page for each level of the tree.
pub(super) fn check(file: &dyn File, meta: &Meta) -> Result<u64> {
    let pages = file.len().map_err(unreadable)? / meta.page_size;
    let mut walk =
        Walk { file, page_size: meta.page_size as usize, pages, last_page: meta.last_page, seen: 0 };
    // Entries of the free tree are numbers in the machine's order, so by their bytes they do not ascend.
    walk.tree(meta.free, false, 0)?;
    walk.tree(meta.main, true, 0)?;
    Ok(walk.seen + 2)
}

struct Walk<'f> {
    file: &'f dyn File,
    page_size: usize,
    /// Whole ones in the file.
    pages: u64,
    last_page: u64,
    seen: u64,
}

impl Walk<'_> {
    fn tree(&mut self, tree: Tree, ordered: bool, nested: u16) -> Result<()> {
        if ordered && tree.flags != 0 {
            return Err(corrupt(format!("the tree at page {} is of another kind", tree.root)));
        }
        if tree.root == NO_PAGE {
            return Ok(());
        }
        if tree.depth == 0 || tree.depth > DEPTH_MAX || nested > 1 {
            return Err(corrupt(format!("the tree at page {} is {} levels deep", tree.root, tree.depth)));
        }
        self.page(tree.root, tree.depth, ordered, nested)
    }

    /// `number` must be in the file; so many pages from it on are counted as seen, and no more than there are.
    fn claim(&mut self, number: u64, count: u64) -> Result<()> {
        let end = number.checked_add(count);
        if number < 2 || end.is_none_or(|end| end > self.last_page + 1) {
            return Err(corrupt(format!("page {number} is named, and there are {}", self.last_page + 1)));
        }
        if end.is_none_or(|end| end > self.pages) {
            return Err(corrupt(format!("it ends at page {}, and page {number} is in use", self.pages)));
        }
        self.seen += count;
        // Each page is in one place only, so whoever meets more of them than there are goes round in circles.
        if self.seen > self.last_page + 1 {
            return Err(corrupt(format!("page {number} is named more than once")));
        }
        Ok(())
    }

    fn read(&self, number: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let read = self.file.read_at(number * self.page_size as u64, &mut bytes).map_err(unreadable)?;
        if read < len || u64_at(&bytes, 0) != Some(number) {
            return Err(corrupt(format!("page {number} is not where it should be")));
        }
        Ok(bytes)
    }

    fn page(&mut self, number: u64, level: u16, ordered: bool, nested: u16) -> Result<()> {
        self.claim(number, 1)?;
        let page = self.read(number, self.page_size)?;
        let broken = || corrupt(format!("page {number} is damaged"));
        let flags = u16_at(&page, 10).ok_or_else(broken)?;
        if flags & (BRANCH | LEAF | OVERFLOW | META) != if level > 1 { BRANCH } else { LEAF } {
            return Err(corrupt(format!("page {number} is of another kind than the tree says")));
        }
        let lower = usize::from(u16_at(&page, 12).ok_or_else(broken)?);
        if lower < HEADER_LEN || lower > self.page_size || !lower.is_multiple_of(2) {
            return Err(broken());
        }
        let mut last: Option<(usize, usize)> = None;
        for (index, offset) in (HEADER_LEN..lower).step_by(2).enumerate() {
            let at = usize::from(u16_at(&page, offset).ok_or_else(broken)?);
            let half = |at| u16_at(&page, at).map(u64::from).ok_or_else(broken);
            let (low, high, flags, key_len) =
                (half(at)?, half(at + 2)?, half(at + 4)?, half(at + 6)? as usize);
            let (key_at, data_at) = (at + 8, at + 8 + key_len);
            if at < lower || data_at > self.page_size {
                return Err(broken());
            }
            // The first key of a branch stands for everything before the second.
            if ordered && !(level > 1 && index == 0) {
                if last.is_some_and(|(from, to)| page[from..to] >= page[key_at..data_at]) {
                    return Err(corrupt(format!("the keys of page {number} are not in order")));
                }
                last = Some((key_at, data_at));
            }
            if level > 1 {
                self.page(low | high << 16 | flags << 32, level - 1, ordered, nested)?;
                continue;
            }
            let len = (low | high << 16) as usize;
            let flags = flags as u16;
            // Databases are entries of the main tree, and of no other.
            if flags & !(BIG | SUBTREE) != 0 || (flags & SUBTREE != 0) != (ordered && nested == 0) {
                return Err(broken());
            }
            let held = if flags & BIG != 0 { 8 } else { len };
            let data = page.get(data_at..data_at.saturating_add(held)).ok_or_else(broken)?;
            if flags & BIG != 0 {
                self.overflow(u64_at(data, 0).ok_or_else(broken)?, len)?;
            } else if flags & SUBTREE != 0 {
                let tree = (len == TREE_LEN).then(|| Tree::new(data, 0)).flatten().ok_or_else(broken)?;
                self.tree(tree, ordered, nested + 1)?;
            }
        }
        Ok(())
    }

    fn overflow(&mut self, number: u64, len: usize) -> Result<()> {
        let count = ((HEADER_LEN - 1 + len) / self.page_size + 1) as u64;
        self.claim(number, count)?;
        let header = self.read(number, HEADER_LEN)?;
        let is_so = u16_at(&header, 10).is_some_and(|flags| flags & OVERFLOW != 0)
            && u32_at(&header, 12).map(u64::from) == Some(count);
        if is_so { Ok(()) } else { Err(corrupt(format!("page {number} does not begin a long value"))) }
    }
}
