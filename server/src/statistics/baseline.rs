//! What had been counted when the statistics were last reset, of what nobody else resets.

use super::{Writer, general};
use crate::shared::Shared;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use todana_core::Reply;

#[derive(Debug, Default)]
pub(crate) struct Baseline {
    counts: Mutex<HashMap<String, u64>>,
}

impl Baseline {
    fn counts(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, name: &str) -> u64 {
        self.counts().get(name).copied().unwrap_or(0)
    }

    /// Takes down what has been counted up to now.
    pub(super) fn set(&self, shared: &Shared) {
        let mut counts = HashMap::new();
        let mut take = |reply: Reply<'_>| {
            if let Reply::Statistic { name, value } = reply
                && let Ok(value) = value.parse()
            {
                counts.insert(name.to_string(), value);
            }
        };
        // What is no count is taken down as well, and never asked for.
        let mut writer = Writer { out: &mut take, baseline: None, value: String::new(), name: String::new() };
        general::put(shared, &mut writer);
        *self.counts() = counts;
    }
}
