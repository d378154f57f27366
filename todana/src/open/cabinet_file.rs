//! Recognises files of Tokyo Cabinet, which are not opened, and names the command that copies their
//! records.
//!
//! ```text
//! 0   16  "ToKyO CaBiNeT\n" and the version
//! 32   1  kind: 0 hash, 1 tree, 2 fixed, 3 table
//! 64   8  fixed: the width
//! 72   8  fixed: the largest size of the file
//! ```

use std::fs::File;
use std::io::Read;
use std::path::Path;

const HEAD_LEN: usize = 80;

/// Returns the reason why a file of Tokyo Cabinet cannot be opened, with the command that copies
/// its records. Returns `None` for any other file.
///
/// ```
/// assert_eq!(todana::cabinet_file_problem("Cargo.toml".as_ref()), None);
/// ```
pub fn cabinet_file_problem(path: &Path) -> Option<String> {
    let mut head = [0; HEAD_LEN];
    // Reading from a pipe would take bytes from its reader.
    if !path.is_file() {
        return None;
    }
    File::open(path).and_then(|mut file| file.read_exact(&mut head)).ok()?;
    if !head.starts_with(b"ToKyO CaBiNeT\n") {
        return None;
    }
    let (tool, format, target) = match head[32] {
        1 => ("tcbmgr", "tcbmgr", "NEW.tcb".into()),
        2 => ("tcfmgr", "tcfmgr", fixed_name(&head)),
        3 => ("tctmgr", "tctmgr", "NEW.tct".into()),
        _ => ("tchmgr", "tsv-hex", "NEW.tch".into()),
    };
    let file = shell_word(&path.display().to_string());
    Some(format!(
        "is a file of Tokyo Cabinet, which cannot be opened; give another name, and copy its records with \
         Tokyo Cabinet's tool: `{tool} list -pv -px {file} | todana load - --format {format} --db {target}`"
    ))
}

/// Returns a name with the tuning of the file. The byte order of the file is that of the build
/// that wrote it. A width has at most 32 bits, which shows the order.
fn fixed_name(head: &[u8; HEAD_LEN]) -> String {
    let number = |at: usize, is_little: bool| {
        let bytes = head[at..at + 8].try_into().unwrap_or_default();
        if is_little { u64::from_le_bytes(bytes) } else { u64::from_be_bytes(bytes) }
    };
    let is_little = number(64, true) <= u64::from(u32::MAX);
    format!("NEW.tcf#width={}#limsiz={}", number(64, is_little), number(72, is_little))
}

/// Returns a word that a shell reads as this text.
fn shell_word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._+-".contains(&byte);
    match text.bytes().all(is_plain) {
        true => text.into(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use todana_core::ErrorKind;

    #[test]
    fn cabinet_file_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        for (name, kind, numbers, remedy) in [
            ("x.tch", 0, [0; 16], "tchmgr list -pv -px PATH | todana load - --format tsv-hex --db NEW.tch"),
            ("x.bdb", 1, [0; 16], "tcbmgr list -pv -px PATH | todana load - --format tcbmgr --db NEW.tcb"),
            (
                "x.tcf",
                2,
                [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0],
                "tcfmgr list -pv -px PATH | todana load - --format tcfmgr --db NEW.tcf#width=256#limsiz=1099511627776",
            ),
            (
                "y.tcf",
                2,
                [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0],
                "tcfmgr list -pv -px PATH | todana load - --format tcfmgr --db NEW.tcf#width=256#limsiz=1099511627776",
            ),
            ("it's.tct", 3, [0; 16], "tctmgr list -pv -px PATH | todana load - --format tctmgr --db NEW.tct"),
        ] {
            let path = folder.path().join(name);
            let file =
                [&b"ToKyO CaBiNeT\n1.0:911\n"[..], &[0; 10], &[kind], &[0; 31], &numbers, &[0; 176]].concat();
            assert_eq!(file.len(), 256);
            std::fs::write(&path, &file).unwrap();
            let Err(error) = crate::Db::open(path.to_str().unwrap()) else { panic!("{name} was opened") };
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let command = format!("`{}`", remedy.replace("PATH", &shell_word(path.to_str().unwrap())));
            assert!(error.to_string().ends_with(&command), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), file);
        }
        assert_eq!(shell_word("it's"), "'it'\\''s'");
    }
}
