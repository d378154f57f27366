//! Tables on disk with a damaged block of records: opened, verified and salvaged, and compared with
//! the rows and index searches that must remain.

use crate::folder;

use folder::copy;
use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana::disk::SystemDisk;
use todana::table::{ColumnIndex, ConditionOperator, IndexKind, Query, Table};
use todana::{
    DatabaseName, Db, Error, ErrorKind, RestoreOptions, Result, SalvageReport, SystemClock, verify,
};

const PAGE_LEN: usize = 4096;
const ROWS: u32 = 1200;

type Rows = BTreeMap<Vec<u8>, (String, String)>;

/// A block in the file of a table: an entry of LMDB.
#[derive(Clone, Debug)]
struct Block {
    fence: Vec<u8>,
    fence_at: usize,
    value_at: usize,
    value_len: usize,
}

impl Block {
    fn is_of(&self, kind: u8) -> bool {
        self.fence[0] == kind
    }
}

/// Returns the blocks of a table that was written by one checkpoint, in the order of their fences.
fn blocks(file: &[u8]) -> Vec<Block> {
    let number = |at: usize| usize::from(u16::from_le_bytes([file[at], file[at + 1]]));
    let mut blocks = Vec::new();
    for page in (2 * PAGE_LEN..file.len()).step_by(PAGE_LEN).filter(|page| number(page + 10) == 2) {
        for offset in (page + 16..page + number(page + 12)).step_by(2) {
            let node = page + number(offset);
            let (fence_at, fence_len) = (node + 8, number(node + 6));
            let fence = file[fence_at..fence_at + fence_len].to_vec();
            // The tables of LMDB and the state of the tree have keys of letters. The lists of free
            // pages have keys of 8 bytes. Long values are elsewhere.
            if fence[0] <= 2 && number(node + 4) == 0 && !(fence.len() == 8 && fence[2..] == [0; 6]) {
                let value_at = fence_at + fence_len;
                blocks.push(Block { fence, fence_at, value_at, value_len: number(node) });
            }
        }
    }
    blocks.sort_by(|one, other| one.fence.cmp(&other.fence));
    blocks
}

fn key(n: u32) -> Vec<u8> {
    format!("row{n:05}").into_bytes()
}

fn random_text(n: u32) -> String {
    format!("{:016x}", u64::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn put(table: &Table, rows: &mut Rows, n: u32, name: String, age: u32) {
    let age = age.to_string();
    table.put(&key(n), &[("name", &name), ("age", &age)]).unwrap();
    rows.insert(key(n), (name, age));
}

fn open(path: &Path) -> Result<Db> {
    Db::open(path.to_str().unwrap())
}

/// A table as a killed process leaves it: rows in its file, and later changes in its log.
struct KilledTable {
    folder: tempfile::TempDir,
    path: PathBuf,
    file: Vec<u8>,
    /// The rows in the file.
    stored: Rows,
    /// The later changes; `None` is a removal.
    later: BTreeMap<Vec<u8>, Option<(String, String)>>,
}

/// Creates the table. `changes` are the numbers of the rows that change later.
fn killed(changes: impl Iterator<Item = u32>) -> KilledTable {
    let folder = folder::folder();
    let (first, path) = (folder.path().join("first.table"), folder.path().join("x.table"));
    let db = open(&first).unwrap();
    let table = Table::new(&db).unwrap();
    table.set_index(b"name", Some(IndexKind::Lexical)).unwrap();
    table.set_index(b"age", Some(IndexKind::Decimal)).unwrap();
    let mut stored = Rows::new();
    for n in 0..ROWS {
        put(&table, &mut stored, n, random_text(n), n % 90);
    }
    drop((table, db));
    let file = fs::read(first.join("table/data.mdb")).unwrap();
    let db = open(&first).unwrap();
    let table = Table::new(&db).unwrap();
    let (mut changed, mut later) = (Rows::new(), BTreeMap::new());
    for n in changes {
        if n % 3 == 0 && table.remove(&key(n)).unwrap() {
            later.insert(key(n), None);
        } else {
            put(&table, &mut changed, n, random_text(n + ROWS), n % 90 + 1);
        }
    }
    later.extend(changed.into_iter().map(|(key, row)| (key, Some(row))));
    copy(&first, &path);
    drop((table, db));
    assert_eq!(fs::read(path.join("table/data.mdb")).unwrap(), file, "no checkpoint since");
    KilledTable { folder, path, file, stored, later }
}

impl KilledTable {
    fn damage(&self, places: &[usize]) {
        let mut file = self.file.clone();
        places.iter().for_each(|&at| file[at] ^= 0x44);
        fs::write(self.path.join("table/data.mdb"), &file).unwrap();
    }

    /// Returns the rows that remain if these blocks are lost.
    fn remaining(&self, blocks: &[Block], lost: &[usize]) -> Rows {
        let is_lost = |key: &[u8]| {
            let inner = [&[0], key].concat();
            let next = |at: usize| blocks.get(at + 1);
            lost.iter().any(|&at| blocks[at].fence <= inner && next(at).is_none_or(|next| inner < next.fence))
        };
        let mut rows = self.stored.clone();
        rows.retain(|key, _| !is_lost(key));
        for (key, row) in &self.later {
            match row {
                Some(row) => drop(rows.insert(key.clone(), row.clone())),
                None => drop(rows.remove(key)),
            }
        }
        rows
    }

    fn salvage(&self) -> (SalvageReport, Db) {
        let target = self.folder.path().join("saved.table");
        if target.exists() {
            fs::remove_dir_all(&target).unwrap();
        }
        let options = RestoreOptions { from: self.path.clone(), ..RestoreOptions::default() };
        let name = DatabaseName::parse(target.to_str().unwrap()).unwrap();
        let report =
            todana::salvage(Arc::new(SystemDisk), &options, &name, Arc::new(SystemClock), &mut |_| ());
        (report.unwrap(), open(&target).unwrap())
    }

    /// Returns the error with which a copy of the table is opened.
    fn open_copy(&self) -> Option<Error> {
        let copied = self.folder.path().join("copied.table");
        copy(&self.path, &copied);
        let error = open(&copied).err();
        fs::remove_dir_all(&copied).unwrap();
        error
    }

    fn verify(&self) -> String {
        verify(Arc::new(SystemDisk), &self.path, &mut |_| ()).unwrap().damages.join("\n")
    }
}

fn texts(report: &SalvageReport) -> String {
    let texts = report.damages.iter().map(|damage| format!("{}: {}", damage.finding.what, damage.outcome));
    texts.collect::<Vec<_>>().join("\n")
}

/// Returns the keys of the rows that a query finds, in their order.
fn found(table: &Table, query: &Query) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = table.search(query).unwrap().map(|found| found.unwrap().0).collect();
    keys.sort();
    keys
}

/// Checks that a table has exactly these rows, and that its searches find them.
fn assert_table(db: &Db, rows: &Rows, columns: &[(&str, IndexKind)], case: &str) {
    let mut keys = Vec::new();
    db.for_each(&mut |key, _| {
        keys.extend((!key.is_empty()).then(|| key.to_vec()));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(keys.iter().eq(rows.keys()), "{case}: {} of {} rows", keys.len(), rows.len());
    let table = Table::new(db).unwrap();
    for (key, (name, age)) in rows {
        let row = table.get(key).unwrap().unwrap();
        assert_eq!(row.get(b"name"), Some(name.as_bytes()), "{case}");
        assert_eq!(row.get(b"age"), Some(age.as_bytes()), "{case}");
    }
    let index =
        |&(column, kind): &(&str, IndexKind)| ColumnIndex { column: column.into(), kind, is_complete: true };
    assert_eq!(table.indexes(), columns.iter().map(index).collect::<Vec<_>>(), "{case}");
    for age in [0, 17, 90] {
        let query = Query::new().filter(b"age", ConditionOperator::NumberEquals, age.to_string().as_bytes());
        let with_age = rows.iter().filter(|(_, row)| row.1 == age.to_string()).map(|(key, _)| key);
        assert!(found(&table, &query).iter().eq(with_age), "{case}: age {age}");
    }
    for n in (0..2 * ROWS).step_by(97) {
        let name = random_text(n);
        let query = Query::new().filter(b"name", ConditionOperator::TextEquals, name.as_bytes());
        let with_name = rows.iter().filter(|(_, row)| row.0 == name).map(|(key, _)| key);
        assert!(found(&table, &query).iter().eq(with_name), "{case}: name {name}");
    }
}

const COLUMNS: [(&str, IndexKind); 2] = [("name", IndexKind::Lexical), ("age", IndexKind::Decimal)];

/// A table could not be salvaged if a damaged block held the definitions or states of indexes, or
/// if an entry of the log changed the block.
#[test]
fn any_damaged_block_is_salvaged() {
    let table = killed((0..ROWS).step_by(5).chain(ROWS..ROWS + 20));
    let blocks = blocks(&table.file);
    let rows = blocks.iter().filter(|block| block.is_of(0)).count();
    assert!(rows > 3 && blocks.len() > rows + 3, "{rows} of {}", blocks.len());
    assert_eq!(blocks[0].fence, [0]);
    table.damage(&[]);
    assert_table(&table.salvage().1, &table.remaining(&blocks, &[]), &COLUMNS, "intact");
    let kinds = [
        (0, "begins with the definitions of the indexes"),
        (rows / 2, "begins with the row \"row0"),
        (rows - 1, "begins with the row \"row0"),
        (rows + 1, "begins with entries of index 0"),
        (blocks.len() - 1, "begins with entries of index 1"),
    ];
    for (number, text) in kinds {
        let block = &blocks[number];
        let end = block.value_at + block.value_len;
        let fence_end = block.fence_at + block.fence.len() - 1;
        let of_value = [block.value_at, block.value_at + 4, block.value_at + 5, end - 200, end - 1];
        for at in of_value.into_iter().chain([block.fence_at, fence_end]) {
            let case = format!("block {number}, byte {} of {block:?}", at - block.fence_at);
            table.damage(&[at]);
            let seen = table.verify();
            assert!(seen.contains("is damaged, its checksum differs"), "{case}: {seen}");
            if at >= block.value_at {
                assert!(seen.contains(text), "{case}: {seen}");
            }
            match table.open_copy() {
                // Entries of an index are not read when the table is opened.
                None => assert_eq!(number, rows + 1, "{case}"),
                Some(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{case}");
                    assert!(error.to_string().contains("`todana salvage"), "{case}: {error}");
                }
            }
            let (report, saved) = table.salvage();
            let text = texts(&report);
            assert!(text.contains(&format!("in total: 1, with {} bytes", block.value_len)), "{case}: {text}");
            let is_rebuilt = text.contains("reconstructed from the states of the indexes");
            assert_eq!(is_rebuilt, number == 0, "{case}: {text}");
            assert_table(&saved, &table.remaining(&blocks, &[number]), &COLUMNS, &case);
        }
    }
}

#[test]
fn table_without_definitions_is_salvaged_without_indexes() {
    let table = killed(0..4);
    let blocks = blocks(&table.file);
    let last = blocks.len() - 1;
    table.damage(&[blocks[0].value_at + 9, blocks[last].value_at + 9]);
    let error = table.open_copy().unwrap().to_string();
    assert!(error.contains("`todana salvage"), "{error}");
    let (report, saved) = table.salvage();
    let text = texts(&report);
    assert!(text.contains("the definitions of the indexes, if there were any, are lost"), "{text}");
    assert!(text.contains("in total: 2, with "), "{text}");
    assert_table(&saved, &table.remaining(&blocks, &[0, last]), &[], "no definitions");
}

/// The definitions in the log are newer than those in the damaged block.
#[test]
fn definitions_in_the_log_are_salvaged() {
    let folder = folder::folder();
    let (first, path) = (folder.path().join("first.table"), folder.path().join("x.table"));
    let db = open(&first).unwrap();
    let (table, mut stored) = (Table::new(&db).unwrap(), Rows::new());
    (0..ROWS).for_each(|n| put(&table, &mut stored, n, random_text(n), n % 90));
    drop((table, db));
    let db = open(&first).unwrap();
    Table::new(&db).unwrap().set_index(b"age", Some(IndexKind::Decimal)).unwrap();
    copy(&first, &path);
    drop(db);
    let file = fs::read(path.join("table/data.mdb")).unwrap();
    let table = KilledTable { folder, path, file, stored, later: BTreeMap::new() };
    let blocks = blocks(&table.file);
    table.damage(&[blocks[0].value_at + 9]);
    let (report, saved) = table.salvage();
    assert!(!texts(&report).contains("definitions of the indexes, if"), "{}", texts(&report));
    Table::new(&saved).unwrap().finish_indexes();
    let columns = [("age", IndexKind::Decimal)];
    assert_table(&saved, &table.remaining(&blocks, &[0]), &columns, "definitions in the log");
}
