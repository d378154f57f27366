//! Hints in errors about damage: the text ends with the command that salvages the database.

use std::path::Path;
use todana_core::{Error, ErrorKind};

/// Adds the command that salvages a damaged database to an error about damage.
pub(crate) fn hinted(error: Error, path: &Path) -> Error {
    let hint =
        format!("`todana salvage {} TARGET` recovers the intact records into a new database", path.display());
    with_hint(error, &hint)
}

/// Adds commands to an error about damaged pages of a tree, from which a salvage may recover
/// nothing.
pub(crate) fn hinted_tree(error: Error, path: &Path) -> Error {
    let hint = format!(
        "`todana verify {}` says if `todana salvage` can recover records; `todana restore` creates a new tree from a backup",
        path.display()
    );
    with_hint(error, &hint)
}

fn with_hint(error: Error, hint: &str) -> Error {
    match error.kind() {
        ErrorKind::Corrupt => Error::new(ErrorKind::Corrupt, format!("{error}; {hint}")),
        _ => error,
    }
}
