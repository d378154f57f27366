//! Parses the name of a database: its kind, its path and its tuning.
//!
//! ```text
//! [ALIAS=]DATABASE[#WORD=VALUE]...
//!
//! mem:hash   mem:tree   mem:table   mem:fixed    in memory
//! PATH.hash  PATH.tree  PATH.table  PATH.fixed   on disk
//! : - *      % +                        in memory, Kyoto Cabinet's and Tokyo Cabinet's names
//! PATH.kch PATH.kcd PATH.tch PATH.hdb   on disk, unordered
//! PATH.kct PATH.kcf PATH.tcb PATH.bdb   on disk, ordered by key
//! PATH.tct PATH.tdb                     on disk, rows of columns
//! PATH.tcf PATH.fdb                     on disk, records of numbers
//! cassandra://HOST,HOST/KEYSPACE        on a cluster (`cluster_name`)
//! ```

use super::cluster_name::ClusterName;
use super::contents::expect_kind;
use super::engine::{DatabaseKind, DatabaseStorage};
use super::tuning_words::{TuningWord, nearest, without_secrets};
use crate::disk::Disk;
use crate::table::{IndexChange, IndexKind, is_indexable_column};
use std::fmt;
use std::path::{Path, PathBuf};
use todana_core::{Error, ErrorKind, Result};
use todana_engine::FixedLayout;

/// The tuning in the name of a database. Tuning words of Kyoto and Tokyo Cabinet that are not
/// listed here are accepted without effect, and reported in [`DatabaseName::notes`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatabaseTuning {
    /// The most records (`capcnt`, `ktcapcnt`, `capnum`). At this limit, a new record evicts
    /// others.
    pub records_max: Option<u64>,
    /// The most bytes (`capsiz`, `ktcapsiz`). At this limit, a new record evicts others. In memory,
    /// the index and unused space count too; on disk, only records count.
    pub bytes_max: Option<u64>,
    /// Values are compressed (`opts=c`, `zcomp=`, Tokyo's `opts=d`, `opts=t`, `ktopts`).
    pub compress: bool,
    /// Ignores the times to live that Kyoto's clients send, and writes values to logs and snapshots
    /// without an expiry (`ktopts=p`).
    pub persistent: bool,
    /// Opens the database for reading only (`mode=r`).
    pub read_only: bool,
    /// The database is emptied when it is opened (`mode` with `t`).
    pub truncate: bool,
    /// The database is not created if it is missing (`mode` with `w` and without `c`).
    pub must_exist: bool,
    /// Reads the files of a hash on disk instead of mapping them (`map=off`). With a mapping, a
    /// failing disk ends the process; without it, the failure is an error. Each read that misses
    /// the cache of 64 MiB costs a system call.
    pub unmapped: bool,
    /// The memory in which the system can cache the files of a hash on disk (`memory`). If they are
    /// longer, the hash reads past the system's cache. `None`: the memory of the machine, or of the
    /// control group if that is less.
    pub memory_bytes: Option<u64>,
    /// The largest length of a value, if the keys are numbers (`width`); `None`: 255.
    pub width: Option<u64>,
    /// The size that Tokyo Cabinet's file of numbered records would have at most (`limsiz`), which
    /// determines the largest number; `None`: 256 MiB.
    pub size_max: Option<u64>,
    /// The indexes that a table has after it is opened, each as its column and its kind
    /// (`idx=COLUMN:KIND`). An index that exists on a column is kept.
    pub indexes: Vec<(String, IndexKind)>,
    /// Each key has one value, also in a tree, as in Tokyo Cabinet's database in memory `+`
    /// ([`DatabaseName::parse_as_original`]).
    pub single_values: bool,
}

impl DatabaseTuning {
    /// Returns the lengths and numbers of a new database of numbered records.
    pub(super) fn fixed_layout(&self) -> FixedLayout {
        const HEAD: u64 = 256;
        let (width, size_max) = (self.width.unwrap_or(255), self.size_max.unwrap_or(256 << 20));
        // Tokyo Cabinet stores the length of a value in as few bytes as the width allows.
        let len_bytes = match width {
            0..=0xFF => 1,
            0x100..=0xFFFF => 2,
            _ => 4,
        };
        let number_max = size_max.saturating_sub(HEAD) / (width + len_bytes);
        FixedLayout { width: width as usize, number_max: number_max.max(1) }
    }
}

/// The parsed name of a database.
///
/// ```
/// use todana::{DatabaseKind, DatabaseName};
///
/// let name = DatabaseName::parse("carts=/var/lib/carts.kct#bnum=1000000#opts=c")?;
/// assert_eq!((name.kind, name.alias.as_deref()), (DatabaseKind::DiskTree, Some("carts")));
/// assert_eq!(name.path.as_deref(), Some(std::path::Path::new("/var/lib/carts.kct")));
/// assert!(name.tuning.compress);
/// assert_eq!(name.notes, ["bnum=1000000 has no effect"]);
/// assert!(DatabaseName::parse("carts.txt").is_err());
/// # Ok::<(), todana::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseName {
    /// The alias, by which clients of a server select the database.
    pub alias: Option<String>,
    /// The kind of the database.
    pub kind: DatabaseKind,
    /// The path of a database on disk.
    pub path: Option<PathBuf>,
    /// The place and the settings of a database on a cluster.
    pub cluster: Option<Box<ClusterName>>,
    /// The tuning.
    pub tuning: DatabaseTuning,
    /// Notes about words that were accepted but have no effect.
    pub notes: Vec<String>,
    /// Warnings about words that were ignored and may be mistakes
    /// ([`DatabaseName::parse_as_original`]).
    pub warnings: Vec<String>,
    text: Box<str>,
}

impl fmt::Display for DatabaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl DatabaseName {
    /// Parses a name. Fails with `Invalid` if the name has no kind or contains an unknown word
    /// after `#`. Also fails if the tuning requires something unsupported, and ignoring that would
    /// change the meaning of the database.
    ///
    /// ```
    /// use todana::DatabaseName;
    ///
    /// let error = DatabaseName::parse("*#capcn=9").unwrap_err();
    /// assert!(error.to_string().ends_with("capcn: unknown word; did you mean capcnt?"));
    /// ```
    pub fn parse(text: &str) -> Result<DatabaseName> {
        DatabaseName::read(text, false)
    }

    /// Parses a name as the original servers do. Ignores unknown words, a compressor without
    /// `opts=c`, and compression of a kind that cannot compress. Reports each of them in
    /// [`DatabaseName::warnings`]. In `+`, each key has one value.
    pub fn parse_as_original(text: &str) -> Result<DatabaseName> {
        DatabaseName::read(text, true)
    }

    fn read(given: &str, is_lenient: bool) -> Result<DatabaseName> {
        let text = &*without_secrets(given);
        let mut words = given.split('#');
        let first = words.next().unwrap_or_default();
        let (alias, database) = match first.split_once('=') {
            Some((alias, database)) if is_alias(alias) => (Some(alias.to_owned()), database),
            _ => (None, first),
        };
        if ClusterName::is_meant_by(database) {
            return DatabaseName::read_cluster(text, alias, database, words);
        }
        let mut asked = NameSettings { kind: kind_of(database), ..NameSettings::default() };
        for word in words.filter(|word| !word.is_empty()) {
            match asked.tune(database, word, is_lenient) {
                Err(wrong) if is_lenient && wrong.is_slip => asked.warnings.push(wrong.text),
                Err(wrong) => {
                    let message = format!("database \"{text}\": {}", wrong.text);
                    return Err(Error::new(ErrorKind::Invalid, message));
                }
                Ok(()) => {}
            }
        }
        if is_lenient {
            asked.forget_compression();
            asked.tuning.single_values = database == "+";
        }
        let NameSettings { kind, mut tuning, mut notes, warnings, has_compressor, .. } = asked;
        let (kind, path) = kind.ok_or_else(|| unknown(text, database))?;
        tuning.compress |= has_compressor;
        if tuning.unmapped && kind.storage() == DatabaseStorage::FilesAndLog {
            let message =
                format!("database \"{text}\": a tree on disk is always mapped; map=off is only for a hash");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if tuning.unmapped && kind.storage() != DatabaseStorage::Files {
            tuning.unmapped = false;
            notes.push("map=off has no effect".into());
        }
        if kind.storage() != DatabaseStorage::Files
            && let Some(bytes) = tuning.memory_bytes.take()
        {
            notes.push(format!("memory={bytes} has no effect"));
        }
        if !kind.is_numbered() {
            let without_effect = [("width", &mut tuning.width), ("limsiz", &mut tuning.size_max)];
            for (word, value) in without_effect {
                notes.extend(value.take().map(|value| format!("{word}={value} has no effect")));
            }
        }
        if !kind.is_table() && !std::mem::take(&mut tuning.indexes).is_empty() {
            notes.push("idx has no effect".into());
        }
        Ok(DatabaseName { alias, kind, path, cluster: None, tuning, notes, warnings, text: text.into() })
    }

    /// Parses the name of a database on a cluster. A mistake is never ignored, because the original
    /// servers have no such databases.
    fn read_cluster<'w>(
        text: &str,
        alias: Option<String>,
        database: &str,
        words: impl Iterator<Item = &'w str>,
    ) -> Result<DatabaseName> {
        let invalid =
            |problem: String| Error::new(ErrorKind::Invalid, format!("database \"{text}\": {problem}"));
        let mut cluster = ClusterName::parse(database).map_err(invalid)?;
        let mut has_ttl = false;
        for word in words.filter(|word| !word.is_empty()) {
            has_ttl |= word.starts_with("ttl=");
            cluster.tune(word).map_err(invalid)?;
        }
        if has_ttl && cluster.cache_bytes.is_none() {
            return Err(invalid("ttl: needs cache=SIZE, because only the near cache has this time".into()));
        }
        Ok(DatabaseName {
            alias,
            kind: DatabaseKind::Cluster,
            path: None,
            cluster: Some(Box::new(cluster)),
            tuning: DatabaseTuning::default(),
            notes: Vec::new(),
            warnings: Vec::new(),
            text: text.into(),
        })
    }

    /// Fails with `Invalid` if the path is a directory of Kyoto Cabinet (`.kcd`, `.kcf`). Otherwise
    /// the files of two formats would be mixed there, and the old records would seem lost.
    fn expect_not_kyoto_cabinets(&self) -> Result<()> {
        match &self.path {
            Some(path) if path.join("__KCDIR__").exists() => {
                let message = format!(
                    "database \"{self}\": {} is a database of Kyoto Cabinet, which cannot be opened; give another name, and copy its \
                     records with `kcpolymgr dump` and `todana load`",
                    path.display()
                );
                Err(Error::new(ErrorKind::Invalid, message))
            }
            _ => Ok(()),
        }
    }

    /// Fails with `Invalid` if the path of a database on disk holds something else: another kind of
    /// database, a backup, or foreign files.
    pub fn expect_own_kind(&self, disk: &dyn Disk) -> Result<()> {
        self.expect_not_kyoto_cabinets()?;
        match (self.kind, &self.path) {
            (kind, Some(path)) if !kind.is_in_memory() => expect_kind(disk, path, kind),
            _ => Ok(()),
        }
    }

    /// Returns the name of the same database at another path.
    pub fn at(&self, path: &Path) -> DatabaseName {
        DatabaseName { path: Some(path.into()), ..self.clone() }
    }

    /// Returns the name without alias and tuning.
    pub fn asked(&self) -> &str {
        let base = self.text.split('#').next().unwrap_or_default();
        self.alias.as_ref().map_or(base, |alias| &base[alias.len() + 1..])
    }

    /// Returns the name that identifies the database among several: its alias, or its name without
    /// tuning if it has no alias.
    pub fn label(&self) -> &str {
        self.alias.as_deref().unwrap_or_else(|| self.text.split('#').next().unwrap_or_default())
    }
}

/// Returns true if the text before `=` is an alias. A path that contains `=`, such as `x=y/b.hash`,
/// can be written as `./x=y/b.hash`.
fn is_alias(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

/// Returns true if a path has an ending of Tokyo Cabinet. The case of an ending does not matter.
fn is_tokyo_cabinets_file(path: &str) -> bool {
    const ENDINGS: [&str; 8] = ["tch", "hdb", "tcb", "bdb", "tct", "tdb", "tcf", "fdb"];
    let ending = path.trim_end_matches('/').rsplit_once('.').map_or("", |(_, ending)| ending);
    ENDINGS.iter().any(|other| other.eq_ignore_ascii_case(ending))
}

fn kind_of(database: &str) -> Option<(DatabaseKind, Option<PathBuf>)> {
    // A shell's completion appends a slash to the name of a directory.
    let database = database.trim_end_matches('/');
    DatabaseKind::of_database(database).map(|kind| (kind, path_of(kind, database)))
}

/// Returns the path of a database of this kind, if it is on disk.
fn path_of(kind: DatabaseKind, database: &str) -> Option<PathBuf> {
    (!kind.is_in_memory()).then(|| PathBuf::from(database))
}

/// The reason why a word is refused. `is_slip` is true if the original servers ignore the word.
struct WrongWord {
    text: String,
    is_slip: bool,
}

/// The effects of the words that have been parsed.
#[derive(Default)]
struct NameSettings {
    kind: Option<(DatabaseKind, Option<PathBuf>)>,
    tuning: DatabaseTuning,
    /// True if a compressor is named. Without `opts=c`, the original servers do not compress.
    has_compressor: bool,
    notes: Vec<String>,
    warnings: Vec<String>,
}

impl NameSettings {
    fn tune(&mut self, database: &str, word: &str, is_lenient: bool) -> std::result::Result<(), WrongWord> {
        let refuse = |text: String| Err(WrongWord { text, is_slip: false });
        let slip = |text: String| Err(WrongWord { text, is_slip: true });
        let Some((key, value)) = word.split_once('=') else {
            return slip(format!("{word}: must have the form NAME=VALUE"));
        };
        // Tokyo Cabinet ignores the case of its words.
        let lower = key.to_ascii_lowercase();
        let is_tokyos = is_lenient && matches!(TuningWord::of(&lower), TuningWord::Meant | TuningWord::Idle);
        let key = if is_tokyos { &*lower } else { key };
        match TuningWord::of(key) {
            // Tokyo Cabinet has these limits in memory only.
            TuningWord::Meant if matches!(key, "capnum" | "capsiz") && is_tokyo_cabinets_file(database) => {
                self.notes.push(format!("{key}={value} has no effect"));
                return Ok(());
            }
            TuningWord::Meant => {}
            TuningWord::Idle => {
                self.notes.push(format!("{key}={value} has no effect"));
                return Ok(());
            }
            TuningWord::Secret => {
                return refuse(format!("{key}: encryption is not supported"));
            }
            TuningWord::Unknown(Some(near)) => {
                return slip(format!("{key}: unknown word; did you mean {near}?"));
            }
            TuningWord::Unknown(None) => return slip(format!("{key}: unknown word")),
        }
        let number = || {
            let wrong = || WrongWord { text: format!("{key}={value}: must be a number"), is_slip: false };
            size(value).ok_or_else(wrong)
        };
        let tuning = &mut self.tuning;
        match key {
            "type" => match DatabaseKind::of_type(value) {
                Some(kind) => self.kind = Some((kind, path_of(kind, database))),
                None => return slip(format!("type={value}: unknown type")),
            },
            "opts" | "options" => tuning.compress |= value.contains(['c', 'd', 'b', 't']),
            "width" => {
                let width = Some(number()?).filter(|&width| width > 0);
                if width > Some(WIDTH_MAX) {
                    return refuse(format!("width={value}: must be at most {WIDTH_MAX}"));
                }
                tuning.width = width;
            }
            "idx" => match value
                .rsplit_once(':')
                .map(|(column, kind)| (column, IndexChange::parse(kind.as_bytes())))
            {
                Some((column, Some(_))) if !is_indexable_column(column.as_bytes()) => {
                    return refuse(format!("idx={value}: the name of the column is reserved"));
                }
                Some((column, Some(IndexChange::Create(kind) | IndexChange::CreateNew(kind)))) => {
                    tuning.indexes.push((column.into(), kind));
                }
                _ => return slip(format!("idx={value}: must have the form COLUMN:KIND")),
            },
            "limsiz" => tuning.size_max = Some(number()?).filter(|&size| size > 0),
            "ktopts" | "ktoptions" => tuning.persistent |= value.contains('p'),
            "zcomp" | "compressor" => match value {
                "zstd" => self.has_compressor = true,
                "arc" => {
                    return refuse(format!("{key}=arc: encryption is not supported"));
                }
                "zlib" | "def" | "gz" | "lzo" | "lzma" => {
                    self.has_compressor = true;
                    return slip(format!(
                        "{key}={value}: values are compressed with zstd; write {key}=zstd or opts=c"
                    ));
                }
                _ => {
                    let near = nearest(value, ["zstd", "zlib", "lzma"].into_iter());
                    let hint = near.map_or("write zstd".into(), |near| format!("did you mean {near}?"));
                    return slip(format!("{key}={value}: unknown compressor; {hint}"));
                }
            },
            "mode" => {
                let asks = |letter| value.contains(letter);
                tuning.read_only = asks('r') && !asks('w');
                tuning.must_exist = !asks('c');
                tuning.truncate = asks('t');
            }
            // Keys can only be ordered by their bytes. If the word were ignored, the order would
            // differ silently, so it is refused.
            "rcomp" | "comparator" if !matches!(value, "lex" | "lexical") => {
                return refuse(format!(
                    "{key}={value}: keys are ordered by their bytes; a program can choose another order with KeyOrder"
                ));
            }
            "rcomp" | "comparator" => {}
            "map" if matches!(value, "on" | "off") => tuning.unmapped = value == "off",
            // This is Kyoto Cabinet's longer name for `msiz`.
            "map" if size(value).is_some() => self.notes.push(format!("{key}={value} has no effect")),
            "map" => return refuse(format!("map={value}: must be on or off")),
            "memory" => tuning.memory_bytes = Some(number()?),
            "erase" => tuning.truncate |= value == "true",
            // The original servers accept any word that contains `siz`.
            capacity if capacity.contains("siz") => tuning.bytes_max = Some(number()?).filter(|&max| max > 0),
            _ => tuning.records_max = Some(number()?).filter(|&max| max > 0),
        }
        Ok(())
    }

    /// Removes compression that has no effect: the original servers ignore a compressor without
    /// `opts=c`, and this server ignores compression of a kind that cannot compress.
    fn forget_compression(&mut self) {
        if std::mem::take(&mut self.has_compressor) && !self.tuning.compress {
            self.warnings.push("zcomp has no effect without opts=c".into());
        }
        let can_be = self.kind.as_ref().is_some_and(|(kind, _)| kind.can_compress());
        if self.tuning.compress && !can_be {
            self.tuning.compress = false;
            self.warnings.push(
                "opts=c has no effect: only ordered databases in memory and hashes on disk are compressed"
                    .into(),
            );
        }
    }
}

/// The largest length of a value in any engine.
const WIDTH_MAX: u64 = 1 << 30;

/// Parses a number, which may have a suffix for a multiple: k, m, g, t, p, e by powers of 1024.
pub(super) fn size(text: &str) -> Option<u64> {
    let shift = match text.bytes().last()?.to_ascii_lowercase() {
        b'k' => 10,
        b'm' => 20,
        b'g' => 30,
        b't' => 40,
        b'p' => 50,
        b'e' => 60,
        _ => return text.parse().ok(),
    };
    text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn unknown(text: &str, database: &str) -> Error {
    let message = if database.ends_with(".kcx") {
        format!(
            "database \"{text}\": text files cannot be opened; store their lines as records of a PATH.kct"
        )
    } else {
        format!(
            "database \"{text}\": must be mem:hash, mem:tree, mem:table, mem:fixed, PATH.hash, PATH.tree, \
             PATH.table, PATH.fixed or cassandra://HOST/KEYSPACE, or a name of Kyoto Cabinet or Tokyo Cabinet"
        )
    };
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kyoto_cabinet_directory_is_refused_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["casket.kcd", "casket.kcf"] {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("__KCDIR__"), "64\n").unwrap();
            let Err(error) = crate::Db::open(path.to_str().unwrap()) else { panic!("{name} was opened") };
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("kcpolymgr dump"), "{error}");
            assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1, "{name}");
        }
        // A directory that this program created with such a name is opened again.
        let path = folder.path().join("new.kcd");
        for _ in 0..2 {
            crate::Db::open(path.to_str().unwrap()).unwrap();
        }
    }

    #[test]
    fn every_name_of_the_originals_says_its_kind() {
        for (names, kind) in [
            (&["mem:hash", ":", "-", "*"][..], DatabaseKind::MemHash),
            (&["mem:tree", "%", "+"], DatabaseKind::MemTree),
            (&["a.hash", "/b/a.kch", "a.kcd", "a.tch", "a.hdb", "a.TCH"], DatabaseKind::DiskHash),
            (&["a.tree", "./a.kct", "a.kcf", "a.tcb", "a.bdb"], DatabaseKind::DiskTree),
            (&["mem:table"], DatabaseKind::MemTable),
            (&["a.table", "a.tct", "a.tdb"], DatabaseKind::DiskTable),
            (&["mem:fixed"], DatabaseKind::MemFixed),
            (&["a.fixed", "a.tcf", "a.fdb"], DatabaseKind::DiskFixed),
        ] {
            for name in names {
                let parsed = DatabaseName::parse(name).unwrap();
                assert_eq!((parsed.kind, parsed.to_string().as_str()), (kind, *name));
                let is_path = name.contains('.');
                assert_eq!(parsed.path, is_path.then(|| PathBuf::from(name)));
            }
        }
    }

    #[test]
    fn meaningful_tuning_applies_the_rest_is_noted() {
        let name = DatabaseName::parse("*#bnum=10000#capcnt=5k#capsiz=64m#opts=ls#msiz=1g").unwrap();
        let tuning = DatabaseTuning {
            records_max: Some(5120),
            bytes_max: Some(64 << 20),
            ..DatabaseTuning::default()
        };
        assert_eq!(name.tuning, tuning);
        assert_eq!(name.notes, ["bnum=10000 has no effect", "msiz=1g has no effect"]);
        assert_eq!(DatabaseName::parse("*#capnum=0").unwrap().tuning, DatabaseTuning::default());
        assert!(
            DatabaseName::parse("%#opts=c").unwrap().tuning.compress
                && DatabaseName::parse("%#zcomp=zstd").unwrap().tuning.compress
        );
        let by_type = |text| DatabaseName::parse(text).map(|name| (name.kind, name.path));
        assert_eq!(by_type("x.kch#type=%"), Ok((DatabaseKind::MemTree, None)));
        assert_eq!(by_type("abc#type=:"), Ok((DatabaseKind::MemHash, None)));
        assert_eq!(by_type("x#type=kct"), Ok((DatabaseKind::DiskTree, Some("x".into()))));
        let read = DatabaseName::parse("x.kch#mode=r").unwrap().tuning;
        assert!(read.read_only && read.must_exist && !read.truncate);
        let fresh = DatabaseName::parse("x.kch#mode=wct").unwrap().tuning;
        assert!(!fresh.read_only && !fresh.must_exist && fresh.truncate);
    }

    #[test]
    fn width_and_limsiz_determine_numbers_as_originally() {
        let layout = |text| DatabaseName::parse(text).unwrap().tuning.fixed_layout();
        for (text, width, number_max) in [
            ("x.tcf", 255, 1_048_575),
            ("x.fdb#width=16", 16, 15_790_305),
            ("mem:fixed#width=300#limsiz=1m", 300, 3471),
            ("x.fixed#width=0#limsiz=0", 255, 1_048_575),
            ("x.fixed#width=8#limsiz=1", 8, 1),
        ] {
            assert_eq!(layout(text), FixedLayout { width, number_max }, "{text}");
        }
        let name = DatabaseName::parse("x.tch#width=8#limsiz=1k").unwrap();
        assert_eq!((name.tuning, name.notes.len()), (DatabaseTuning::default(), 2));
        assert!(DatabaseName::parse("x.fixed#width=2g").is_err());
    }

    #[test]
    fn indexes_have_columns_and_kinds() {
        let name = DatabaseName::parse("x.tct#idx=a:b:dec#idx=:LEXICAL").unwrap();
        let indexes = vec![("a:b".into(), IndexKind::Decimal), ("".into(), IndexKind::Lexical)];
        assert_eq!((name.tuning.indexes, name.notes.len()), (indexes, 0));
        assert!(DatabaseName::parse("x.table#idx=age").is_err());
        assert!(DatabaseName::parse("x.table#idx=age:VOID").is_err());
        for parse in [DatabaseName::parse, DatabaseName::parse_as_original] {
            let error = parse("x.table#idx=\u{1}numbers:dec").unwrap_err().to_string();
            assert!(error.contains("idx=\u{1}numbers:dec: the name of the column is reserved"), "{error}");
        }
        let lenient = DatabaseName::parse_as_original("x.tct#idx=age").unwrap();
        assert_eq!(lenient.warnings, ["idx=age: must have the form COLUMN:KIND"]);
        assert_eq!(DatabaseName::parse("x.tcb#idx=age:dec").unwrap().notes, ["idx has no effect"]);
    }

    /// `x.tct#capnum=1000` is accepted without effect by Tokyo Tyrant, but removed rows here.
    #[test]
    fn limits_of_tokyo_cabinets_files_are_noted() {
        for ending in ["tch", "hdb", "tcb", "bdb", "tct", "tdb", "tcf", "fdb", "TCT"] {
            let text = format!("x.{ending}#capnum=10#capsiz=1k");
            let name = DatabaseName::parse_as_original(&text).unwrap();
            assert_eq!((name.tuning.records_max, name.tuning.bytes_max), (None, None), "{text}");
            assert_eq!(name.notes, ["capnum=10 has no effect", "capsiz=1k has no effect"], "{text}");
        }
        for text in ["x.tct#capcnt=10#ktcapsiz=1k", "x.table#capnum=10#capsiz=1k", "+#capnum=10#capsiz=1k"] {
            let name = DatabaseName::parse(text).unwrap();
            assert_eq!((name.tuning.records_max, name.tuning.bytes_max), (Some(10), Some(1024)), "{text}");
        }
    }

    #[test]
    fn original_names_and_words_ignore_case() {
        let name = DatabaseName::parse_as_original("x.TCF#WIDTH=8#BNUM=1#Limsiz=1k#apow=2").unwrap();
        assert_eq!(
            (name.kind, name.tuning.width, name.tuning.size_max),
            (DatabaseKind::DiskFixed, Some(8), Some(1024))
        );
        assert_eq!(name.notes, ["bnum=1 has no effect", "apow=2 has no effect"]);
    }

    #[test]
    fn tuning_goes_by_its_longer_names_too() {
        let tuning = |text: &str| DatabaseName::parse(text).unwrap().tuning;
        for (short, long) in [
            ("*#capcnt=5k#capsiz=64m", "*#capcount=5k#capsize=64m"),
            ("*#ktcapcnt=5k#ktcapsiz=64m", "*#ktcap_count=5k#ktcap_size=64m"),
            ("%#opts=c#zcomp=zstd#ktopts=p", "%#options=c#compressor=zstd#ktoptions=p"),
            ("%#rcomp=lex", "%#comparator=lexical"),
        ] {
            assert_eq!(tuning(short), tuning(long), "{long}");
            assert!(DatabaseName::parse(long).unwrap().notes.is_empty(), "{long}");
        }
        assert!(DatabaseName::parse("%#comparator=decimal").is_err());
    }

    /// The misspelt `#capcn=9` once set no limit and reported no error.
    #[test]
    fn unknown_word_is_refused_with_the_nearest() {
        for (text, told) in [
            ("*#capcn=9", "capcn: unknown word; did you mean capcnt?"),
            ("*#Capsiz=1m", "Capsiz: unknown word; did you mean capsiz?"),
            ("*#ktcapsize2=1m", "ktcapsize2: unknown word; did you mean ktcapsize?"),
            ("x.hash#wholly=1", "wholly: unknown word"),
            ("*#capcnt", "capcnt: must have the form NAME=VALUE"),
            ("x.hash#zcomp=lzma", "zcomp=lzma: values are compressed with zstd; write zcomp=zstd or opts=c"),
            ("x.hash#zcomp=zst", "zcomp=zst: unknown compressor; did you mean zstd?"),
            ("x#type=kcz", "type=kcz: unknown type"),
        ] {
            let error = DatabaseName::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert_eq!(error.to_string(), format!("database \"{text}\": {told}"));
        }
    }

    #[test]
    fn original_passes_unknown_words_over() {
        let parse = |text| DatabaseName::parse_as_original(text).unwrap();
        let name = parse("*#capcn=9#capsiz=1m#capcnt");
        let tuning = DatabaseTuning { bytes_max: Some(1 << 20), ..DatabaseTuning::default() };
        assert_eq!(name.tuning, tuning);
        assert_eq!(
            name.warnings,
            ["capcn: unknown word; did you mean capcnt?", "capcnt: must have the form NAME=VALUE"]
        );
        // In the original servers, too, a compressor without `opts=c` does not compress, and a kind
        // that cannot compress accepts the word.
        for (text, compresses, warnings) in [
            ("t.kct#zcomp=def", false, 2),
            ("t.kct#opts=c", false, 1),
            (":#opts=lc", false, 1),
            ("%#opts=c", true, 0),
            ("x.kch#opts=c#zcomp=lzma", true, 1),
        ] {
            let name = parse(text);
            assert_eq!((name.tuning.compress, name.warnings.len()), (compresses, warnings), "{text}");
        }
        assert!(DatabaseName::parse_as_original("%#rcomp=dec").is_err());
    }

    /// The original encrypts a database whose name has a key. Accepting the name would store the
    /// records in clear text.
    #[test]
    fn encryption_is_refused_and_its_key_concealed() {
        for text in [
            "e.kch#opts=c#zcomp=arc#zkey=hush",
            "e.kch#zkey=hush",
            "e.kch#rcomp=dec#pass=hush",
            "e.kch#zkey=hush#capcn=1",
        ] {
            for parse in [DatabaseName::parse, DatabaseName::parse_as_original] {
                let error = parse(text).unwrap_err().to_string();
                assert!(!error.contains("hush"), "{error}");
            }
        }
        let error = DatabaseName::parse_as_original("e.kch#zcomp=arc").unwrap_err().to_string();
        assert!(error.contains("encryption"), "{error}");
    }

    #[test]
    fn only_disk_hash_can_do_without_mapping() {
        assert!(DatabaseName::parse("x.hash#map=off").unwrap().tuning.unmapped);
        assert!(!DatabaseName::parse("x.hash#map=on").unwrap().tuning.unmapped);
        assert_eq!(DatabaseName::parse(":#map=off").unwrap().notes, ["map=off has no effect"]);
        for name in ["x.tree#map=off", "x.hash#map=no"] {
            assert_eq!(DatabaseName::parse(name).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }

    #[test]
    fn memory_of_the_system_is_for_disk_hash() {
        assert_eq!(DatabaseName::parse("x.hash#memory=2g").unwrap().tuning.memory_bytes, Some(2 << 30));
        let tree = DatabaseName::parse("x.tree#memory=100").unwrap();
        assert_eq!(
            (tree.tuning.memory_bytes, &tree.notes[..]),
            (None, &["memory=100 has no effect".into()][..])
        );
        assert!(DatabaseName::parse("x.hash#memory=much").is_err());
    }

    #[test]
    fn trailing_slash_changes_nothing() {
        for name in ["./x.tree/", "./x.tree//", "./x.tree/#bnum=1"] {
            let parsed = DatabaseName::parse(name).unwrap();
            let path = parsed.path.unwrap();
            assert_eq!((parsed.kind, path.to_str()), (DatabaseKind::DiskTree, Some("./x.tree")));
        }
        assert!(DatabaseName::parse("dir/.tree/").is_err());
    }

    #[test]
    fn meaningless_names_are_refused_by_name() {
        for name in
            ["", "x", "x.txt", ".hash", "dir/.tree", "x.kch#capcnt=many", "%#rcomp=dec", "x.kch#type=z"]
        {
            let error = DatabaseName::parse(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().starts_with(&format!("database \"{name}\": ")), "{error}");
        }
    }

    #[test]
    fn an_alias_is_a_plain_word() {
        let name = DatabaseName::parse("sessions=%#capcnt=10").unwrap();
        assert_eq!(
            (name.alias.as_deref(), name.label(), name.kind),
            (Some("sessions"), "sessions", DatabaseKind::MemTree)
        );
        let path = DatabaseName::parse("./a=b.hash").unwrap();
        assert_eq!((path.alias.as_deref(), path.label()), (None, "./a=b.hash"));
    }
}
