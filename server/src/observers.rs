//! Who looks on while requests are executed: statistics by prefix.
//!
//! A request costs them one relaxed load as long as nobody does.

use crate::prefixes::Prefixes;
use std::sync::atomic::{AtomicU32, Ordering};
use todana_core::{Command, Reply};

/// Prefixes are counted; the lower bits are streams that are watched.
const PREFIXES: u32 = 1 << 16;

/// What is looked for.
#[derive(Debug, Default)]
pub(crate) struct Observers {
    flags: AtomicU32,
}

impl Observers {
    /// Whether anybody looks on.
    #[inline]
    pub(crate) fn are_there(&self) -> bool {
        self.flags.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn count_prefixes(&self, on: bool) {
        if on {
            self.flags.fetch_or(PREFIXES, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!PREFIXES, Ordering::Relaxed);
        }
    }

    pub(crate) fn counts_prefixes(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & PREFIXES != 0
    }

    /// Has `execute` run a command and looks on.
    #[cold]
    pub(crate) fn look_on(
        &self,
        prefixes: &Prefixes,
        command: &Command<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
        execute: impl FnOnce(&mut dyn FnMut(Reply<'_>)),
    ) {
        let mut found = false;
        execute(&mut |answer| {
            found |= matches!(answer, Reply::Hit(_));
            reply(answer);
        });
        if self.counts_prefixes() {
            prefixes.count(command, found);
        }
    }
}
