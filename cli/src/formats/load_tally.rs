//! Counts the records that are loaded from a file.

use crate::CommandFailure;
use crate::amount::amount;

/// The counts of a file that is being loaded.
#[derive(Debug, Default)]
pub(crate) struct LoadTally {
    pub(crate) loaded: u64,
    /// Records that have already expired.
    pub(crate) skipped: u64,
    /// Records that the database or the server refused.
    pub(crate) refused: u64,
    pub(crate) removed: u64,
    pub(crate) cleared: u64,
    /// Commands of Tokyo Tyrant that fail here and succeeded in the log, or the other way round.
    pub(crate) differ: u64,
    /// The time stamp of a snapshot, or of the newest change of a log.
    pub(crate) timestamp: Option<u64>,
    /// The number of digits of the time stamp, if it is not Kyoto Tycoon's.
    pub(crate) timestamp_digits: Option<usize>,
    /// The place of the first refused record in the file, with the reason.
    pub(crate) example: Option<String>,
}

impl LoadTally {
    /// Counts a refused record.
    pub(crate) fn refuse(&mut self, why: impl FnOnce() -> String) {
        self.refused += 1;
        self.example.get_or_insert_with(why);
    }

    /// Prints the counts on standard error. If the file could not be read to its end, prints the
    /// `cause` before them, and omits the counts if they are all 0. `says_refused` prints the
    /// number of refused records even if it is 0.
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
        if self.differ > 0 {
            words.push(format!("{} with another outcome than logged", amount(self.differ, "command")));
        }
        if says_refused || self.refused > 0 {
            words.push(format!("{} refused", self.refused));
        }
        eprintln!("{}", words.join(", "));
        if let Some(timestamp) = self.timestamp {
            let digits = self.timestamp_digits.unwrap_or(20);
            eprintln!("as of the time stamp {timestamp:0digits$}");
        }
    }

    /// Fails if any records were refused. `whom` is the subject of the message: the database or the
    /// server.
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
