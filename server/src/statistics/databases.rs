//! `stats databases`, or one by its name: what each database holds. memcached has nothing of the kind.

use super::Writer;
use crate::databases::Served;
use crate::server::Shared;
use todana::update_log::UpdateLog;

pub(super) fn put(shared: &Shared, name: Option<&[u8]>, w: &mut Writer<'_, '_>) {
    let wanted = name.map(|name| std::str::from_utf8(name).ok().and_then(|name| shared.catalog.number(name)));
    for (number, served) in shared.databases.iter().enumerate() {
        if wanted.is_some_and(|wanted| wanted != Some(number)) {
            continue;
        }
        let status = served.database.status();
        w.put_in("", number, "name", served.name.label());
        w.put_in("", number, "kind", served.name.kind.word());
        w.put_in("", number, "records", status.records);
        w.put_in("", number, "bytes", status.live_bytes);
        w.put_in("", number, "memory_bytes", status.committed_bytes);
        w.put_in("", number, "disk_bytes", served.disk_bytes());
        w.put_in("", number, "evictions", status.evictions);
        w.put_in("", number, "takes_writes", u8::from(takes_writes(served)));
    }
}

/// Whether changes can be brought to disk, where they are to be.
pub(crate) fn takes_writes(served: &Served) -> bool {
    let is_in_files = served.syncing.as_ref().is_none_or(|syncing| syncing.takes_changes());
    is_in_files && served.database.log().is_none_or(UpdateLog::takes_changes)
}
