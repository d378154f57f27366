//! What `lru_crawler` steers: whether lists are served, and what the statistics say of them. Expired records are removed by
//! the database's own sweep: it goes on whatever it is told, at its own pace and over all classes, but begins a round when
//! told to crawl.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// memcached's rest between two records.
const SLEEP_US: u32 = 100;

#[derive(Debug)]
pub(crate) struct Crawler {
    enabled: AtomicBool,
    /// Shown in the settings, as is the next.
    pub(crate) sleep_us: AtomicU32,
    pub(crate) records_max: AtomicU32,
    /// Lists under way.
    pub(crate) running: AtomicU64,
    /// Lists begun.
    pub(crate) starts: AtomicU64,
    /// Records that lists came upon.
    pub(crate) items_checked: AtomicU64,
}

impl Crawler {
    pub(crate) fn new(enabled: bool) -> Crawler {
        Crawler {
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

    /// Switches it; returns how it was before.
    fn switch(&self, on: bool) -> bool {
        self.enabled.swap(on, Ordering::Relaxed)
    }

    /// Does as it is told, or says why not. `sweep` begins a round of the sweep.
    pub(crate) fn obey(
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
            // Both could go on at once. But a script that is told so now has learnt to try again.
            Crawl(_) if self.running.load(Ordering::Relaxed) > 0 => return Err(BUSY),
            // Records lie together whatever their class, so the sweep meets all that have expired.
            Crawl(_) => sweep(),
            Sleep(microseconds) => self.sleep_us.store(microseconds, Ordering::Relaxed),
            RecordsMax(records) => self.records_max.store(records, Ordering::Relaxed),
        }
        Ok(())
    }

    /// Begins counting anew.
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

/// The answer to what needs it while it is off.
pub(crate) const DISABLED: &str = "CLIENT_ERROR lru crawler disabled";
/// The answer to an order to crawl while a list is under way.
const BUSY: &str = "BUSY currently processing crawler request";

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use todana::{Database, SystemClock};
    use todana_engine::{MemHash, MemHashOptions};
    use todana_protocol::memcached::CrawlerCommand as Order;

    #[test]
    fn it_crawls_only_when_it_is_there() {
        let engine = MemHash::new(MemHashOptions::default()).unwrap();
        let database = Database::new(Box::new(engine), Arc::new(SystemClock));
        let crawler = Crawler::new(true);
        let sweep = || database.want_sweep();
        let crawl = Order::Crawl(todana_protocol::memcached::ClassSet::ALL);
        let rounds = || {
            while database.maintain() {}
            database.sweeps().rounds
        };
        assert_eq!(rounds(), 0);
        assert_eq!(crawler.obey(crawl, &sweep), Ok(()));
        assert_eq!(rounds(), 1);
        crawler.begin();
        assert_eq!(crawler.obey(crawl, &sweep), Err(BUSY));
        crawler.end();
        assert_eq!(crawler.obey(Order::Disable, &sweep), Ok(()));
        assert_eq!(crawler.obey(crawl, &sweep), Err(DISABLED));
        assert_eq!(rounds(), 1);
        assert_eq!(crawler.obey(Order::Enable, &sweep), Ok(()));
        assert!(crawler.obey(Order::Enable, &sweep).is_err());
    }
}
