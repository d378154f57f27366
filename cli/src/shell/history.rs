//! The file of the lines that were typed in a shell, which only its user can read.

use rustyline::Editor;
use rustyline::Helper;
use rustyline::history::{FileHistory, History};
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The most lines that are kept.
pub(super) const LINES_MAX: usize = 1_000;

/// The file of the history. If it cannot be written, lines are kept in memory only.
pub(super) struct HistoryFile(Option<PathBuf>);

impl HistoryFile {
    /// Reads `$XDG_STATE_HOME/todana/history` into an editor, and creates its folder.
    pub(super) fn load<H: Helper>(editor: &mut Editor<H, FileHistory>) -> HistoryFile {
        let path = path(|name| std::env::var_os(name).map(PathBuf::from));
        let path = path.filter(|path| {
            let folder = path.parent().unwrap_or(Path::new("/"));
            let is_made = DirBuilder::new().recursive(true).mode(0o700).create(folder).is_ok();
            // Another program may have created the file.
            let _ = std::fs::set_permissions(path, Permissions::from_mode(0o600));
            is_made
        });
        if let Some(path) = &path {
            // There is no file before the first line.
            let _ = editor.load_history(path);
        }
        HistoryFile(path)
    }

    /// Adds a line, unless it begins with a space or may contain a password.
    pub(super) fn add<H: Helper>(&self, editor: &mut Editor<H, FileHistory>, line: &str) {
        if may_be_secret(line) || !editor.history_mut().add(line).unwrap_or(false) {
            return;
        }
        if let Some(path) = &self.0 {
            // A full disk must not end the shell.
            let _ = editor.append_history(path);
        }
    }
}

fn path(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let state = variable("XDG_STATE_HOME").filter(|path| path.is_absolute());
    let state = state.or_else(|| Some(variable("HOME")?.join(".local/state")));
    Some(state?.join("todana/history"))
}

/// Returns true if the line contains a URL with a user, and so perhaps a password.
fn may_be_secret(line: &str) -> bool {
    line.split("://")
        .skip(1)
        .any(|rest| rest.split_whitespace().next().is_some_and(|word| word.contains('@')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_folder_comes_from_the_environment() {
        let of = |state: Option<&str>, home: Option<&str>| {
            path(|name| if name == "HOME" { home } else { state }.map(PathBuf::from))
        };
        assert_eq!(of(Some("/s"), Some("/h")), Some("/s/todana/history".into()));
        assert_eq!(of(Some("relative"), Some("/h")), Some("/h/.local/state/todana/history".into()));
        assert_eq!(of(None, None), None);
    }

    #[test]
    fn lines_with_logins_are_secret() {
        for line in ["connect todana://u:p@h:1", "get a -S todanas://u@h", "set a http://b todana://c@d"] {
            assert!(may_be_secret(line), "{line}");
        }
        for line in ["connect todana://h:1", "set a b@c", "set a http://b c@d"] {
            assert!(!may_be_secret(line), "{line}");
        }
    }
}
