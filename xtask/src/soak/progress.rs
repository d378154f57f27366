//! The progress of the run, shared by all threads.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts by name, and whether the run has stopped.
#[derive(Default)]
pub(super) struct RunProgress {
    counts: Mutex<BTreeMap<(TableSection, String), u64>>,
    /// The number of requests with an expected reply.
    pub(super) requests: AtomicU64,
    ends: AtomicBool,
    wrong: Mutex<Option<String>>,
}

/// The sections of the table at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TableSection {
    Requests,
    Faults,
    Outcomes,
}

impl RunProgress {
    pub(super) fn count(&self, part: TableSection, name: &str, by: u64) {
        if by == 0 {
            return;
        }
        if part == TableSection::Requests {
            self.requests.fetch_add(by, Ordering::Relaxed);
        }
        if let Ok(mut counts) = self.counts.lock() {
            match counts.get_mut(&(part, name.to_string())) {
                Some(count) => *count += by,
                None => drop(counts.insert((part, name.to_string()), by)),
            }
        }
    }

    /// Stops all threads of the run.
    pub(super) fn stop(&self) {
        self.ends.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// Records a failure and stops the run. Only the first failure is kept.
    pub(super) fn fail(&self, what: String) {
        if let Ok(mut wrong) = self.wrong.lock() {
            wrong.get_or_insert(what);
        }
        self.stop();
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.wrong.lock().ok()?.clone()
    }

    /// Waits, at most until the run stops.
    pub(super) fn pause(&self, ms: u64) {
        for _ in 0..ms.div_ceil(20) {
            if self.is_stopped() {
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
                    TableSection::Requests => "requests\n",
                    TableSection::Faults => "faults\n",
                    TableSection::Outcomes => "outcomes\n",
                };
                last = Some(*part);
            }
            text += &format!("  {name:40} {count:>10}\n");
        }
        text
    }
}
