//! The names of a tree's files are on disk before any of its log is removed.
//!
//! `x.tree/tree` was once created after the last sync of `x.tree`, and neither was synced again,
//! while each checkpoint removed the log before its mark. On a file system where syncing a file
//! does not sync its name, a power failure lost the complete tree.

use crate::folder::swayed_disk;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use swayed_disk::{Sway, Swayed};
use todana::{DbOptions, Records};

/// An operation on the disk.
#[derive(Clone, Debug, PartialEq)]
enum DiskEvent {
    /// A directory was synced while it had these names.
    Synced(PathBuf, Vec<String>),
    Removed(PathBuf),
}

#[derive(Clone, Default)]
struct EventRecorder(Arc<Mutex<Vec<DiskEvent>>>);

impl Sway for EventRecorder {
    fn removes(&self, path: &Path) {
        self.0.lock().unwrap().push(DiskEvent::Removed(path.into()));
    }

    fn has_synced_directory(&self, path: &Path) {
        let names = std::fs::read_dir(path).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        self.0.lock().unwrap().push(DiskEvent::Synced(path.into(), names));
    }
}

#[test]
fn tree_names_are_synced_before_log_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("x.tree");
    let recorder = EventRecorder::default();
    let options = DbOptions::default();
    // In the second round the tree exists. Its process may have ended before the names were synced.
    for round in 0..2 {
        recorder.0.lock().unwrap().clear();
        let disk = Arc::new(Swayed(recorder.clone()));
        let db = options.open_on(disk, place.to_str().unwrap()).unwrap();
        db.set(format!("key {round}").as_bytes(), b"value").unwrap();
        db.checkpoint().unwrap();
        drop(db);

        let events = recorder.0.lock().unwrap();
        let is_log = |event: &DiskEvent| matches!(event, DiskEvent::Removed(path) if path.parent() == Some(&place.join("log")));
        let removed = events.iter().position(is_log).expect("the checkpoint removes the log before its mark");
        let has_synced = |directory: &Path, name: &str| {
            events[..removed].iter().any(|event| {
                matches!(event, DiskEvent::Synced(path, names) if path == directory && names.iter().any(|at| at == name))
            })
        };
        assert!(has_synced(&place.join("tree"), "data.mdb"), "round {round}: {events:?}");
        assert!(has_synced(&place, "tree"), "round {round}: {events:?}");
    }
}
