//! A map-reduce job has the same result on each kind of database, and with little or much memory.

use crate::kinds;

use kinds::on_each_kind;
use std::collections::BTreeMap;
use todana::{Db, Error, ErrorKind, MapReduce, Records, Result};

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

fn sum(_: &[u8], values: &mut dyn Iterator<Item = &[u8]>, sum: &mut Vec<u8>) {
    sum.extend_from_slice(&values.map(number).sum::<u64>().to_le_bytes());
}

/// Counts words, and checks that the words arrive in order.
fn count(map_reduce: &MapReduce<'_>, db: &Db) -> Result<BTreeMap<Vec<u8>, u64>> {
    let mut counts: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    map_reduce.run(
        db,
        &|_, record, emit| {
            record.value.split(|&byte| byte == b' ').for_each(|word| emit.emit(word, &1u64.to_le_bytes()));
            Ok(())
        },
        &mut |word, values| {
            assert!(counts.last_key_value().is_none_or(|(last, _)| last.as_slice() < word));
            let mut count = 0;
            while let Some(value) = values.next()? {
                count += number(value);
            }
            counts.insert(word.to_vec(), count);
            Ok(())
        },
    )?;
    Ok(counts)
}

/// Stores lines of words, and returns the count of each word.
fn fill(db: &Db, lines: u64, words: u64) -> BTreeMap<Vec<u8>, u64> {
    let mut model = BTreeMap::new();
    let mut state = 1u64;
    for line in 0..lines {
        let mut text = Vec::new();
        for _ in 0..20 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let word = format!("word{}", (state >> 33) % words).into_bytes();
            text.extend_from_slice(&word);
            text.push(b' ');
            *model.entry(word).or_insert(0) += 1;
        }
        text.pop();
        db.set(&line.to_be_bytes(), &text).unwrap();
    }
    model
}

#[test]
fn word_count_does_not_depend_on_memory() {
    on_each_kind(|db| {
        let model = fill(&db, 1000, 5000);
        for threads in [1, 3] {
            for memory_max in [64 << 20, 1] {
                let map_reduce = MapReduce::new().threads(threads).memory_max(memory_max);
                assert_eq!(count(&map_reduce, &db).unwrap(), model);
                assert_eq!(count(&map_reduce.combine(&sum), &db).unwrap(), model);
            }
        }
    });
}

#[test]
fn many_runs_are_merged_in_steps() {
    let db = Db::open("mem:hash").unwrap();
    let model = fill(&db, 3000, 1_000_000);
    // A run holds some hundreds of words at least, and there are 60,000.
    let map_reduce = MapReduce::new().threads(1).memory_max(1);
    assert_eq!(count(&map_reduce, &db).unwrap(), model);
    assert_eq!(count(&map_reduce.combine(&sum), &db).unwrap(), model);
}

#[test]
fn key_with_many_values_is_reduced_completely() {
    let db = Db::open("mem:tree").unwrap();
    (0..20_000u32).for_each(|number| db.set(&number.to_be_bytes(), b"").unwrap());
    let (mut keys, mut seen) = (0, vec![false; 20_000]);
    MapReduce::new()
        .threads(2)
        .memory_max(1)
        .run(
            &db,
            &|key, _, emit| {
                emit.emit(b"", key);
                Ok(())
            },
            &mut |key, values| {
                assert_eq!(key, b"");
                keys += 1;
                while let Some(value) = values.next()? {
                    let number = u32::from_be_bytes(value.try_into().unwrap()) as usize;
                    assert!(!std::mem::replace(&mut seen[number], true));
                }
                Ok(())
            },
        )
        .unwrap();
    assert_eq!(keys, 1);
    assert!(seen.iter().all(|&seen| seen));
}

#[test]
fn unread_values_are_skipped() {
    let db = Db::open("mem:hash").unwrap();
    let model = fill(&db, 2000, 5000);
    let mut keys = Vec::new();
    let map = |_: &[u8], record: todana::Record<'_>, emit: &mut todana::PairEmitter<'_>| {
        record.value.split(|&byte| byte == b' ').for_each(|word| emit.emit(word, b"some value"));
        Ok(())
    };
    let mut reduce = |key: &[u8], _: &mut todana::ReduceValues<'_>| {
        keys.push(key.to_vec());
        Ok(())
    };
    MapReduce::new().threads(1).memory_max(1).run(&db, &map, &mut reduce).unwrap();
    assert!(keys.iter().eq(model.keys()));
}

#[test]
fn error_ends_the_job_and_is_returned() {
    let db = Db::open("mem:hash").unwrap();
    fill(&db, 3000, 10);
    let fails = || Err(Error::new(ErrorKind::Full, "enough"));
    let error = MapReduce::new().run(&db, &|_, _, _| fails(), &mut |_, _| Ok(())).unwrap_err();
    assert_eq!(error.to_string(), "enough");
    let emits = |_: &[u8], _: todana::Record<'_>, emit: &mut todana::PairEmitter<'_>| {
        emit.emit(b"a", b"b");
        Ok(())
    };
    assert_eq!(MapReduce::new().run(&db, &emits, &mut |_, _| fails()).unwrap_err().to_string(), "enough");
    // Longer than the memory limit.
    let long = vec![0; 1 << 20];
    let emits_long = |_: &[u8], _: todana::Record<'_>, emit: &mut todana::PairEmitter<'_>| {
        emit.emit(b"a", &long);
        Ok(())
    };
    let error = MapReduce::new().memory_max(1).run(&db, &emits_long, &mut |_, _| Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let nowhere = MapReduce::new().threads(1).memory_max(1).temp_dir("/nowhere/at/all");
    assert_eq!(
        count(&nowhere, &{
            let db = Db::open("mem:hash").unwrap();
            fill(&db, 3000, 100_000);
            db
        })
        .unwrap_err()
        .kind(),
        ErrorKind::Unavailable
    );
}
