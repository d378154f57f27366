//! Visitors for updates that are not operations: sums of signed numbers, swaps by value, functions
//! of the program.

use super::{OwnedRecord, UpdateAction};
use todana_core::{Action, Attributes, Record, Visitor};

/// The reason why a sum could not be computed.
#[derive(Clone, Copy)]
pub(super) enum TextSumError {
    Missing,
    NoNumber,
    Range,
}

pub(super) struct TextSum {
    pub(super) delta: i64,
    pub(super) initial: Option<i64>,
    pub(super) outcome: std::result::Result<i64, TextSumError>,
    pub(super) text: String,
}

impl Visitor for TextSum {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.outcome = match (old, self.initial) {
            (None, None) => Err(TextSumError::Missing),
            (None, Some(initial)) => Ok(initial),
            (Some(record), _) => {
                let text = std::str::from_utf8(record.value).unwrap_or_default();
                match text.parse::<i64>() {
                    Ok(number) => number.checked_add(self.delta).ok_or(TextSumError::Range),
                    Err(_) => Err(TextSumError::NoNumber),
                }
            }
        };
        let Ok(sum) = self.outcome else { return Action::Keep };
        self.text = sum.to_string();
        Action::Put(Record::new(self.text.as_bytes(), kept_attributes(old)))
    }
}

/// Returns the attributes of a record whose value changes. The old version must not be kept.
fn kept_attributes(old: Option<Record<'_>>) -> Attributes {
    Attributes { version: 0, ..old.map(|old| old.attributes).unwrap_or_default() }
}

pub(super) struct SwapVisitor<'s> {
    pub(super) old: Option<&'s [u8]>,
    pub(super) new: Option<&'s [u8]>,
    pub(super) is_equal: bool,
}

impl Visitor for SwapVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.is_equal = old.map(|record| record.value) == self.old;
        match self.new {
            _ if !self.is_equal => Action::Keep,
            Some(new) => Action::Put(Record::new(new, kept_attributes(old))),
            None => Action::Remove,
        }
    }
}

pub(super) struct SeizeVisitor(pub(super) Option<Vec<u8>>);

impl Visitor for SeizeVisitor {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.0 = old.map(|record| record.value.to_vec());
        Action::Remove
    }
}

pub(super) struct UpdateVisitor<'u> {
    pub(super) update: &'u mut dyn FnMut(Option<Record<'_>>) -> UpdateAction,
    pub(super) new: OwnedRecord,
}

impl Visitor for UpdateVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let attributes = match (self.update)(old) {
            UpdateAction::Keep => return Action::Keep,
            UpdateAction::Remove => return Action::Remove,
            UpdateAction::Value(value) => {
                self.new.value = value;
                kept_attributes(old)
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
