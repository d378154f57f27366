//! Visitors: functions of Python's that are shown records, and say what becomes of them.
//!
//! Always true: they run without any lock of the library's. A record that somebody else has changed meanwhile is shown again.

use crate::conversion::octets;
use crate::error::raised;
use crate::records::Records;
use crate::source::Source;
use crate::view::{Part, View, Which};
use pyo3::prelude::*;
use std::sync::Arc;
use todana::Records as _;

/// What a visitor returns to have a record removed: `todana.REMOVE`.
#[pyclass(module = "todana", name = "Removal", frozen)]
pub(crate) struct Removal;

#[pymethods]
impl Removal {
    fn __repr__(&self) -> &'static str {
        "todana.REMOVE"
    }

    /// Copies and pickles are the same object: it is known by its name.
    fn __reduce__(&self) -> &'static str {
        "REMOVE"
    }
}

/// What becomes of a record.
pub(crate) enum Decision {
    Keep,
    Remove,
    Put,
}

/// Returns what a visitor's answer says: None keeps the record.
fn decision(answer: &Bound<'_, PyAny>) -> Decision {
    if answer.is_none() {
        Decision::Keep
    } else if answer.is_instance_of::<Removal>() {
        Decision::Remove
    } else {
        Decision::Put
    }
}

impl Records {
    /// Shows a value to `ask` and does with the record as `decide` says of its answer, again if somebody else was there first. Returns
    /// the answer, and whether anything was changed.
    pub(crate) fn decide<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        ask: impl Fn(Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>>,
        decide: fn(&Bound<'_, PyAny>) -> Decision,
    ) -> PyResult<(Bound<'py, PyAny>, bool)> {
        loop {
            let old = self.source.look(py, |source| source.get(key))?;
            let shown = old.as_ref().map(|old| self.source.form().show(py, old)).transpose()?;
            let answer = ask(shown)?;
            let new = match decide(&answer) {
                Decision::Keep => return Ok((answer, false)),
                Decision::Remove if old.is_none() => return Ok((answer, false)),
                Decision::Remove => None,
                Decision::Put => Some(octets(&answer)?),
            };
            let swap = |source: &Source| source.compare_and_swap(key, old.as_deref(), new.as_deref());
            if self.source.change(py, swap)? {
                drop(new);
                return Ok((answer, true));
            }
            py.check_signals()?;
        }
    }

    /// Runs a visitor on a record that may not be there; returns whether it has changed anything.
    pub(crate) fn visit_one(&self, key: &Bound<'_, PyAny>, visitor: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = key.py();
        let name = octets(key)?;
        let shown_key = self.source.form().show(py, &name)?;
        self.decide(py, &name, |value| visitor.call1((&shown_key, value)), decision)
            .map(|(_, is_change)| is_change)
    }

    /// Runs a visitor on each record that is there; returns how many it has changed.
    pub(crate) fn visit_all(&self, visitor: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (py, mut changed) = (visitor.py(), 0);
        let keys = View::new(self.source.clone(), Part::Keys, Which::All, false)?.iterator(false)?;
        while let Some((key, _)) = keys.next(py).map_err(raised)? {
            let shown_key = self.source.form().show(py, &key)?;
            let ask = |value: Option<_>| match value {
                Some(value) => visitor.call1((&shown_key, value)),
                // It has gone meanwhile.
                None => Ok(py.None().into_bound(py)),
            };
            changed += usize::from(self.decide(py, &key, ask, decision)?.1);
            py.check_signals()?;
        }
        Ok(changed)
    }

    /// Runs a visitor on several records, in a transaction of its own where none is open; returns how often it has changed one.
    pub(crate) fn visit_several(
        &self,
        keys: &Bound<'_, PyAny>,
        visitor: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let py = keys.py();
        let Source::Database(home) = &self.source else { return self.visit_in_turn(keys, visitor) };
        let undertaking = home.begin(py)?;
        let within = Records::new(Source::Transaction(Arc::clone(&undertaking)));
        let outcome = within.visit_in_turn(keys, visitor);
        py.detach(|| match outcome {
            Ok(changed) => undertaking.commit().map(|()| Ok(changed)),
            Err(error) => {
                undertaking.abort();
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
