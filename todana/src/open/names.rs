//! Checks that the names of several databases in one process differ.

use super::DatabaseName;
use todana_core::{Error, ErrorKind, Result};

impl DatabaseName {
    /// Fails with `Invalid` if two databases have the same path or the same alias.
    ///
    /// ```
    /// use todana::DatabaseName;
    ///
    /// let names = ["mem:hash", "%", "carts=./carts.tree"];
    /// let names = names.map(|name| DatabaseName::parse(name).unwrap());
    /// assert!(DatabaseName::expect_distinct(&names).is_ok());
    /// let twice = ["a.hash", "b=a.hash"].map(|name| DatabaseName::parse(name).unwrap());
    /// assert!(DatabaseName::expect_distinct(&twice).is_err());
    /// ```
    pub fn expect_distinct<'n>(names: impl IntoIterator<Item = &'n DatabaseName>) -> Result<()> {
        let mut seen: Vec<&DatabaseName> = Vec::new();
        for name in names {
            let is_same = |other: &&DatabaseName| {
                let by_path = name.path.is_some() && name.path == other.path;
                by_path || name.alias.as_deref().is_some_and(|alias| alias == other.label())
            };
            if let Some(other) = seen.iter().copied().find(|other| is_same(other) || is_alias_of(other, name))
            {
                let message = format!("database \"{name}\": has the same name as \"{other}\"");
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            seen.push(name);
        }
        Ok(())
    }

    /// Returns true if a client's name for a database names this one: by its alias, or by its name
    /// with or without tuning.
    pub fn is_meant_by(&self, label: &str) -> bool {
        self.label() == label || self.to_string() == label
    }
}

fn is_alias_of(other: &DatabaseName, name: &DatabaseName) -> bool {
    other.alias.as_deref().is_some_and(|alias| alias == name.label())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, SystemDisk};
    use std::path::Path;
    use std::sync::Arc;

    /// Returns true if a file of this directory is mapped by this process.
    #[cfg(target_os = "linux")]
    fn is_mapped(directory: &Path) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.contains(&format!("{}/", directory.display()))
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn disk_hash_name_can_disable_mapping() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("x.hash");
        let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
        for (tuning, mapped) in [("#map=off", false), ("", true), ("#map=on", true), ("#map=off", false)] {
            let text = format!("{}{tuning}", path.display());
            let db = crate::Db::open(&text).unwrap();
            crate::Records::set(&db, b"key", &[7; 10_000]).unwrap();
            db.sync().unwrap();
            assert_eq!(crate::Records::get(&db, b"key").unwrap(), Some(vec![7; 10_000]));
            assert_eq!(is_mapped(&path), mapped, "{text}");
            drop(db);
            // A server opens the database in the same way.
            let engine = DatabaseName::parse(&text)
                .unwrap()
                .open_engine(Arc::clone(&disk), Default::default())
                .unwrap();
            assert_eq!((engine.status().records, is_mapped(&path)), (1, mapped), "{text}");
        }
    }

    fn check(names: &[&str]) -> Result<()> {
        let names: Vec<DatabaseName> = names.iter().map(|name| DatabaseName::parse(name).unwrap()).collect();
        DatabaseName::expect_distinct(&names)
    }

    #[test]
    fn databases_are_found_by_alias_and_name() {
        let names = ["%#bnum=1", "carts=%", "%"].map(|name| DatabaseName::parse(name).unwrap());
        let number = |label| names.iter().position(|name| name.is_meant_by(label));
        assert_eq!([number("%"), number("%#bnum=1"), number("carts")], [Some(0), Some(0), Some(1)]);
        assert_eq!(number("nope"), None);
    }

    #[test]
    fn duplicate_places_are_refused_except_in_memory() {
        check(&["%", "%", ":", "mem:hash", "a.hash", "a.tree"]).unwrap();
        for names in [["a.hash", "a.hash#bnum=1"], ["x=%", "x=:"], ["a.kch", "x=a.kch"]] {
            let error = check(&names).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(names[1]), "{error}");
        }
        // The result does not depend on the order of the names.
        assert!(check(&["a.hash", "a.hash=b.hash"]).is_err());
        assert!(check(&["a.hash=b.hash", "a.hash"]).is_err());
    }
}
