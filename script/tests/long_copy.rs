//! Tests copies that take longer than the time limit of a script. A hot backup of 925 MB once
//! failed after five seconds, because the time of the copy counted.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use todana::{Database, DatabaseName, Db, Records, ScanDirection, Transaction};
use todana_core::{Operation, Record, Reply, Result, ScanPosition, Visitor};
use todana_script::{Interpreter, ProcedureOutcome, Program, ScriptDatabase, ScriptOptions};

/// The time limit of the script. Loading the script takes a small part of this time.
const TIME_MAX: Duration = Duration::from_secs(3);
const RECORDS: u32 = 5_000;

/// A database whose scan stalls for longer than the time limit, like on a slow disk, while other
/// clients write.
struct Stalling {
    db: Db,
    seen: AtomicU64,
}

impl Stalling {
    fn pass(&self) {
        if self.seen.fetch_add(1, Ordering::Relaxed) == u64::from(RECORDS / 2) {
            // The scan may hold a lock of the database, so this must not wait for other clients.
            std::thread::sleep(TIME_MAX + Duration::from_millis(50));
        }
    }
}

impl Records for Stalling {
    fn execute(&self, command: &Operation<'_>, reply: &mut dyn FnMut(Reply<'_>)) -> Result<()> {
        self.db.execute(command, reply)
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        self.db.visit(key, visitor)
    }

    fn is_ordered(&self) -> bool {
        self.db.is_ordered()
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.db.scan(from, &mut |key, record| {
            self.pass();
            see(key, record)
        })
    }

    fn walk(
        &self,
        heading: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.db.walk(heading, from, &mut |key, record| {
            self.pass();
            see(key, record)
        })
    }
}

impl ScriptDatabase for Stalling {
    fn database(&self) -> &Database {
        self.db.database()
    }

    fn name(&self) -> &DatabaseName {
        self.db.name()
    }

    fn try_begin(&self) -> Result<Option<Transaction<'static>>> {
        self.db.try_begin_owned()
    }

    fn clear(&self) -> Result<()> {
        self.db.clear()
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number:05}").into_bytes()
}

fn opened(folder: &tempfile::TempDir, name: &str) -> Db {
    Db::open(folder.path().join(name).to_str().unwrap()).unwrap()
}

fn filled(folder: &tempfile::TempDir, name: &str) -> Db {
    let db = opened(folder, name);
    let records: Vec<_> = (0..RECORDS).map(|number| (key(number), b"0".to_vec())).collect();
    let records: Vec<(&[u8], &[u8])> = records.iter().map(|(key, value)| (&key[..], &value[..])).collect();
    db.set_many(&records).unwrap();
    db
}

fn run(source: Arc<dyn ScriptDatabase>, folder: &tempfile::TempDir, text: &str) -> ProcedureOutcome {
    let text = format!("db = __kyototycoon__.db function go(input, output) {text} return 0 end");
    let program = Program::new("test.lua", text.as_bytes()).unwrap();
    let options = ScriptOptions {
        files: Some(folder.path().to_owned()),
        time_max: TIME_MAX,
        ..ScriptOptions::default()
    };
    Interpreter::new(&program, vec![source], 0, &options).unwrap().call(b"go", []).unwrap()
}

#[test]
fn copy_outlasts_the_time_of_its_script() {
    for suffix in ["hash", "tree"] {
        let folder = tempfile::tempdir().unwrap();
        let db = filled(&folder, &format!("own.{suffix}"));
        let stalling = Arc::new(Stalling { db: db.clone(), seen: AtomicU64::new(0) });
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Every record of the lower half is overwritten continuously.
            let writer = scope.spawn(|| {
                let mut round = 0u32;
                while !ended.load(Ordering::Acquire) {
                    round += 1;
                    let number = round.wrapping_mul(2_654_435_761) % (RECORDS / 2);
                    db.set(&key(number), round.to_string().as_bytes()).unwrap();
                }
                round
            });
            let text = format!("output.copied = tostring(db:copy('copy.{suffix}'))");
            let outcome = run(Arc::clone(&stalling) as Arc<dyn ScriptDatabase>, &folder, &text);
            ended.store(true, Ordering::Release);
            assert_eq!((outcome.error, &outcome.output[&b"copied"[..]][..]), (None, &b"true"[..]));
            assert!(writer.join().unwrap() > 0);
        });
        assert!(stalling.seen.load(Ordering::Relaxed) > u64::from(RECORDS / 2), "it has stalled");
        let copy = opened(&folder, &format!("copy.{suffix}"));
        assert_eq!(copy.count(), u64::from(RECORDS));
        for number in 0..RECORDS {
            let value = copy.get(&key(number)).unwrap().expect("it was there throughout");
            let text = std::str::from_utf8(&value).unwrap();
            assert!(text == "0" || number < RECORDS / 2 && text.parse::<u32>().is_ok(), "{number}: {text}");
        }
    }
}

/// In a transaction the copy is of one moment. It contains all changes of another client's
/// transaction, or none of them.
#[test]
fn copy_in_a_transaction_is_of_one_moment() {
    for suffix in ["hash", "tree"] {
        let folder = tempfile::tempdir().unwrap();
        let db = filled(&folder, &format!("own.{suffix}"));
        let ended = AtomicBool::new(false);
        let (first, last) = (key(0), key(RECORDS - 1));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut round = 0u32;
                while !ended.load(Ordering::Acquire) {
                    round += 1;
                    let transaction = db.begin().unwrap();
                    transaction.set(&first, round.to_string().as_bytes()).unwrap();
                    transaction.set(&last, round.to_string().as_bytes()).unwrap();
                    transaction.commit().unwrap();
                }
            });
            let text = format!(
                "local ok = db:transaction(function() return db:copy('copy.{suffix}') end) output.copied = tostring(ok)"
            );
            let outcome = run(Arc::new(db.clone()), &folder, &text);
            ended.store(true, Ordering::Release);
            assert_eq!((outcome.error, &outcome.output[&b"copied"[..]][..]), (None, &b"true"[..]));
            writer.join().unwrap();
        });
        let copy = opened(&folder, &format!("copy.{suffix}"));
        assert_eq!(copy.count(), u64::from(RECORDS));
        assert_eq!(copy.get(&first).unwrap(), copy.get(&last).unwrap(), "{suffix}");
    }
}
