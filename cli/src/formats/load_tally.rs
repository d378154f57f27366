//! What has been loaded of a file so far.

use crate::CommandFailure;
use crate::amount::amount;

/// What has been loaded of a file so far.
#[derive(Debug, Default)]
pub(crate) struct LoadTally {
    pub(crate) loaded: u64,
    /// Expired already.
    pub(crate) skipped: u64,
    /// Not taken by the database, or the server.
    pub(crate) refused: u64,
    pub(crate) removed: u64,
    pub(crate) cleared: u64,
    /// The time stamp of a snapshot, or of the newest change of a log.
    pub(crate) timestamp: Option<u64>,
    /// Where a refused record stands, and why it was refused.
    pub(crate) example: Option<String>,
}

impl LoadTally {
    /// A record has been refused.
    pub(crate) fn refuse(&mut self, why: impl FnOnce() -> String) {
        self.refused += 1;
        self.example.get_or_insert_with(why);
    }

    /// Tells it, on standard error. Of a file that cannot be read to its end the cause comes first, and nothing more where nothing was
    /// done.
    pub(crate) fn tell(&self, says_refused: bool, cause: Option<&CommandFailure>) {
        if let Some(cause) = cause {
            cause.tell();
            if self.loaded + self.skipped + self.refused + self.removed + self.cleared == 0 {
                return;
            }
        }
        let mut words = vec![
            format!("{} loaded", amount(self.loaded, "record")),
            format!("{} expired ones skipped", self.skipped),
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

    /// Fails if records were refused by `whom`.
    pub(crate) fn outcome(&self, whom: &str) -> Result<(), CommandFailure> {
        if self.refused == 0 {
            return Ok(());
        }
        let mut what = format!("{whom} refused {}", amount(self.refused, "record"));
        if let Some(example) = &self.example {
            what.push_str(&format!("; one is {example}"));
        }
        Err(CommandFailure::trouble(what))
    }
}
