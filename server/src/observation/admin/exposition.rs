//! The text format of Prometheus: families of samples, each with its help and type.

use std::fmt::{Display, Write};

/// What the answer calls itself.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only grows, but for a restart or a reset.
    Counter,
    Gauge,
}

/// Labels of a sample: names and values.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// A text under way.
#[derive(Default)]
pub(super) struct Exposition(String);

impl Exposition {
    /// Writes a family; `samples` is given what takes one sample after the other. Without samples there is none.
    pub(super) fn family(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        samples: impl FnOnce(&mut Family<'_>),
    ) {
        let before = self.0.len();
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        // A String takes whatever is written, here and below.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        let mut family = Family { name, text: &mut self.0, is_empty: true };
        samples(&mut family);
        if family.is_empty {
            self.0.truncate(before);
        }
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }
}

/// A family under way.
pub(super) struct Family<'a> {
    name: &'a str,
    text: &'a mut String,
    is_empty: bool,
}

impl Family<'_> {
    /// Writes a sample. No value is no sample.
    pub(super) fn sample(&mut self, labels: Labels<'_>, value: Option<impl Display>) {
        let Some(value) = value else { return };
        self.is_empty = false;
        self.text.push_str(self.name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let opening = if index == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{opening}{label}=\"");
            for character in text.chars() {
                match character {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    other => self.text.push(other),
                }
            }
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_help_type_and_samples_or_are_not_there() {
        let mut text = Exposition::default();
        text.family("a_total", Kind::Counter, "Help.", |family| {
            family.sample(&[], Some(1));
            family.sample(&[("x", "1"), ("y", "a\\b\"c\nd")], Some("0.5"));
        });
        text.family("b", Kind::Gauge, "Nothing.", |family| family.sample(&[], None::<u64>));
        assert_eq!(
            text.into_text(),
            "# HELP a_total Help.\n# TYPE a_total counter\na_total 1\na_total{x=\"1\",y=\"a\\\\b\\\"c\\nd\"} 0.5\n"
        );
    }
}
