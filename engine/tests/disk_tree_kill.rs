//! Killed processes: the contents of a tree on disk are its complete state at a checkpoint, under
//! the mark of that checkpoint.
//!
//! The mark counts operations, and each operation follows from its number, so the mark determines
//! the expected contents.

mod visitor;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use todana_core::{CheckpointedEngine, Engine};
use todana_engine::{DiskTree, DiskTreeOptions};
use visitor::{Remove, Set};

const DIRECTORY: &str = "TODANA_TEST_KILLED_DIRECTORY";

/// Returns the operation with a number: a key, and its value or none for a removal.
fn operation(number: u64) -> (Vec<u8>, Option<Vec<u8>>) {
    let mut random = fastrand::Rng::with_seed(number);
    let long = if random.u32(0..30) == 0 { "k".repeat(700) } else { String::new() };
    let key = format!("{long}key {}", random.u32(0..3000)).into_bytes();
    let len = if random.u32(0..50) == 0 { 20_000 } else { 200 };
    let value = (random.u32(0..4) != 0).then(|| vec![number as u8; random.usize(0..len)]);
    (key, value)
}

fn open(directory: &Path) -> DiskTree {
    let in_blocks = directory.ends_with("blocks");
    let options = DiskTreeOptions { spills: false, in_blocks, map_bytes: 1 << 20, ..Default::default() };
    DiskTree::open(directory, options).unwrap()
}

/// The process that is killed: this test itself, started again with a directory.
#[test]
fn writes_until_it_is_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let tree = open(directory.as_ref());
    let first = tree.log_position();
    // It ends by itself if it is not killed.
    for number in first..first + 200_000 {
        match operation(number) {
            (key, Some(value)) => tree.visit(&key, &mut Set(&value)).unwrap(),
            (key, None) => tree.visit(&key, &mut Remove).unwrap(),
        }
        if number % 97 == 0 {
            tree.checkpoint(number + 1).unwrap();
            println!("checkpoint {}", number + 1);
        }
    }
}

#[test]
fn a_killed_tree_is_as_at_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    for layout in ["entries", "blocks"] {
        kill_while_writing(&folder.path().join(layout));
    }
}

fn kill_while_writing(directory: &Path) {
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let (mut done, mut random) = (0, fastrand::Rng::with_seed(4));
    let kills = std::env::var("TODANA_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(12);
    for _ in 0..kills {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writes_until_it_is_killed", "--nocapture"])
            .env(DIRECTORY, directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut marks =
            lines.map_while(Result::ok).filter_map(|line| line.strip_prefix("checkpoint ")?.parse().ok());
        // After a number of checkpoints, in the middle of some operation.
        let told: u64 = marks.by_ref().take(random.usize(1..30)).last().expect("it makes checkpoints");
        for _ in 0..random.u32(0..200_000) {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "it was killed, and did not end by itself");
        drop(marks);
        let tree = open(directory);
        assert!(tree.log_position() >= told, "what was said to be on disk is there");
        for number in done..tree.log_position() {
            match operation(number) {
                (key, Some(value)) => drop(model.insert(key, value)),
                (key, None) => drop(model.remove(&key)),
            }
        }
        done = tree.log_position();
        let mut found = BTreeMap::new();
        let end = tree.scan(None, &mut |key, record| {
            found.insert(key.to_vec(), record.value.to_vec());
            ControlFlow::Continue(())
        });
        assert_eq!(end.unwrap(), None);
        assert!(found == model, "the state of mark {done}");
        assert_eq!(tree.status().records, model.len() as u64);
        drop(tree);
        assert_eq!(DiskTree::check(directory).unwrap().records, model.len() as u64);
    }
}
