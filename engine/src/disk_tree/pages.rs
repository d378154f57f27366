//! Checks the pages of an LMDB file, reading them without a memory mapping. LMDB trusts these
//! pages, so damage in them could end the process (docs/format/disk-tree.md, section 4).
//!
//! ```text
//! page  = number (8) | 2 | flags (2) | lower (2) | upper (2) | offsets of nodes (2 each) ... | nodes
//!         of an overflow page: number (8) | 2 | flags (2) | how many pages (4) | bytes
//! meta  = page header (16) | magic (4) | version (4) | 8 | map size (8) | free tree (48)
//!         | main tree (48) | last page (8) | transaction (8)
//! tree  = page size, in the free tree (4) | flags (2) | depth (2) | 3 x pages (8) | entries (8) | root (8)
//! node  = low half (2) | high half (2) | flags (2) | key length (2) | key | data
//! ```

use crate::disk::File;
use std::cmp::Ordering;
use std::io;
use todana_core::{Error, ErrorKind, Result};

const MAGIC: u32 = 0xBEEF_C0DE;
const VERSION: u32 = 1;
/// The highest version number that is accepted as one. A higher number is damage.
const VERSIONS_MAX: u32 = 99;
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
const OVERFLOW: u16 = 4;
const META: u16 = 8;
const HEADER_LEN: usize = 16;
const META_LEN: usize = 152;
const TREE_LEN: usize = 48;
/// The flags of the tree of free pages, whose keys are numbers.
const FREE_FLAGS: u16 = 8;
/// The flag of a node whose data is the number of an overflow page.
const BIG: u16 = 1;
/// The flag of a node whose data is a tree.
const SUBTREE: u16 = 2;
/// The number that stands for the root of a tree without pages.
const NO_PAGE: u64 = u64::MAX;
const DEPTH_MAX: u16 = 32;
const KEY_LEN_MAX: usize = 511;

/// The contents of the newer meta page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MetaPage {
    page_size: u64,
    last_page: u64,
    transaction: u64,
    free: PageTree,
    main: PageTree,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PageTree {
    /// The flags of the tree: the order of its keys, and whether keys may occur twice. The value is
    /// 0 in our trees.
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
    Error::new(ErrorKind::Unavailable, format!("cannot read it: {error}"))
}

impl PageTree {
    fn new(bytes: &[u8], at: usize) -> Option<PageTree> {
        Some(PageTree {
            flags: u16_at(bytes, at + 4)?,
            depth: u16_at(bytes, at + 6)?,
            root: u64_at(bytes, at + 40)?,
        })
    }
}

impl MetaPage {
    /// Reads the newer meta page of a file. Returns `None` if the file has no bytes. Both meta
    /// pages must be intact.
    pub(super) fn read(file: &dyn File) -> Result<Option<MetaPage>> {
        let file_bytes = file.len().map_err(unreadable)?;
        if file_bytes == 0 {
            return Ok(None);
        }
        let older = MetaPage::read_at(file, 0)?;
        let newer = MetaPage::read_at(file, older.page_size)?;
        if older.page_size != newer.page_size {
            return Err(corrupt("the meta pages name different page sizes"));
        }
        let meta = if newer.transaction > older.transaction { newer } else { older };
        if file_bytes < 2 * meta.page_size {
            return Err(corrupt(format!("the file ends within its meta pages, at {file_bytes} bytes")));
        }
        for tree in [meta.free, meta.main] {
            if tree.root != NO_PAGE && !(2..=meta.last_page).contains(&tree.root) {
                return Err(corrupt(format!(
                    "the meta page names page {} as a root, but the last page is {}",
                    tree.root, meta.last_page
                )));
            }
        }
        if meta.last_page >= u64::MAX / (64 << 10) {
            return Err(corrupt(format!("the meta page names an impossible last page, {}", meta.last_page)));
        }
        Ok(Some(meta))
    }

    fn read_at(file: &dyn File, offset: u64) -> Result<MetaPage> {
        let mut bytes = [0; META_LEN];
        let len = file.read_at(offset, &mut bytes).map_err(unreadable)?;
        let wrong = |what: &str| corrupt(format!("the meta page at offset {offset} {what}"));
        if len < META_LEN {
            return Err(wrong("is cut short"));
        }
        let number = |at| u32_at(&bytes, at).expect("within the page");
        if u16_at(&bytes, 10) != Some(META) || number(16) != MAGIC {
            return Err(wrong("is not a meta page of LMDB"));
        }
        // LMDB has never had such a version number, and will not have one soon.
        if number(20) > VERSIONS_MAX {
            return Err(wrong("is damaged: its version is impossible"));
        }
        if number(20) != VERSION {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("version {} of LMDB's format; this program reads version {VERSION}", number(20)),
            ));
        }
        let page_size = u64::from(number(40));
        if !page_size.is_power_of_two() || !(256..=64 << 10).contains(&page_size) {
            return Err(wrong("has an impossible page size"));
        }
        let tree = |at| PageTree::new(&bytes, at).expect("within the page");
        let last_page = u64_at(&bytes, 136).expect("within the page");
        let transaction = u64_at(&bytes, 144).expect("within the page");
        Ok(MetaPage { page_size, last_page, transaction, free: tree(40), main: tree(88) })
    }

    /// Returns the length that the file must have so that it contains every page that may be read.
    pub(super) fn file_bytes(&self) -> u64 {
        (self.last_page + 1) * self.page_size
    }
}

/// States whether the order of the keys of records is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyOrderCheck {
    Done,
    /// The order is not checked. LMDB then finds wrong records in a search, but can read all
    /// records one after another.
    Skipped,
}

/// Checks every page of the trees. The file must contain the page. The page must be of the expected
/// kind. Its keys must ascend and lie between the keys of the page above. Its nodes must fill it.
/// It must either occur in exactly one place or be free, but not both. Memory: one bit per page of
/// the file, and one page per level of a tree.
pub(super) fn check(file: &dyn File, meta: &MetaPage, order: KeyOrderCheck) -> Result<()> {
    let pages = file.len().map_err(unreadable)? / meta.page_size;
    let seen =
        vec![0; usize::try_from(pages / 64 + 1).map_err(|_| corrupt("the file is larger than memory"))?];
    let mut walk =
        PageWalk { file, page_size: meta.page_size as usize, pages, last_page: meta.last_page, seen, order };
    // Used pages are checked first, so that a page that is both used and free is reported as a
    // damaged free list.
    walk.tree(meta.main, TreeUse::Databases)?;
    if meta.free.flags != FREE_FLAGS {
        return Err(corrupt("the tree of free pages has the wrong kind"));
    }
    walk.tree(meta.free, TreeUse::Free)
}

/// The purpose of a tree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TreeUse {
    /// The free pages, listed by transaction. The keys are numbers in native byte order.
    Free,
    /// The trees of databases, by name.
    Databases,
    Records,
}

impl TreeUse {
    fn compare(self, one: &[u8], other: &[u8]) -> Ordering {
        match self {
            TreeUse::Free => u64_at(one, 0).cmp(&u64_at(other, 0)),
            TreeUse::Databases | TreeUse::Records => one.cmp(other),
        }
    }
}

/// The range of keys of a page, from the first key up to but not including the second.
type KeyRange<'k> = (Option<&'k [u8]>, Option<&'k [u8]>);

struct PageWalk<'f> {
    file: &'f dyn File,
    page_size: usize,
    /// The number of complete pages in the file.
    pages: u64,
    last_page: u64,
    /// The pages that were seen, one bit for each.
    seen: Vec<u64>,
    order: KeyOrderCheck,
}

impl PageWalk<'_> {
    fn tree(&mut self, tree: PageTree, what: TreeUse) -> Result<()> {
        if what != TreeUse::Free && tree.flags != 0 {
            return Err(corrupt(format!("the tree at page {} has the wrong kind", tree.root)));
        }
        if tree.root == NO_PAGE {
            return Ok(());
        }
        if tree.depth == 0 || tree.depth > DEPTH_MAX {
            return Err(corrupt(format!("the tree at page {} is {} levels deep", tree.root, tree.depth)));
        }
        self.page(tree.root, tree.depth, what, (None, None))
    }

    /// Notes that a page was seen. Fails if the page has been seen before. Pages beyond the end of
    /// the file are not noted.
    fn note(&mut self, number: u64) -> Result<()> {
        if number < 2 || number > self.last_page {
            return Err(corrupt(format!(
                "page {number} is referenced, but there are only {} pages",
                self.last_page + 1
            )));
        }
        if number < self.pages {
            let (word, bit) = (&mut self.seen[(number / 64) as usize], 1 << (number % 64));
            if *word & bit != 0 {
                return Err(corrupt(format!("page {number} is referenced more than once")));
            }
            *word |= bit;
        }
        Ok(())
    }

    /// Notes that `count` pages from `number` on are used. Fails if the file does not contain all
    /// of them, or if one of them was seen before.
    fn claim(&mut self, number: u64, count: u64) -> Result<()> {
        match number.checked_add(count) {
            Some(end) if end <= self.pages => (number..end).try_for_each(|number| self.note(number)),
            _ => Err(corrupt(format!("the file ends at page {}, but page {number} is in use", self.pages))),
        }
    }

    fn read(&self, number: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let read = self.file.read_at(number * self.page_size as u64, &mut bytes).map_err(unreadable)?;
        if read < len || u64_at(&bytes, 0) != Some(number) {
            return Err(corrupt(format!("page {number} has the number of another page")));
        }
        Ok(bytes)
    }

    fn page(&mut self, number: u64, level: u16, what: TreeUse, range: KeyRange<'_>) -> Result<()> {
        self.claim(number, 1)?;
        let page = self.read(number, self.page_size)?;
        let broken = || corrupt(format!("page {number} is damaged"));
        let is_leaf = level == 1;
        if u16_at(&page, 10) != Some(if is_leaf { LEAF } else { BRANCH }) {
            return Err(corrupt(format!("page {number} does not have the kind that the tree requires")));
        }
        let nodes = nodes(&page, is_leaf).ok_or_else(broken)?;
        // LMDB relies on this minimum.
        if nodes.len() < if is_leaf || what == TreeUse::Free { 1 } else { 2 } {
            return Err(broken());
        }
        let is_ordered = what != TreeUse::Records || self.order == KeyOrderCheck::Done;
        let mut last = range.0;
        for (index, node) in nodes.iter().enumerate() {
            // The first key of a branch is not used; its child holds all keys before the second
            // key.
            if !is_leaf && index == 0 {
                continue;
            }
            if node.key.is_empty() || (what == TreeUse::Free && node.key.len() != 8) {
                return Err(broken());
            }
            // The first key of a leaf may equal the key in the page above. All other keys must be
            // greater.
            let least = if is_leaf && index == 0 { Ordering::Equal } else { Ordering::Less };
            let ascends = last.is_none_or(|last| what.compare(last, node.key) <= least);
            let is_in_order = ascends && range.1.is_none_or(|end| what.compare(node.key, end).is_lt());
            if is_ordered && !is_in_order {
                return Err(corrupt(format!("the keys of page {number} are not in order")));
            }
            last = Some(node.key);
        }
        for (index, node) in nodes.iter().enumerate() {
            match is_leaf {
                true => self.leaf_node(node, what).map_err(|error| error.unwrap_or_else(broken))?,
                false => {
                    let start = if index == 0 { range.0 } else { Some(node.key) };
                    let end = nodes.get(index + 1).map_or(range.1, |next| Some(next.key));
                    self.page(node.child(), level - 1, what, (start, end))?;
                }
            }
        }
        Ok(())
    }

    /// Checks the page or the tree to which a node of a leaf points. Returns `Err(None)` if the
    /// node itself is invalid.
    fn leaf_node(&mut self, node: &PageNode<'_>, what: TreeUse) -> std::result::Result<(), Option<Error>> {
        let len = node.len();
        if node.flags & !(BIG | SUBTREE) != 0 || (node.flags & SUBTREE != 0) != (what == TreeUse::Databases) {
            return Err(None);
        }
        let first = if node.is_big() { Some(u64_at(node.data, 0).ok_or(None)?) } else { None };
        if let Some(first) = first {
            self.overflow(first, len)?;
        }
        match (what, first) {
            (TreeUse::Records, _) => {}
            (TreeUse::Databases, _) => {
                let tree = (first.is_none() && len == TREE_LEN)
                    .then(|| PageTree::new(node.data, 0))
                    .flatten()
                    .ok_or(None)?;
                self.tree(tree, TreeUse::Records)?;
            }
            (TreeUse::Free, None) => self.free(node.data)?,
            (TreeUse::Free, Some(first)) => {
                let pages = self.read(first, HEADER_LEN + len)?;
                self.free(&pages[HEADER_LEN..])?;
            }
        }
        Ok(())
    }

    /// Checks a long value, which has overflow pages of its own. The first of these pages contains
    /// their number.
    fn overflow(&mut self, number: u64, len: usize) -> Result<()> {
        let count = ((HEADER_LEN - 1 + len) / self.page_size + 1) as u64;
        self.claim(number, count)?;
        let header = self.read(number, HEADER_LEN)?;
        let is_so =
            u16_at(&header, 10) == Some(OVERFLOW) && u32_at(&header, 12).map(u64::from) == Some(count);
        if is_so { Ok(()) } else { Err(corrupt(format!("page {number} does not begin a long value"))) }
    }

    /// Checks a list of free pages. The list is a count, the page numbers, and possibly unused
    /// space.
    fn free(&mut self, list: &[u8]) -> Result<()> {
        let count = u64_at(list, 0).and_then(|count| usize::try_from(count).ok());
        let pages = count.and_then(|count| list.get(8..count.checked_mul(8)?.checked_add(8)?));
        let pages = pages.ok_or_else(|| corrupt("a list of free pages is damaged"))?;
        let mut last = u64::MAX;
        for at in (0..pages.len()).step_by(8) {
            let number = u64_at(pages, at).expect("whole numbers");
            if number >= last {
                return Err(corrupt("a list of free pages is not in order"));
            }
            self.note(number)?;
            last = number;
        }
        Ok(())
    }
}

struct PageNode<'p> {
    /// In a leaf, the length of the data. In a branch, a part of a page number, of which the flags
    /// are another part.
    low: u32,
    flags: u16,
    key: &'p [u8],
    /// The part of the node's data that is in the page.
    data: &'p [u8],
}

impl PageNode<'_> {
    fn len(&self) -> usize {
        self.low as usize
    }

    fn is_big(&self) -> bool {
        self.flags & BIG != 0
    }

    fn child(&self) -> u64 {
        u64::from(self.low) | u64::from(self.flags) << 32
    }
}

const NODE_HEADER_LEN: usize = 8;

/// Returns the nodes of a page in order. Returns `None` unless the nodes lie within the page and
/// fill it from its upper boundary on, as LMDB writes them.
fn nodes(page: &[u8], is_leaf: bool) -> Option<Vec<PageNode<'_>>> {
    let border = |at| u16_at(page, at).map(usize::from);
    // A boundary of 65,536 does not fit into two bytes and is stored as 0.
    let (lower, last_free) = (border(12)?, border(14)?.wrapping_sub(1) & 0xffff);
    if lower < HEADER_LEN || lower > last_free + 1 || last_free >= page.len() || !lower.is_multiple_of(2) {
        return None;
    }
    let mut filled = 0;
    let mut nodes = Vec::with_capacity((lower - HEADER_LEN) / 2);
    for offset in (HEADER_LEN..lower).step_by(2) {
        let at = border(offset)?;
        let (low, high, flags) = (u16_at(page, at)?, u16_at(page, at + 2)?, u16_at(page, at + 4)?);
        let low = u32::from(low) | u32::from(high) << 16;
        let data_at = at + NODE_HEADER_LEN + border(at + 6)?;
        if at <= last_free || !at.is_multiple_of(2) || data_at - at > NODE_HEADER_LEN + KEY_LEN_MAX {
            return None;
        }
        let held = match is_leaf {
            false => 0,
            true if flags & BIG != 0 => 8,
            true => low as usize,
        };
        let key = page.get(at + NODE_HEADER_LEN..data_at)?;
        let data = page.get(data_at..data_at.checked_add(held)?)?;
        filled += (data_at + held - at).next_multiple_of(2);
        nodes.push(PageNode { low, flags, key, data });
    }
    (filled == page.len() - last_free - 1).then_some(nodes)
}
