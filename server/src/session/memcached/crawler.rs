//! Holds the state of `lru_crawler`: whether lists are served, and the figures for statistics. The
//! sweep of each database removes expired records of all classes at its own pace. The command
//! `lru_crawler crawl` only starts a round of the sweep.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// memcached's pause between two records.
const SLEEP_US: u32 = 100;

#[derive(Debug)]
pub(crate) struct CrawlerState {
    enabled: AtomicBool,
    /// A value that the settings show and that has no other effect, like `records_max`.
    pub(crate) sleep_us: AtomicU32,
    pub(crate) records_max: AtomicU32,
    /// The number of lists in progress.
    pub(crate) running: AtomicU64,
    /// The number of lists begun.
    pub(crate) starts: AtomicU64,
    /// The number of records that lists have visited.
    pub(crate) items_checked: AtomicU64,
}

impl CrawlerState {
    pub(crate) fn new(enabled: bool) -> CrawlerState {
        CrawlerState {
            enabled: AtomicBool::new(enabled),
            sleep_us: AtomicU32::new(SLEEP_US),
            records_max: AtomicU32::new(0),
            running: AtomicU64::new(0),
            starts: AtomicU64::new(0),
            items_checked: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    /// Enables or disables the crawler. Returns the previous state.
    fn switch(&self, on: bool) -> bool {
        self.enabled.swap(on, Ordering::Relaxed)
    }

    /// Executes a command, or returns the reason why it is refused. `sweep` starts a round of the
    /// sweep.
    pub(crate) fn execute(
        &self,
        order: todana_protocol::memcached::CrawlerCommand,
        sweep: &dyn Fn(),
    ) -> Result<(), &'static str> {
        use todana_protocol::memcached::CrawlerCommand::{Crawl, Disable, Enable, RecordsMax, Sleep};
        match order {
            Enable if self.switch(true) => return Err("ERROR failed to start lru crawler thread"),
            Enable => {}
            Disable => drop(self.switch(false)),
            Crawl(_) if !self.is_enabled() => return Err(DISABLED),
            // A list and a sweep could run at the same time, but scripts expect this reply and try
            // again.
            Crawl(_) if self.running.load(Ordering::Relaxed) > 0 => return Err(BUSY),
            // A sweep visits the expired records of all classes, because records are not separated
            // by class.
            Crawl(_) => sweep(),
            Sleep(microseconds) => self.sleep_us.store(microseconds, Ordering::Relaxed),
            RecordsMax(records) => self.records_max.store(records, Ordering::Relaxed),
        }
        Ok(())
    }

    /// Resets the counters.
    pub(crate) fn reset(&self) {
        self.starts.store(0, Ordering::Relaxed);
        self.items_checked.store(0, Ordering::Relaxed);
    }

    pub(crate) fn begin(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
        self.starts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The reply while the crawler is disabled.
pub(crate) const DISABLED: &str = "CLIENT_ERROR lru crawler disabled";
/// The reply to a crawl while a list is in progress.
const BUSY: &str = "BUSY currently processing crawler request";

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use todana::{Database, SystemClock};
    use todana_engine::{MemHash, MemHashOptions};
    use todana_protocol::memcached::CrawlerCommand as Order;

    #[test]
    fn crawler_crawls_only_while_enabled() {
        let engine = MemHash::new(MemHashOptions::default()).unwrap();
        let database = Database::new(Box::new(engine), Arc::new(SystemClock));
        let crawler = CrawlerState::new(true);
        let sweep = || database.request_sweep();
        let crawl = Order::Crawl(todana_protocol::memcached::ClassSet::ALL);
        let rounds = || {
            while database.maintain() {}
            database.sweeps().rounds
        };
        assert_eq!(rounds(), 0);
        assert_eq!(crawler.execute(crawl, &sweep), Ok(()));
        assert_eq!(rounds(), 1);
        crawler.begin();
        assert_eq!(crawler.execute(crawl, &sweep), Err(BUSY));
        crawler.end();
        assert_eq!(crawler.execute(Order::Disable, &sweep), Ok(()));
        assert_eq!(crawler.execute(crawl, &sweep), Err(DISABLED));
        assert_eq!(rounds(), 1);
        assert_eq!(crawler.execute(Order::Enable, &sweep), Ok(()));
        assert!(crawler.execute(Order::Enable, &sweep).is_err());
    }
}
