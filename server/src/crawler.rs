//! What `lru_crawler` steers: whether lists are served, and what the statistics say of them. Expired records are removed by
//! the database's own sweep, which nobody needs to steer.

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
    /// Lists ever begun, and times it was told to crawl.
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

    /// Does as it is told, or says why not.
    pub(crate) fn obey(&self, order: todana_core::Crawler) -> Result<(), &'static str> {
        use todana_core::Crawler::{Crawl, Disable, Enable, RecordsMax, Sleep};
        match order {
            Enable if self.switch(true) => return Err("ERROR failed to start lru crawler thread"),
            Enable => {}
            Disable => drop(self.switch(false)),
            // The sweep never rests for long, so what is expired is about to go anyway.
            Crawl(_) if self.is_enabled() => drop(self.starts.fetch_add(1, Ordering::Relaxed)),
            Crawl(_) => return Err(DISABLED),
            Sleep(microseconds) => self.sleep_us.store(microseconds, Ordering::Relaxed),
            RecordsMax(records) => self.records_max.store(records, Ordering::Relaxed),
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use todana_core::Crawler as Order;

    #[test]
    fn it_crawls_only_when_it_is_there() {
        let crawler = Crawler::new(true);
        let crawl = Order::Crawl(todana_core::ClassSet::ALL);
        assert_eq!(crawler.obey(crawl), Ok(()));
        assert_eq!(crawler.obey(Order::Disable), Ok(()));
        assert_eq!(crawler.obey(crawl), Err(DISABLED));
        assert_eq!(crawler.obey(Order::Enable), Ok(()));
        assert!(crawler.obey(Order::Enable).is_err());
    }
}
