//! Visitors for updates that are not operations: signed sums, swaps by value, functions of the
//! program.

use super::{OwnedRecord, UpdateAction};
use todana_core::{Action, Attributes, Record, Visitor};

/// Why a sum could not be computed.
#[derive(Clone, Copy)]
pub(super) enum Wrong {
    Missing,
    NoNumber,
    Range,
}

pub(super) struct TextSum {
    pub(super) delta: i64,
    pub(super) initial: Option<i64>,
    pub(super) outcome: std::result::Result<i64, Wrong>,
    pub(super) text: String,
}

impl Visitor for TextSum {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.outcome = match (old, self.initial) {
            (None, None) => Err(Wrong::Missing),
            (None, Some(initial)) => Ok(initial),
            (Some(record), _) => {
                let text = std::str::from_utf8(record.value).unwrap_or_default();
                match text.parse::<i64>() {
                    Ok(number) => number.checked_add(self.delta).ok_or(Wrong::Range),
                    Err(_) => Err(Wrong::NoNumber),
                }
            }
        };
        let Ok(sum) = self.outcome else { return Action::Keep };
        self.text = sum.to_string();
        Action::Put(Record::new(self.text.as_bytes(), kept(old)))
    }
}

/// Returns the attributes for a record that gets a new value. The old version must not be kept.
fn kept(old: Option<Record<'_>>) -> Attributes {
    Attributes { version: 0, ..old.map(|old| old.attributes).unwrap_or_default() }
}

pub(super) struct Swap<'s> {
    pub(super) old: Option<&'s [u8]>,
    pub(super) new: Option<&'s [u8]>,
    pub(super) is_equal: bool,
}

impl Visitor for Swap<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.is_equal = old.map(|record| record.value) == self.old;
        match self.new {
            _ if !self.is_equal => Action::Keep,
            Some(new) => Action::Put(Record::new(new, kept(old))),
            None => Action::Remove,
        }
    }
}

pub(super) struct Seize(pub(super) Option<Vec<u8>>);

impl Visitor for Seize {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.0 = old.map(|record| record.value.to_vec());
        Action::Remove
    }
}

pub(super) struct Updater<'u> {
    pub(super) update: &'u mut dyn FnMut(Option<Record<'_>>) -> UpdateAction,
    pub(super) new: OwnedRecord,
}

impl Visitor for Updater<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let attributes = match (self.update)(old) {
            UpdateAction::Keep => return Action::Keep,
            UpdateAction::Remove => return Action::Remove,
            UpdateAction::Value(value) => {
                self.new.value = value;
                kept(old)
            }
            UpdateAction::Record(record) => {
                self.new = record;
                let OwnedRecord { flags, expiry, .. } = self.new;
                Attributes { flags, expiry, ..Attributes::default() }
            }
        };
        Action::Put(Record::new(&self.new.value, attributes))
    }
}
