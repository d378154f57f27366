//! A row of a table: the names and values of its columns.

use std::collections::{HashMap, HashSet};
use std::fmt;
use todana_core::{Error, ErrorKind, Result};
use todana_engine::table::{column, columns};

/// A row of a table: columns with a name and a value each, as they are stored.
///
/// ```
/// use todana::table::Row;
///
/// let row = Row::new(&[("name", "ann"), ("age", "33")])?;
/// assert_eq!(row.get(b"age"), Some(&b"33"[..]));
/// assert_eq!(row.as_bytes(), b"name\0ann\0age\x0033");
/// assert!(Row::new(&[("", "no name")]).is_err());
/// # Ok::<(), todana::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Row(Vec<u8>);

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escaped = self.columns().map(|(name, value)| (name.escape_ascii(), value.escape_ascii()));
        f.debug_map().entries(escaped.map(|(name, value)| (name.to_string(), value.to_string()))).finish()
    }
}

impl Row {
    /// Creates a row. If a name occurs more than once, its last value counts. Fails with `Invalid`
    /// if a name is empty, or if a name or value contains a NUL byte.
    pub fn new<N: AsRef<[u8]>, V: AsRef<[u8]>>(columns: &[(N, V)]) -> Result<Row> {
        Row::from_columns(columns.iter().map(|(name, value)| (name.as_ref(), value.as_ref())))
    }

    /// Reads names and values that are separated by NUL bytes. If the last name has no value, it is
    /// dropped. Fails with `Invalid` if a name is empty.
    pub fn from_bytes(bytes: &[u8]) -> Result<Row> {
        Row::from_columns(columns(bytes))
    }

    /// Creates a row, in time proportional to the length of the columns.
    fn from_columns<'c>(columns: impl Iterator<Item = (&'c [u8], &'c [u8])>) -> Result<Row> {
        let mut all: Vec<(&[u8], &[u8])> = Vec::new();
        // Used for rows of many columns only, because a comparison of few names is faster.
        let mut places: HashMap<&[u8], usize> = HashMap::new();
        for (name, value) in columns {
            expect_column(name, value)?;
            let place = if places.is_empty() {
                all.iter().position(|(other, _)| *other == name)
            } else {
                places.get(name).copied()
            };
            if let Some(place) = place {
                all[place].1 = value;
                continue;
            }
            if all.len() == FEW_COLUMNS {
                places.extend(all.iter().enumerate().map(|(place, (name, _))| (*name, place)));
            }
            if all.len() >= FEW_COLUMNS {
                places.insert(name, all.len());
            }
            all.push((name, value));
        }
        let mut row = Row::default();
        all.iter().for_each(|(name, value)| row.push(name, value));
        Ok(row)
    }

    /// Returns a row from the value of its record, without a check. Of a value that is not a row,
    /// the names and values are returned as far as they can be read.
    ///
    /// ```
    /// use todana::table::{Row, Table};
    /// use todana::{Db, Records};
    ///
    /// let table = Table::new(&Db::open("mem:table")?)?;
    /// table.put(b"ann", &[("age", "33")])?;
    /// let value = table.db().get(b"ann")?.expect("it was stored");
    /// assert_eq!(Row::stored(&value).get(b"age"), Some(&b"33"[..]));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn stored(value: &[u8]) -> Row {
        Row(value.to_vec())
    }

    /// Returns the value of a column.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        column(&self.0, name)
    }

    /// Returns the columns in their order.
    pub fn columns(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        columns(&self.0)
    }

    /// Sets the value of a column. Fails as [`Row::new`] does.
    pub fn put(&mut self, name: &[u8], value: &[u8]) -> Result<()> {
        expect_column(name, value)?;
        match self.get(name).map(|old| (old.as_ptr() as usize - self.0.as_ptr() as usize, old.len())) {
            Some((at, len)) => drop(self.0.splice(at..at + len, value.iter().copied())),
            None => self.push(name, value),
        }
        Ok(())
    }

    /// Removes a column. Returns true if it existed.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let mut rest = Row::default();
        self.columns().filter(|(other, _)| *other != name).for_each(|(name, value)| rest.push(name, value));
        let is_removed = rest.0.len() < self.0.len();
        *self = rest;
        is_removed
    }

    /// Adds those columns of another row that this row lacks.
    pub fn add_missing(&mut self, other: &Row) {
        let mut known: HashSet<&[u8]> = self.columns().map(|(name, _)| name).collect();
        let missing: Vec<_> = other.columns().filter(|(name, _)| known.insert(name)).collect();
        missing.iter().for_each(|(name, value)| self.push(name, value));
    }

    fn push(&mut self, name: &[u8], value: &[u8]) {
        if !self.0.is_empty() {
            self.0.push(0);
        }
        self.0.extend_from_slice(name);
        self.0.push(0);
        self.0.extend_from_slice(value);
    }

    /// Returns names and values, separated by NUL bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The most columns whose names are compared one after another.
const FEW_COLUMNS: usize = 16;

/// Fails with `Invalid` if a column cannot have this name or value.
fn expect_column(name: &[u8], value: &[u8]) -> Result<()> {
    if name.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, "column: its name is empty"));
    }
    if name.contains(&0) || value.contains(&0) {
        return Err(Error::new(ErrorKind::Invalid, "column: its name or value has a NUL byte"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Row;

    /// A row of 1 MiB with 210,000 columns occupied a worker for minutes, because each column was
    /// compared with all others.
    #[test]
    fn many_columns_keep_places_and_last_values() {
        let names: Vec<String> = (0..210_000).map(|number| format!("{number:x}")).collect();
        let mut bytes: Vec<u8> = Vec::new();
        names.iter().for_each(|name| bytes.extend_from_slice(&[name.as_bytes(), b"\0\0"].concat()));
        bytes.extend_from_slice(b"0\0first\x0010\0later");
        let mut row = Row::from_bytes(&bytes).unwrap();
        assert!(row.columns().map(|(name, _)| name).eq(names.iter().map(String::as_bytes)));
        assert!(row.as_bytes().starts_with(b"0\0first\x001\0\x002\0"));
        assert_eq!((row.get(b"10"), row.get(b"11")), (Some(&b"later"[..]), Some(&b""[..])));
        let all: Vec<_> = names.iter().map(|name| (name, "x")).collect();
        assert_eq!(Row::new(&all).unwrap().columns().filter(|(_, value)| *value == b"x").count(), 210_000);
        row.add_missing(&Row::new(&[("1", "old"), ("new", "y")]).unwrap());
        assert_eq!(
            (row.columns().count(), row.get(b"1"), row.get(b"new")),
            (210_001, Some(&b""[..]), Some(&b"y"[..]))
        );
    }

    #[test]
    fn changed_columns_keep_their_places() {
        let mut row = Row::from_bytes(b"a\x001\0b\x002\0a\x003\0rest").unwrap();
        assert_eq!(row.as_bytes(), b"a\x003\0b\x002");
        row.put(b"a", b"").unwrap();
        row.put(b"c", b"long").unwrap();
        assert_eq!(row.as_bytes(), b"a\0\0b\x002\0c\0long");
        assert!(row.remove(b"b") && !row.remove(b"b"));
        row.add_missing(&Row::new(&[("a", "x"), ("d", "4")]).unwrap());
        assert_eq!(row.as_bytes(), b"a\0\0c\0long\0d\x004");
        assert!(row.put(b"e", b"\0").is_err() && Row::from_bytes(b"\0x").is_err());
        assert_eq!(Row::from_bytes(b"").unwrap(), Row::default());
    }
}
