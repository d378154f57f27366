//! Clearing an engine.

use crate::model::{scan, view};
use crate::subject::{StopOnDrop, Subject, put};
use crate::visitor::Set;
use std::sync::atomic::{AtomicBool, Ordering};
use todana_core::Attributes;

pub(crate) fn cleared_engine_is_empty_and_writable(subject: &Subject) {
    let mut engine = subject.fresh();
    for round in 0..3 {
        for n in 0..3000 {
            let len = if n % 500 == 0 { 70_000 } else { n % 100 };
            put(&*engine, format!("{n}").as_bytes(), &vec![round; len], Attributes::default());
        }
        if round == 1 {
            engine.reopen();
        }
        engine.clear(&mut || ()).unwrap();
        let status = engine.status();
        assert_eq!((status.records, status.live_bytes), (0, 0));
        assert!(scan(&*engine, usize::MAX).is_empty() && view(&*engine, b"7").is_none());
        put(&*engine, b"7", b"again", Attributes::default());
        engine.reopen();
        assert_eq!(scan(&*engine, usize::MAX).len(), 1, "those from before do not come back");
        assert_eq!(view(&*engine, b"7"), Some((b"again".to_vec(), Attributes::default())));
    }
}

pub(crate) fn clearing_calls_back_once_while_nobody_can_write(subject: &Subject) {
    let engine = subject.fresh();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = StopOnDrop(&done);
        for writer in 0..2 {
            let (engine, done) = (&*engine, &done);
            scope.spawn(move || {
                let mut n = 0u64;
                while !done.load(Ordering::Relaxed) {
                    engine.visit(format!("{writer} {}", n % 2000).as_bytes(), &mut Set(b"v")).unwrap();
                    n += 1;
                }
            });
        }
        let mut calls = 0;
        for _ in 0..50 {
            engine.clear(&mut || calls += 1).unwrap();
        }
        assert_eq!(calls, 50);
    });
    assert_eq!(
        scan(&*engine, usize::MAX).len() as u64,
        engine.status().records,
        "none is counted that is not there"
    );
    engine.clear(&mut || ()).unwrap();
    assert_eq!(engine.status().records, 0);
}
