//! Names of databases: the kind of a database, its path and its tuning.
//!
//! ```text
//! [ALIAS=]DATABASE[#WORD=VALUE]...
//!
//! mem:hash   mem:tree                   in memory
//! PATH.hash  PATH.tree                  on disk
//! : - *      % +                        in memory, Kyoto Cabinet's and Tokyo Cabinet's names
//! PATH.kch PATH.kcd PATH.tch PATH.tcf   on disk, without an order
//! PATH.kct PATH.kcf PATH.tcb            on disk, in order
//! ```

use super::contents::expect_kind;
use super::engine::{Kind, Storage};
use super::tuning_words::{TuningWord, nearest, without_secrets};
use crate::disk::Disk;
use std::fmt;
use std::path::{Path, PathBuf};
use todana_core::{Error, ErrorKind, Result};

/// The tuning in the name of a database. Other tuning of Kyoto and Tokyo Cabinet has no effect: it
/// is accepted, and reported in [`Name::notes`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// The most records (`capcnt`, `ktcapcnt`, `capnum`). Others are evicted for new ones.
    pub records_max: Option<u64>,
    /// The most bytes (`capsiz`, `ktcapsiz`): of memory including index and slack, or of records on
    /// disk. Others are evicted for new ones.
    pub bytes_max: Option<u64>,
    /// Values are compressed (`opts=c`, `zcomp=`, Tokyo's `opts=d`, `opts=t`, `ktopts`).
    pub compress: bool,
    /// Kyoto's clients' times to live are ignored, and values in logs and snapshots carry none
    /// (`ktopts=p`).
    pub persistent: bool,
    /// Nothing is written (`mode=r`).
    pub read_only: bool,
    /// The database is emptied when it is opened (`mode` with `t`).
    pub truncate: bool,
    /// The database is not created if it is missing (`mode` with `w` and without `c`).
    pub must_exist: bool,
    /// The files of a hash on disk are read instead of mapped (`map=off`). A failing disk is then
    /// an error; with a mapping it ends the process. Reads that miss the cache of 64 MiB cost a
    /// system call.
    pub unmapped: bool,
}

/// The parsed name of a database.
///
/// ```
/// use todana::{Kind, Name};
///
/// let name = Name::parse("carts=/var/lib/carts.kct#bnum=1000000#opts=c")?;
/// assert_eq!((name.kind, name.alias.as_deref()), (Kind::DiskTree, Some("carts")));
/// assert_eq!(name.path.as_deref(), Some(std::path::Path::new("/var/lib/carts.kct")));
/// assert!(name.tuning.compress);
/// assert_eq!(name.notes, ["bnum=1000000 has no meaning here"]);
/// assert!(Name::parse("carts.txt").is_err());
/// # Ok::<(), todana::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The alias of the database among several.
    pub alias: Option<String>,
    /// The kind of the database.
    pub kind: Kind,
    /// The path of a database on disk.
    pub path: Option<PathBuf>,
    /// The tuning.
    pub tuning: Tuning,
    /// Accepted words without effect.
    pub notes: Vec<String>,
    /// Ignored words that may have been meant ([`Name::parse_as_original`]).
    pub warnings: Vec<String>,
    text: String,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Name {
    /// Parses a name. Fails with `Invalid` if the name has no kind, if a word after `#` is unknown,
    /// or if the tuning asks for something that is not supported and would change the meaning of
    /// the database.
    ///
    /// ```
    /// use todana::Name;
    ///
    /// let error = Name::parse("*#capcn=9").unwrap_err();
    /// assert!(error.to_string().ends_with("capcn is not known; did you mean capcnt?"));
    /// ```
    pub fn parse(text: &str) -> Result<Name> {
        Name::read(text, false)
    }

    /// Parses a name as the original servers do: unknown words are ignored, and so are compression
    /// of a kind that has none and a compressor without `opts=c`. Each is reported in
    /// [`Name::warnings`].
    pub fn parse_as_original(text: &str) -> Result<Name> {
        Name::read(text, true)
    }

    fn read(given: &str, is_lenient: bool) -> Result<Name> {
        let text = &*without_secrets(given);
        let mut words = given.split('#');
        let first = words.next().unwrap_or_default();
        let (alias, database) = match first.split_once('=') {
            Some((alias, database)) if is_alias(alias) => (Some(alias.to_owned()), database),
            _ => (None, first),
        };
        let mut asked = Asked { kind: kind_of(database), ..Asked::default() };
        for word in words.filter(|word| !word.is_empty()) {
            match asked.tune(database, word) {
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
        }
        let Asked { kind, mut tuning, mut notes, warnings, has_compressor, .. } = asked;
        let (kind, path) = kind.ok_or_else(|| unknown(text, database))?;
        tuning.compress |= has_compressor;
        if tuning.unmapped && kind.storage() == Storage::FilesAndLog {
            let message =
                format!("database \"{text}\": a tree on disk is always mapped, map=off is for a hash");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if tuning.unmapped && kind.storage() != Storage::Files {
            tuning.unmapped = false;
            notes.push("map=off has no meaning here".into());
        }
        Ok(Name { alias, kind, path, tuning, notes, warnings, text: text.into() })
    }

    /// Fails with `Invalid` if a directory of Kyoto Cabinet (`.kcd`, `.kcf`) is at the path. The
    /// two formats would be mixed there, and the old records would seem lost.
    fn expect_not_kyoto_cabinets(&self) -> Result<()> {
        match &self.path {
            Some(path) if path.join("__KCDIR__").exists() => {
                let message = format!(
                    "database \"{self}\": {} is one of Kyoto Cabinet's, and those are not opened: give another name, and bring its \
                     records over there with `kcpolymgr dump` and `todana load`",
                    path.display()
                );
                Err(Error::new(ErrorKind::Invalid, message))
            }
            _ => Ok(()),
        }
    }

    /// Fails with `Invalid` if something else is at the path of a database on disk: another kind of
    /// database, a backup, or foreign files.
    pub fn expect_own_kind(&self, disk: &dyn Disk) -> Result<()> {
        self.expect_not_kyoto_cabinets()?;
        match (self.kind, &self.path) {
            (kind, Some(path)) if !kind.is_in_memory() => expect_kind(disk, path, kind),
            _ => Ok(()),
        }
    }

    /// Returns the name of the same database at another path.
    pub(crate) fn at(&self, path: &Path) -> Name {
        Name { path: Some(path.into()), ..self.clone() }
    }

    /// Returns the name without alias and tuning.
    pub fn asked(&self) -> &str {
        let base = self.text.split('#').next().unwrap_or_default();
        self.alias.as_ref().map_or(base, |alias| &base[alias.len() + 1..])
    }

    /// Returns the name among several databases: the alias, else the name without tuning.
    pub fn label(&self) -> &str {
        self.alias.as_deref().unwrap_or_else(|| self.text.split('#').next().unwrap_or_default())
    }
}

/// Returns true for an alias. A path such as `x=y/b.hash` can still be written, as `./x=y/b.hash`.
fn is_alias(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

fn kind_of(database: &str) -> Option<(Kind, Option<PathBuf>)> {
    // A shell completes the name of a directory with a slash.
    let database = database.trim_end_matches('/');
    Kind::of_database(database).map(|kind| (kind, path_of(kind, database)))
}

/// Returns the path of a database of this kind, if it is on disk.
fn path_of(kind: Kind, database: &str) -> Option<PathBuf> {
    (!kind.is_in_memory()).then(|| PathBuf::from(database))
}

/// The reason of a refused word. `is_slip`: the originals ignore the word.
struct WrongWord {
    text: String,
    is_slip: bool,
}

/// The requests of a name's words.
#[derive(Default)]
struct Asked {
    kind: Option<(Kind, Option<PathBuf>)>,
    tuning: Tuning,
    /// A compressor is named. Without `opts=c` the originals do not compress.
    has_compressor: bool,
    notes: Vec<String>,
    warnings: Vec<String>,
}

impl Asked {
    fn tune(&mut self, database: &str, word: &str) -> std::result::Result<(), WrongWord> {
        let refuse = |text: String| Err(WrongWord { text, is_slip: false });
        let slip = |text: String| Err(WrongWord { text, is_slip: true });
        let Some((key, value)) = word.split_once('=') else {
            return slip(format!("{word} is no NAME=VALUE"));
        };
        match TuningWord::of(key) {
            TuningWord::Meant => {}
            TuningWord::Idle => {
                self.notes.push(format!("{key}={value} has no meaning here"));
                return Ok(());
            }
            TuningWord::Secret => {
                return refuse(format!("{key} asks for encryption; databases are not encrypted here"));
            }
            TuningWord::Unknown(Some(near)) => {
                return slip(format!("{key} is not known; did you mean {near}?"));
            }
            TuningWord::Unknown(None) => return slip(format!("{key} is not known")),
        }
        let number = || {
            let wrong = || WrongWord { text: format!("{key}={value} is no number"), is_slip: false };
            size(value).ok_or_else(wrong)
        };
        let tuning = &mut self.tuning;
        match key {
            "type" => match Kind::of_type(value) {
                Some(kind) => self.kind = Some((kind, path_of(kind, database))),
                None => return slip(format!("there is no type {value}")),
            },
            "opts" | "options" => tuning.compress |= value.contains(['c', 'd', 't']),
            "ktopts" | "ktoptions" => tuning.persistent |= value.contains('p'),
            "zcomp" | "compressor" => match value {
                "zstd" => self.has_compressor = true,
                "arc" => {
                    return refuse(format!(
                        "{key}=arc asks for encryption; databases are not encrypted here"
                    ));
                }
                "zlib" | "def" | "gz" | "lzo" | "lzma" => {
                    self.has_compressor = true;
                    return slip(format!(
                        "{key}={value}: values are compressed by zstd; write {key}=zstd or opts=c"
                    ));
                }
                _ => {
                    let near = nearest(value, ["zstd", "zlib", "lzma"].into_iter());
                    let hint = near.map_or("write zstd".into(), |near| format!("did you mean {near}?"));
                    return slip(format!("{key}={value}: there is no such compressor; {hint}"));
                }
            },
            "mode" => {
                let asks = |letter| value.contains(letter);
                tuning.read_only = asks('r') && !asks('w');
                tuning.must_exist = !asks('c');
                tuning.truncate = asks('t');
            }
            // Other orders of the keys than that of their bytes are not supported, and ignoring the
            // word would be worse than refusing it.
            "rcomp" | "comparator" if !matches!(value, "lex" | "lexical") => {
                return refuse(format!(
                    "keys are kept in the order of their bytes, not {key}={value}; a program stores them in another order by KeyOrder"
                ));
            }
            "rcomp" | "comparator" => {}
            "map" if matches!(value, "on" | "off") => tuning.unmapped = value == "off",
            // Kyoto Cabinet's longer name for `msiz`.
            "map" if size(value).is_some() => self.notes.push(format!("{key}={value} has no meaning here")),
            "map" => return refuse(format!("map={value} is neither map=on nor map=off")),
            "erase" => tuning.truncate |= value == "true",
            // The originals accept the longer names, too.
            capacity if capacity.contains("siz") => tuning.bytes_max = Some(number()?).filter(|&max| max > 0),
            _ => tuning.records_max = Some(number()?).filter(|&max| max > 0),
        }
        Ok(())
    }

    /// A compressor without `opts=c` has no effect in the originals, and a kind without compression
    /// is served uncompressed here.
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

/// Parses a number, which may have a suffix of Kyoto's for a multiple: k, m, g, t by 1024.
fn size(text: &str) -> Option<u64> {
    let shift = match text.bytes().last()?.to_ascii_lowercase() {
        b'k' => 10,
        b'm' => 20,
        b'g' => 30,
        b't' => 40,
        _ => return text.parse().ok(),
    };
    text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn unknown(text: &str, database: &str) -> Error {
    let message = if database.ends_with(".kcx") {
        format!("database \"{text}\": text files are not served; a PATH.kct takes their lines as records")
    } else if database.ends_with(".tct") {
        format!("database \"{text}\": table databases are not there yet")
    } else {
        format!(
            "database \"{text}\": a name is mem:hash, mem:tree, PATH.hash or PATH.tree, or one of Kyoto \
             Cabinet's or Tokyo Cabinet's"
        )
    };
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_kyoto_cabinets_is_refused_and_left_as_it_is() {
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
        // A kind of ours for this name is equally good.
        let path = folder.path().join("new.kcd");
        for _ in 0..2 {
            crate::Db::open(path.to_str().unwrap()).unwrap();
        }
    }

    #[test]
    fn every_name_of_the_originals_says_its_kind() {
        for (names, kind) in [
            (&["mem:hash", ":", "-", "*"][..], Kind::MemHash),
            (&["mem:tree", "%", "+"], Kind::MemTree),
            (&["a.hash", "/b/a.kch", "a.kcd", "a.tch", "a.tcf"], Kind::DiskHash),
            (&["a.tree", "./a.kct", "a.kcf", "a.tcb"], Kind::DiskTree),
        ] {
            for name in names {
                let parsed = Name::parse(name).unwrap();
                assert_eq!((parsed.kind, parsed.to_string().as_str()), (kind, *name));
                let is_path = name.contains('.');
                assert_eq!(parsed.path, is_path.then(|| PathBuf::from(name)));
            }
        }
    }

    #[test]
    fn tuning_that_means_something_is_taken_and_the_rest_is_noted() {
        let name = Name::parse("*#bnum=10000#capcnt=5k#capsiz=64m#opts=ls#msiz=1g").unwrap();
        let tuning = Tuning { records_max: Some(5120), bytes_max: Some(64 << 20), ..Tuning::default() };
        assert_eq!(name.tuning, tuning);
        assert_eq!(name.notes, ["bnum=10000 has no meaning here", "msiz=1g has no meaning here"]);
        assert_eq!(Name::parse("*#capnum=0").unwrap().tuning, Tuning::default());
        assert!(
            Name::parse("%#opts=c").unwrap().tuning.compress
                && Name::parse("%#zcomp=zstd").unwrap().tuning.compress
        );
        let by_type = |text| Name::parse(text).map(|name| (name.kind, name.path));
        assert_eq!(by_type("x.kch#type=%"), Ok((Kind::MemTree, None)));
        assert_eq!(by_type("abc#type=:"), Ok((Kind::MemHash, None)));
        assert_eq!(by_type("x#type=kct"), Ok((Kind::DiskTree, Some("x".into()))));
        let read = Name::parse("x.kch#mode=r").unwrap().tuning;
        assert!(read.read_only && read.must_exist && !read.truncate);
        let fresh = Name::parse("x.kch#mode=wct").unwrap().tuning;
        assert!(!fresh.read_only && !fresh.must_exist && fresh.truncate);
    }

    #[test]
    fn tuning_goes_by_its_longer_names_too() {
        let tuning = |text: &str| Name::parse(text).unwrap().tuning;
        for (short, long) in [
            ("*#capcnt=5k#capsiz=64m", "*#capcount=5k#capsize=64m"),
            ("*#ktcapcnt=5k#ktcapsiz=64m", "*#ktcap_count=5k#ktcap_size=64m"),
            ("%#opts=c#zcomp=zstd#ktopts=p", "%#options=c#compressor=zstd#ktoptions=p"),
            ("%#rcomp=lex", "%#comparator=lexical"),
        ] {
            assert_eq!(tuning(short), tuning(long), "{long}");
            assert!(Name::parse(long).unwrap().notes.is_empty(), "{long}");
        }
        assert!(Name::parse("%#comparator=decimal").is_err());
    }

    /// `#capcn=9` set no limit, and no error was reported.
    #[test]
    fn unknown_word_is_refused_with_the_nearest() {
        for (text, told) in [
            ("*#capcn=9", "capcn is not known; did you mean capcnt?"),
            ("*#Capsiz=1m", "Capsiz is not known; did you mean capsiz?"),
            ("*#ktcapsize2=1m", "ktcapsize2 is not known; did you mean ktcapsize?"),
            ("x.hash#wholly=1", "wholly is not known"),
            ("*#capcnt", "capcnt is no NAME=VALUE"),
            ("x.hash#zcomp=lzma", "zcomp=lzma: values are compressed by zstd; write zcomp=zstd or opts=c"),
            ("x.hash#zcomp=zst", "zcomp=zst: there is no such compressor; did you mean zstd?"),
            ("x#type=kcz", "there is no type kcz"),
        ] {
            let error = Name::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert_eq!(error.to_string(), format!("database \"{text}\": {told}"));
        }
    }

    #[test]
    fn original_passes_unknown_words_over() {
        let parse = |text| Name::parse_as_original(text).unwrap();
        let name = parse("*#capcn=9#capsiz=1m#capcnt");
        let tuning = Tuning { bytes_max: Some(1 << 20), ..Tuning::default() };
        assert_eq!(name.tuning, tuning);
        assert_eq!(name.warnings, ["capcn is not known; did you mean capcnt?", "capcnt is no NAME=VALUE"]);
        // There, too, a compressor alone does not compress, and a kind without compression accepts
        // the word.
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
        assert!(Name::parse_as_original("%#rcomp=dec").is_err());
    }

    /// A database with a key was encrypted by the original, so it must not be stored in clear.
    #[test]
    fn encryption_is_refused_and_its_key_concealed() {
        for text in [
            "e.kch#opts=c#zcomp=arc#zkey=hush",
            "e.kch#zkey=hush",
            "e.kch#rcomp=dec#pass=hush",
            "e.kch#zkey=hush#capcn=1",
        ] {
            for parse in [Name::parse, Name::parse_as_original] {
                let error = parse(text).unwrap_err().to_string();
                assert!(!error.contains("hush"), "{error}");
            }
        }
        let error = Name::parse_as_original("e.kch#zcomp=arc").unwrap_err().to_string();
        assert!(error.contains("encryption"), "{error}");
    }

    #[test]
    fn only_a_hash_on_disk_can_do_without_a_mapping() {
        assert!(Name::parse("x.hash#map=off").unwrap().tuning.unmapped);
        assert!(!Name::parse("x.hash#map=on").unwrap().tuning.unmapped);
        assert_eq!(Name::parse(":#map=off").unwrap().notes, ["map=off has no meaning here"]);
        for name in ["x.tree#map=off", "x.hash#map=no"] {
            assert_eq!(Name::parse(name).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }

    #[test]
    fn a_slash_behind_a_name_changes_nothing() {
        for name in ["./x.tree/", "./x.tree//", "./x.tree/#bnum=1"] {
            let parsed = Name::parse(name).unwrap();
            let path = parsed.path.unwrap();
            assert_eq!((parsed.kind, path.to_str()), (Kind::DiskTree, Some("./x.tree")));
        }
        assert!(Name::parse("dir/.tree/").is_err());
    }

    #[test]
    fn what_says_nothing_is_refused_and_the_message_says_what_would() {
        for name in
            ["", "x", "x.txt", ".hash", "dir/.tree", "x.kch#capcnt=many", "%#rcomp=dec", "x.kch#type=z"]
        {
            let error = Name::parse(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().starts_with(&format!("database \"{name}\": ")), "{error}");
        }
    }

    #[test]
    fn an_alias_is_a_plain_word() {
        let name = Name::parse("sessions=%#capcnt=10").unwrap();
        assert_eq!(
            (name.alias.as_deref(), name.label(), name.kind),
            (Some("sessions"), "sessions", Kind::MemTree)
        );
        let path = Name::parse("./a=b.hash").unwrap();
        assert_eq!((path.alias.as_deref(), path.label()), (None, "./a=b.hash"));
    }
}
