//! Announces the keys of several requests to the executor together.

use super::BATCH;
use crate::execution::{AnyExecutor, Executor};

/// The keys of up to [`BATCH`] requests to the same database.
#[derive(Default)]
pub(crate) struct AnnouncedKeys<'k> {
    keys: [&'k [u8]; BATCH],
    len: usize,
}

impl<'k> FromIterator<&'k [u8]> for AnnouncedKeys<'k> {
    fn from_iter<T: IntoIterator<Item = &'k [u8]>>(keys: T) -> AnnouncedKeys<'k> {
        let mut announced = AnnouncedKeys::default();
        for (place, key) in announced.keys.iter_mut().zip(keys) {
            *place = key;
            announced.len += 1;
        }
        announced
    }
}

impl AnnouncedKeys<'_> {
    /// Announces the keys. `database` may be a number that no database has.
    #[inline]
    pub(crate) fn announce(&self, executor: &AnyExecutor, database: usize) {
        executor.prefetch_all(database, &self.keys[..self.len]);
    }
}
