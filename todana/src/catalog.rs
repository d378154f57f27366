//! Several databases that one server has, by number and by name.

use crate::{Database, Name};
use std::path::Path;
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};

/// The databases of a server, in the order in which they were named. There is at least one.
pub struct Catalog {
    entries: Vec<CatalogEntry>,
}

/// A database of several.
pub struct CatalogEntry {
    /// The name that it was opened by.
    pub name: Name,
    /// The database.
    pub database: Arc<Database>,
}

impl Catalog {
    /// The databases in this order. Fails with `Invalid` where there is none, and as [`check`](Self::check) does.
    pub fn new(entries: Vec<CatalogEntry>) -> Result<Catalog> {
        if entries.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "no database is named"));
        }
        Catalog::check(entries.iter().map(|entry| &entry.name))?;
        Ok(Catalog { entries })
    }

    /// Fails with `Invalid` if two databases would lie in the same place, or be found by the same alias.
    ///
    /// ```
    /// use todana::{Catalog, Name};
    ///
    /// let names = ["mem:hash", "%", "carts=./carts.tree"].map(|name| Name::parse(name).unwrap());
    /// assert!(Catalog::check(&names).is_ok());
    /// let twice = ["a.hash", "b=a.hash"].map(|name| Name::parse(name).unwrap());
    /// assert!(Catalog::check(&twice).is_err());
    /// ```
    pub fn check<'n>(names: impl IntoIterator<Item = &'n Name>) -> Result<()> {
        let mut seen: Vec<&Name> = Vec::new();
        for name in names {
            let is_same = |other: &&Name| {
                let by_path = on_disk(name).is_some() && on_disk(name) == on_disk(other);
                by_path || name.alias.as_deref().is_some_and(|alias| alias == other.label())
            };
            if let Some(other) = seen.iter().copied().find(|other| is_same(other) || is_alias_of(other, name))
            {
                let message = format!("databases \"{other}\" and \"{name}\" cannot be told apart");
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            seen.push(name);
        }
        Ok(())
    }

    /// How many there are.
    #[allow(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// By number, from 0 on.
    pub fn get(&self, number: usize) -> Option<&CatalogEntry> {
        self.entries.get(number)
    }

    /// By alias, or by the name as it was given, with or without its tuning; the first one of several.
    pub fn find(&self, label: &str) -> Option<&CatalogEntry> {
        self.number(label).and_then(|number| self.get(number))
    }

    /// The number of what `find` finds.
    pub fn number(&self, label: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.name.label() == label || entry.name.to_string() == label)
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, CatalogEntry> {
        self.entries.iter()
    }
}

fn is_alias_of(other: &Name, name: &Name) -> bool {
    other.alias.as_deref().is_some_and(|alias| alias == name.label())
}

fn on_disk(name: &Name) -> Option<&Path> {
    name.path.as_deref().filter(|_| !name.kind.is_in_memory())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a file of this directory is shown in this process's memory.
    #[cfg(target_os = "linux")]
    fn is_mapped(directory: &Path) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.contains(&format!("{}/", directory.display()))
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_hash_on_disk_is_not_mapped_where_its_name_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("x.hash");
        let disk: Arc<dyn crate::disk::Disk> = Arc::new(crate::disk::SystemDisk);
        for (tuning, mapped) in [("#map=off", false), ("", true), ("#map=on", true), ("#map=off", false)] {
            let text = format!("{}{tuning}", path.display());
            let db = crate::Db::open(&text).unwrap();
            crate::Records::set(&db, b"key", &[7; 10_000]).unwrap();
            db.sync().unwrap();
            assert_eq!(crate::Records::get(&db, b"key").unwrap(), Some(vec![7; 10_000]));
            assert_eq!(is_mapped(&path), mapped, "{text}");
            drop(db);
            // So it is for a server.
            let engine =
                Name::parse(&text).unwrap().open_engine(Arc::clone(&disk), Default::default()).unwrap();
            assert_eq!((engine.status().records, is_mapped(&path)), (1, mapped), "{text}");
        }
    }

    fn check(names: &[&str]) -> Result<()> {
        let names: Vec<Name> = names.iter().map(|name| Name::parse(name).unwrap()).collect();
        Catalog::check(&names)
    }

    #[test]
    fn databases_are_found_by_number_alias_and_name() {
        let entry = |name: &str| {
            let name = Name::parse(name).unwrap();
            let engine = todana_engine::MemTree::new(todana_engine::MemTreeOptions::default()).unwrap();
            CatalogEntry {
                name,
                database: Arc::new(Database::new(Box::new(engine), Arc::new(crate::SystemClock))),
            }
        };
        let catalog = Catalog::new(["%#bnum=1", "carts=%", "%"].map(entry).into()).unwrap();
        assert_eq!(catalog.len(), 3);
        let number = |label| catalog.number(label);
        assert_eq!([number("%"), number("%#bnum=1"), number("carts")], [Some(0), Some(0), Some(1)]);
        assert_eq!(number("nope"), None);
        assert_eq!(catalog.find("carts").unwrap().name.to_string(), "carts=%");
        assert!(catalog.get(3).is_none());
        assert!(Catalog::new(Vec::new()).is_err());
    }

    #[test]
    fn the_same_place_twice_is_refused_and_memory_has_room_for_many() {
        check(&["%", "%", ":", "mem:hash", "a.hash", "a.tree"]).unwrap();
        for names in [["a.hash", "a.hash#bnum=1"], ["x=%", "x=:"], ["a.kch", "x=a.kch"]] {
            let error = check(&names).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(names[1]), "{error}");
        }
        // Either order.
        assert!(check(&["a.hash", "a.hash=b.hash"]).is_err());
        assert!(check(&["a.hash=b.hash", "a.hash"]).is_err());
    }
}
