//! The progress of the run, shared by all threads.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts by name, and the end.
#[derive(Default)]
pub(super) struct Tally {
    counts: Mutex<BTreeMap<(Part, String), u64>>,
    /// Requests whose replies were right.
    pub(super) requests: AtomicU64,
    ends: AtomicBool,
    wrong: Mutex<Option<String>>,
}

/// The parts of the table at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Requests,
    Faults,
    Outcomes,
}

impl Tally {
    pub(super) fn count(&self, part: Part, name: &str, by: u64) {
        if by == 0 {
            return;
        }
        if part == Part::Requests {
            self.requests.fetch_add(by, Ordering::Relaxed);
        }
        if let Ok(mut counts) = self.counts.lock() {
            match counts.get_mut(&(part, name.to_string())) {
                Some(count) => *count += by,
                None => drop(counts.insert((part, name.to_string()), by)),
            }
        }
    }

    /// Everybody shall come to an end.
    pub(super) fn end(&self) {
        self.ends.store(true, Ordering::Relaxed);
    }

    pub(super) fn ends(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// Something is not as it should be; the first such thing counts.
    pub(super) fn fail(&self, what: String) {
        if let Ok(mut wrong) = self.wrong.lock() {
            wrong.get_or_insert(what);
        }
        self.end();
    }

    pub(super) fn wrong(&self) -> Option<String> {
        self.wrong.lock().ok()?.clone()
    }

    /// Waits, but not beyond the end.
    pub(super) fn pause(&self, ms: u64) {
        for _ in 0..ms.div_ceil(20) {
            if self.ends() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(ms.min(20)));
        }
    }

    pub(super) fn table(&self) -> String {
        let Ok(counts) = self.counts.lock() else { return String::new() };
        let mut text = String::new();
        let mut last = None;
        for ((part, name), count) in counts.iter() {
            if last != Some(*part) {
                text += match part {
                    Part::Requests => "requests\n",
                    Part::Faults => "faults\n",
                    Part::Outcomes => "outcomes\n",
                };
                last = Some(*part);
            }
            text += &format!("  {name:40} {count:>10}\n");
        }
        text
    }
}
