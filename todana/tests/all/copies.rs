//! A copy gets its name only when it is complete.

use crate::folder;

use folder::folder;
use std::fs;
use std::ops::ControlFlow;
use todana::{Db, Records};
use todana_core::ErrorKind;

#[test]
fn cancelled_copy_leaves_nothing() {
    for (source, target) in [("mem:hash", "x.tree"), ("mem:tree", "x.hash")] {
        let folder = folder();
        let path = folder.path().join(target);
        let db = Db::open(source).unwrap();
        for number in 0..3000u32 {
            db.set(&number.to_be_bytes(), b"value").unwrap();
        }
        let mut was_begun = false;
        let cancelled = db.copy_unless(path.to_str().unwrap(), &mut |copied| {
            assert!(!path.exists());
            if copied < 2500 {
                return ControlFlow::Continue(());
            }
            was_begun = folder.path().join(format!("{target}.partial")).is_dir();
            ControlFlow::Break(())
        });
        assert_eq!(cancelled.unwrap_err().kind(), ErrorKind::Closed);
        assert!(was_begun);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        // The remains of a killed process do not prevent the copy.
        let left = folder.path().join(format!("{target}.partial"));
        fs::create_dir_all(left.join("log")).unwrap();
        fs::write(left.join("identity"), b"half").unwrap();
        assert_eq!(db.copy(path.to_str().unwrap()).unwrap(), 3000);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let copy = Db::open(path.to_str().unwrap()).unwrap();
        assert_eq!((copy.count(), copy.get(&[0, 0, 0, 7]).unwrap()), (3000, Some(b"value".to_vec())));
    }
}
