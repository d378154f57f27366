//! Parses Prometheus' text format strictly. The parser was written from the description of the
//! format, not from the server's writer.

// Each test file uses a part of this module.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) samples: BTreeMap<Labels, f64>,
}

pub(crate) type Labels = Vec<(String, String)>;

#[derive(Debug)]
pub(crate) struct Exposition(pub(crate) BTreeMap<String, Family>);

impl Exposition {
    /// Parses a complete text. Fails at the first malformed line.
    pub(crate) fn read(text: &str) -> Result<Exposition, String> {
        let text = text.strip_suffix('\n').ok_or("the last line does not end")?;
        let mut families: BTreeMap<String, Family> = BTreeMap::new();
        // The family whose samples may follow. No sample of a family may follow after another
        // family has begun.
        let mut open: Option<String> = None;
        let mut help: Option<String> = None;
        for (index, line) in text.split('\n').enumerate() {
            let wrong = |what: &str| format!("line {}: {what}: {line:?}", index + 1);
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, text) = rest.split_once(' ').ok_or_else(|| wrong("no help"))?;
                // The help texts of the server contain no escapes.
                if !is_name(name) || text.is_empty() || text.contains('\\') || help.is_some() {
                    return Err(wrong("help that cannot be"));
                }
                help = Some(name.to_string());
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').ok_or_else(|| wrong("no type"))?;
                if help.take().as_deref() != Some(name) {
                    return Err(wrong("a type without its help"));
                }
                if !["counter", "gauge"].contains(&kind) {
                    return Err(wrong("a type that is not used here"));
                }
                if let Some(before) = open.replace(name.to_string())
                    && families[&before].samples.is_empty()
                {
                    return Err(wrong("the family before has no sample"));
                }
                let family = Family { kind: kind.to_string(), samples: BTreeMap::new() };
                if families.insert(name.to_string(), family).is_some() {
                    return Err(wrong("a family for the second time"));
                }
            } else {
                let (name, labels, value) = sample(line).map_err(|what| wrong(&what))?;
                if help.is_some() || open.as_deref() != Some(name) {
                    return Err(wrong("a sample outside its family"));
                }
                let family = families.get_mut(name).ok_or_else(|| wrong("no family"))?;
                if family.kind == "counter" && (value.is_nan() || value < 0.0) {
                    return Err(wrong("a counter below zero"));
                }
                if family.samples.insert(labels, value).is_some() {
                    return Err(wrong("a sample for the second time"));
                }
            }
        }
        match open.is_some_and(|last| families[&last].samples.is_empty()) || help.is_some() {
            true => Err("the last family has no sample".into()),
            false => Ok(Exposition(families)),
        }
    }

    /// Returns the value of a sample. Labels are written as `command=get,status=hit`.
    pub(crate) fn value(&self, name: &str, labels: &str) -> Option<f64> {
        let pairs = labels.split(',').filter(|pair| !pair.is_empty());
        let labels: Labels =
            pairs.filter_map(|pair| pair.split_once('=')).map(|(a, b)| (a.into(), b.into())).collect();
        self.0.get(name)?.samples.get(&labels).copied()
    }

    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.0.keys().cloned().collect()
    }
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Parses `name value` or `name{label="text",...} value`.
fn sample(line: &str) -> Result<(&str, Labels, f64), String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    if !is_name(name) {
        return Err("no name".into());
    }
    let mut labels = Labels::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, behind) = rest.split_once("=\"").ok_or("no label")?;
            if !is_name(label) || label.contains(':') || labels.iter().any(|(known, _)| known == label) {
                return Err(format!("label {label:?}"));
            }
            let mut text = String::new();
            let mut characters = behind.char_indices();
            let end = loop {
                match characters.next().ok_or("no end of the label")? {
                    (at, '"') => break at,
                    (_, '\\') => text.push(match characters.next() {
                        Some((_, 'n')) => '\n',
                        Some((_, same @ ('\\' | '"'))) => same,
                        _ => return Err("an escape that there is not".into()),
                    }),
                    (_, other) => text.push(other),
                }
            };
            labels.push((label.to_string(), text));
            rest = &behind[end + 1..];
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break,
            }
        }
        rest = rest.strip_prefix('}').ok_or("no closing brace")?;
    }
    let value = rest.strip_prefix(' ').ok_or("no blank")?;
    if value.is_empty() || value.chars().any(|c| !(c.is_ascii_digit() || ".-+e".contains(c))) {
        return Err("no number".into());
    }
    Ok((name, labels, value.parse().map_err(|_| "no number")?))
}

#[test]
fn the_reader_is_strict() {
    let head = "# HELP a Help.\n# TYPE a counter\n";
    for wrong in [
        "",
        "a 1\n",
        "# HELP a Help.\n# TYPE a counter\n",
        "# TYPE a counter\na 1\n",
        "# HELP a Help.\na 1\n",
        "# HELP a Help.\n# TYPE b counter\nb 1\n",
        &format!("{head}a 1"),
        &format!("{head}a 1\n\n"),
        &format!("{head}a 1\na 2\n"),
        &format!("{head}a -1\n"),
        &format!("{head}a NULL\n"),
        &format!("{head}a\n"),
        &format!("{head}b 1\n"),
        &format!("{head}a{{x=\"1}} 1\n"),
        &format!("{head}a{{x=\"\\t\"}} 1\n"),
        &format!("{head}a{{x=\"1\",x=\"2\"}} 1\n"),
        &format!("{head}a{{x=\"1\"}}1\n"),
        &format!("{head}a 1\n{head}a{{x=\"1\"}} 1\n"),
    ] {
        assert!(Exposition::read(wrong).is_err(), "{wrong:?}");
    }
    let right = Exposition::read(&format!("{head}a 1\na{{x=\"1\\\"\",y=\"\"}} 2.5\n")).unwrap();
    assert_eq!(right.value("a", ""), Some(1.0));
    assert_eq!(right.value("a", "x=1\",y="), Some(2.5));
}
