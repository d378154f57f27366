//! Values of a configuration file with their lines. They are the same for TOML and YAML.
//!
//! All scalars are texts here, because the key decides what a value means: a port may be written as
//! a number or as a text.
//!
//! Invariants: tables and lists are nested at most [`DEPTH_MAX`] deep, and no key occurs twice in a
//! table. Not here: the keys (`proxy_file`, `nutcracker_file`).

use saphyr_parser::{Event, Parser};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

const DEPTH_MAX: usize = 16;

/// A value and its line in the file, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConfigValue {
    pub(super) line: usize,
    pub(super) data: ConfigData,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConfigData {
    Text(String),
    List(Vec<ConfigValue>),
    Table(Vec<ConfigEntry>),
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConfigEntry {
    pub(super) line: usize,
    pub(super) key: String,
    pub(super) value: ConfigValue,
}

/// The line of a file that is not TOML or YAML, and the problem.
pub(super) type SyntaxProblem = (usize, String);

impl ConfigValue {
    /// Parses a TOML file.
    pub(super) fn of_toml(text: &str) -> Result<ConfigValue, SyntaxProblem> {
        let line = |offset: usize| {
            1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
        };
        let root = DeTable::parse(text).map_err(|error| {
            (error.span().map_or(1, |span| line(span.start)), error.message().trim_end().to_string())
        })?;
        of_toml_table(root.get_ref(), 1, DEPTH_MAX, &line)
    }

    /// Parses a YAML file of one document.
    pub(super) fn of_yaml(text: &str) -> Result<ConfigValue, SyntaxProblem> {
        let mut open: Vec<OpenValue> = Vec::new();
        let mut root = None;
        let mut parser = Parser::new_from_str(text);
        while let Some(event) = parser.next_event() {
            let (event, span) = event.map_err(|error| (error.marker().line(), error.info().to_string()))?;
            let line = span.start.line();
            let done = match event {
                Event::Scalar(text, ..) => ConfigValue { line, data: ConfigData::Text(text.into_owned()) },
                Event::SequenceStart(..) | Event::MappingStart(..) if open.len() == DEPTH_MAX => {
                    return Err(too_deep(line));
                }
                Event::SequenceStart(..) => {
                    open.push(OpenValue { line, key: None, data: ConfigData::List(Vec::new()) });
                    continue;
                }
                Event::MappingStart(..) => {
                    open.push(OpenValue { line, key: None, data: ConfigData::Table(Vec::new()) });
                    continue;
                }
                Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                    Some(OpenValue { line, data, .. }) => ConfigValue { line, data },
                    None => continue,
                },
                Event::Alias(_) => return Err((line, "aliases are not supported".into())),
                Event::DocumentStart(_) if root.is_some() => {
                    return Err((line, "the file must have a single document".into()));
                }
                _ => continue,
            };
            match open.last_mut() {
                None => root = Some(done),
                Some(parent) => parent.insert(done)?,
            }
        }
        root.ok_or_else(|| (1, "the file is empty".into()))
    }
}

fn too_deep(line: usize) -> SyntaxProblem {
    (line, format!("tables and lists may be nested at most {DEPTH_MAX} deep"))
}

fn of_toml_value(
    value: &Spanned<DeValue>,
    depth: usize,
    line: &dyn Fn(usize) -> usize,
) -> Result<ConfigValue, SyntaxProblem> {
    let start = line(value.span().start);
    let data = match value.get_ref() {
        DeValue::String(text) => ConfigData::Text(text.to_string()),
        DeValue::Integer(number) => {
            let parsed = i64::from_str_radix(number.as_str(), number.radix());
            ConfigData::Text(parsed.map_err(|_| (start, "the number is out of range".into()))?.to_string())
        }
        DeValue::Float(number) => ConfigData::Text(number.as_str().to_string()),
        DeValue::Boolean(flag) => ConfigData::Text(flag.to_string()),
        DeValue::Datetime(time) => ConfigData::Text(time.to_string()),
        DeValue::Array(_) | DeValue::Table(_) if depth == 0 => return Err(too_deep(start)),
        DeValue::Array(values) => {
            let values = values.iter().map(|value| of_toml_value(value, depth - 1, line));
            ConfigData::List(values.collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => return of_toml_table(table, start, depth, line),
    };
    Ok(ConfigValue { line: start, data })
}

fn of_toml_table(
    table: &DeTable,
    start: usize,
    depth: usize,
    line: &dyn Fn(usize) -> usize,
) -> Result<ConfigValue, SyntaxProblem> {
    let entries = table.iter().map(|(key, value)| {
        Ok(ConfigEntry {
            line: line(key.span().start),
            key: key.get_ref().to_string(),
            value: of_toml_value(value, depth - 1, line)?,
        })
    });
    Ok(ConfigValue { line: start, data: ConfigData::Table(entries.collect::<Result<_, _>>()?) })
}

/// A list or table of YAML whose end has not been parsed yet.
struct OpenValue {
    line: usize,
    /// The key of a table whose value comes next, with its line.
    key: Option<(usize, String)>,
    data: ConfigData,
}

impl OpenValue {
    fn insert(&mut self, value: ConfigValue) -> Result<(), SyntaxProblem> {
        match (&mut self.data, self.key.take()) {
            (ConfigData::List(values), _) => values.push(value),
            (ConfigData::Table(entries), Some((line, key))) => {
                entries.push(ConfigEntry { line, key, value });
            }
            (ConfigData::Table(entries), None) => {
                let ConfigData::Text(key) = value.data else {
                    return Err((value.line, "a key must be a text".into()));
                };
                if entries.iter().any(|entry| entry.key == key) {
                    return Err((value.line, format!("key {key:?} occurs twice")));
                }
                self.key = Some((value.line, key));
            }
            (ConfigData::Text(_), _) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a value as `LINE:TEXT`, `LINE:[...]` or `LINE:{LINE:KEY=...}`.
    fn shown(value: &ConfigValue) -> String {
        let line = value.line;
        match &value.data {
            ConfigData::Text(text) => format!("{line}:{text}"),
            ConfigData::List(values) => {
                format!("{line}:[{}]", values.iter().map(shown).collect::<Vec<_>>().join(" "))
            }
            ConfigData::Table(entries) => {
                let entries = entries
                    .iter()
                    .map(|entry| format!("{}:{}={}", entry.line, entry.key, shown(&entry.value)));
                format!("{line}:{{{}}}", entries.collect::<Vec<_>>().join(" "))
            }
        }
    }

    #[test]
    fn toml_and_yaml_keep_their_lines() {
        let toml = "a = 0x1F\n[b]\nc = [\"x\",\n  1.5]\nd = true\ne = 2026-12-01T00:00:00Z\n";
        assert_eq!(
            shown(&ConfigValue::of_toml(toml).unwrap()),
            "1:{1:a=1:31 2:b=2:{3:c=3:[3:x 4:1.5] 5:d=5:true 6:e=6:2026-12-01T00:00:00Z}}"
        );
        let yaml = "# comment\na:\n  b: 0123\n  c:\n   - x:1:2 n\n   - \"{}\"\n  d:\n";
        assert_eq!(
            shown(&ConfigValue::of_yaml(yaml).unwrap()),
            "2:{2:a=3:{3:b=3:0123 4:c=5:[5:x:1:2 n 6:{}] 7:d=7:}}"
        );
    }

    #[test]
    fn wrong_syntax_is_an_error_with_its_line() {
        for (text, line, problem) in [
            ("a = 1\nb = \n", 2, "string values must be quoted"),
            ("a = 1\na = 2\n", 2, "duplicate key"),
            ("a = 9223372036854775808\n", 1, "out of range"),
        ] {
            let (found, said) = ConfigValue::of_toml(text).unwrap_err();
            assert!(found == line && said.contains(problem), "{text}: {found} {said}");
        }
        for (text, line, problem) in [
            ("a: 1\na: 2\n", 2, "key \"a\" occurs twice"),
            ("a: &x 1\nb: *x\n", 2, "aliases are not supported"),
            ("a: 1\n---\nb: 1\n", 2, "single document"),
            ("", 1, "the file is empty"),
            ("a: 1\n{}: 2\n", 2, "a key must be a text"),
            ("a: 1\nb: \"\n", 2, "unexpected end of stream"),
            (&"[".repeat(20), 1, "nested at most 16 deep"),
        ] {
            let (found, said) = ConfigValue::of_yaml(text).unwrap_err();
            assert!(found == line && said.contains(problem), "{text:.20}: {found} {said}");
        }
        let deep = format!("a = {}{}", "[".repeat(20), "]".repeat(20));
        assert!(ConfigValue::of_toml(&deep).unwrap_err().1.contains("nested at most 16 deep"));
        let open = "[".repeat(100_000);
        assert!(ConfigValue::of_toml(&format!("a = {open}")).is_err());
        assert!(ConfigValue::of_yaml(&open).is_err());
    }
}
