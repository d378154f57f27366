//! Runs visitors: Python functions that receive records and decide on changes.
//!
//! Invariant: visitors run without any lock of the library. If another thread changed a record
//! meanwhile, the visitor is called again.

use crate::conversion::octets;
use crate::error::raised;
use crate::records::Records;
use crate::source::RecordsSource;
use crate::view::{ItemPart, KeySelection, PyView};
use pyo3::prelude::*;
use std::sync::Arc;
use todana::Records as _;

/// The type of `todana.REMOVE`, the result of a visitor that removes the record.
#[pyclass(module = "todana", name = "Removal", frozen)]
pub(crate) struct RemovalMarker;

#[pymethods]
impl RemovalMarker {
    fn __repr__(&self) -> &'static str {
        "todana.REMOVE"
    }

    /// Copies and pickles of the object are the same object, which is found by its name.
    fn __reduce__(&self) -> &'static str {
        "REMOVE"
    }
}

/// The decision about a record.
pub(crate) enum VisitDecision {
    Keep,
    Remove,
    Put,
}

/// Returns the decision that the result of a visitor states.
fn decision(answer: &Bound<'_, PyAny>) -> VisitDecision {
    if answer.is_none() {
        VisitDecision::Keep
    } else if answer.is_instance_of::<RemovalMarker>() {
        VisitDecision::Remove
    } else {
        VisitDecision::Put
    }
}

impl Records {
    /// Calls `ask` with a value, and applies the decision that `decide` derives from the result.
    /// Repeats both if another thread changed the record meanwhile. Returns the result, and true if
    /// the record was changed.
    pub(crate) fn decide<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        ask: impl Fn(Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>>,
        decide: fn(&Bound<'_, PyAny>) -> VisitDecision,
    ) -> PyResult<(Bound<'py, PyAny>, bool)> {
        loop {
            let old = self.source.read(py, |source| source.get(key))?;
            let shown = old.as_ref().map(|old| self.source.form().show(py, old)).transpose()?;
            let answer = ask(shown)?;
            let new = match decide(&answer) {
                VisitDecision::Keep => return Ok((answer, false)),
                VisitDecision::Remove if old.is_none() => return Ok((answer, false)),
                VisitDecision::Remove => None,
                VisitDecision::Put => Some(octets(&answer)?),
            };
            let swap = |source: &RecordsSource| source.compare_and_swap(key, old.as_deref(), new.as_deref());
            if self.source.change(py, swap)? {
                drop(new);
                return Ok((answer, true));
            }
            py.check_signals()?;
        }
    }

    /// Runs a visitor on a record that may not exist. Returns true if the record was changed.
    pub(crate) fn visit_one(&self, key: &Bound<'_, PyAny>, visitor: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = key.py();
        let name = octets(key)?;
        let shown_key = self.source.form().show(py, &name)?;
        self.decide(py, &name, |value| visitor.call1((&shown_key, value)), decision)
            .map(|(_, is_change)| is_change)
    }

    /// Runs a visitor on each record. Returns the number of changed records.
    pub(crate) fn visit_all(&self, visitor: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (py, mut changed) = (visitor.py(), 0);
        let keys =
            PyView::new(self.source.clone(), ItemPart::Keys, KeySelection::All, false)?.iterator(false)?;
        while let Some((key, _)) = keys.next(py).map_err(raised)? {
            let shown_key = self.source.form().show(py, &key)?;
            let ask = |value: Option<_>| match value {
                Some(value) => visitor.call1((&shown_key, value)),
                // The record was removed meanwhile.
                None => Ok(py.None().into_bound(py)),
            };
            changed += usize::from(self.decide(py, &key, ask, decision)?.1);
            py.check_signals()?;
        }
        Ok(changed)
    }

    /// Runs a visitor on several records. If no transaction is open, runs it within a new
    /// transaction. Returns the number of changes.
    pub(crate) fn visit_several(
        &self,
        keys: &Bound<'_, PyAny>,
        visitor: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let py = keys.py();
        let RecordsSource::Database(database) = &self.source else {
            return self.visit_in_turn(keys, visitor);
        };
        let transaction = database.begin(py)?;
        let within = Records::new(RecordsSource::Transaction(Arc::clone(&transaction)));
        let outcome = within.visit_in_turn(keys, visitor);
        py.detach(|| match outcome {
            Ok(changed) => transaction.commit().map(|()| Ok(changed)),
            Err(error) => {
                transaction.abort();
                Ok(Err(error))
            }
        })
        .map_err(raised)?
    }

    fn visit_in_turn(&self, keys: &Bound<'_, PyAny>, visitor: &Bound<'_, PyAny>) -> PyResult<usize> {
        keys.try_iter()?
            .try_fold(0, |changed, key| Ok(changed + usize::from(self.visit_one(&key?, visitor)?)))
    }
}
