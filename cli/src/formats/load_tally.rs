//! Counts of the records loaded from a file.

use crate::CommandFailure;
use crate::amount::amount;

/// Counts of the records loaded from a file so far.
#[derive(Debug, Default)]
pub(crate) struct LoadTally {
    pub(crate) loaded: u64,
    /// Already expired.
    pub(crate) skipped: u64,
    /// Refused by the database or the server.
    pub(crate) refused: u64,
    pub(crate) removed: u64,
    pub(crate) cleared: u64,
    /// The time stamp of a snapshot, or of the newest change of a log.
    pub(crate) timestamp: Option<u64>,
    /// Place of the first refused record, with the reason.
    pub(crate) example: Option<String>,
}

impl LoadTally {
    /// Counts a refused record.
    pub(crate) fn refuse(&mut self, why: impl FnOnce() -> String) {
        self.refused += 1;
        self.example.get_or_insert_with(why);
    }

    /// Prints the counts on standard error. If the file could not be read to its end, prints the
    /// cause first, and no counts if nothing was done.
    pub(crate) fn report(&self, says_refused: bool, cause: Option<&CommandFailure>) {
        if let Some(cause) = cause {
            cause.print();
            if self.loaded + self.skipped + self.refused + self.removed + self.cleared == 0 {
                return;
            }
        }
        let mut words = vec![
            format!("{} loaded", amount(self.loaded, "record")),
            format!("{} expired skipped", self.skipped),
        ];
        if self.removed > 0 {
            words.push(format!("{} removed", self.removed));
        }
        if self.cleared > 0 {
            words.push(format!("cleared {}", amount(self.cleared, "time")));
        }
        if says_refused || self.refused > 0 {
            words.push(format!("{} refused", self.refused));
        }
        eprintln!("{}", words.join(", "));
        if let Some(timestamp) = self.timestamp {
            eprintln!("as of the time stamp {timestamp:020}");
        }
    }

    /// Fails if `whom` refused records.
    pub(crate) fn fail_if_refused(&self, whom: &str) -> Result<(), CommandFailure> {
        if self.refused == 0 {
            return Ok(());
        }
        let mut what = format!("{whom} refused {}", amount(self.refused, "record"));
        if let Some(example) = &self.example {
            what.push_str(&format!("; for example {example}"));
        }
        Err(CommandFailure::trouble(what))
    }
}
