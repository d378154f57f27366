//! Reads all records, or those of a range of keys, page by page.
//!
//! A hash table is read in the order of its tokens, and a scan continues after the last key. An
//! ordered table has buckets: each is read in the order of its keys, and the buckets are merged.

use crate::cluster::{Cluster, StatementProfiles};
use crate::row::StoredRow;
use scylla::client::session::Session;
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;
use todana::ScanDirection;
use todana_core::{Error, ErrorKind, Result};
use tokio::task::JoinSet;

/// The bytes of values that a page should have.
const PAGE_BYTES: usize = 1 << 20;
const PAGE_ROWS_MIN: i32 = 16;
const PAGE_ROWS_MAX: i32 = 1000;
/// The rows of the first page of each bucket of an ordered table.
const FIRST_ROWS: i32 = 32;
/// The most pages of buckets that are read at the same time.
const PAGES_MAX: usize = 16;

/// A record that was read by a scan, with its key.
pub(crate) type ScannedRecord = (Vec<u8>, StoredRow);

/// The statements that read many rows.
pub(crate) enum ScanStatements {
    /// All rows, and those from a key on.
    Hash(Box<[PreparedStatement; 2]>),
    /// The rows of a bucket, up and down.
    Ordered(Box<[DirectedStatements; 2]>),
}

/// The statements that read a bucket in one direction.
pub(crate) struct DirectedStatements {
    all: PreparedStatement,
    including: PreparedStatement,
    excluding: PreparedStatement,
}

impl ScanStatements {
    pub(crate) async fn prepare(
        session: &Session,
        profiles: &StatementProfiles,
        table: &str,
        buckets: Option<u16>,
    ) -> Result<ScanStatements> {
        let select = "SELECT k, v, f, c, e, TTL(v)";
        if buckets.is_none() {
            let text = format!("{select}, token(k) FROM {table}");
            let all = profiles.plain(session, &text).await?;
            let from = profiles.plain(session, &format!("{text} WHERE token(k) >= token(?)")).await?;
            return Ok(ScanStatements::Hash(Box::new([all, from])));
        }
        let text = |condition: &str, order: &str| {
            format!("{select} FROM {table} WHERE b = ?{condition} ORDER BY k {order}")
        };
        let (up, down) = (
            DirectedStatements {
                all: profiles.plain(session, &text("", "ASC")).await?,
                including: profiles.plain(session, &text(" AND k >= ?", "ASC")).await?,
                excluding: profiles.plain(session, &text(" AND k > ?", "ASC")).await?,
            },
            DirectedStatements {
                all: profiles.plain(session, &text("", "DESC")).await?,
                including: profiles.plain(session, &text(" AND k <= ?", "DESC")).await?,
                excluding: profiles.plain(session, &text(" AND k < ?", "DESC")).await?,
            },
        );
        Ok(ScanStatements::Ordered(Box::new([up, down])))
    }
}

fn failed(error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Unavailable, format!("cluster: the records cannot be read: {error}"))
}

/// Returns the number of rows of the next page.
fn page_rows(rows: usize, bytes: usize) -> i32 {
    let row_bytes = (bytes / rows.max(1)).max(1);
    i32::try_from(PAGE_BYTES / row_bytes).unwrap_or(PAGE_ROWS_MAX).clamp(PAGE_ROWS_MIN, PAGE_ROWS_MAX)
}

/// A scan of a hash table.
pub(crate) struct HashScan {
    cluster: Arc<Cluster>,
    /// The key after which the scan begins.
    after: Option<Vec<u8>>,
    paging: Option<PagingState>,
    rows_max: i32,
}

/// The columns of a row of a hash table, with its key and the token of the key.
type HashColumns = (Vec<u8>, Option<Vec<u8>>, Option<i32>, Option<i64>, Option<i64>, Option<i32>, i64);

impl HashScan {
    /// Begins a scan after a key, or at the start.
    pub(crate) fn new(cluster: &Arc<Cluster>, after: Option<&[u8]>) -> HashScan {
        HashScan {
            cluster: Arc::clone(cluster),
            after: after.map(<[u8]>::to_vec),
            paging: Some(PagingState::start()),
            rows_max: PAGE_ROWS_MIN * 4,
        }
    }

    /// Reads the next page. Returns `None` at the end.
    pub(crate) async fn next_page(&mut self) -> Result<Option<Vec<ScannedRecord>>> {
        let ScanStatements::Hash(statements) = &self.cluster.scans else { return Ok(None) };
        let [all, from] = &**statements;
        let Some(paging) = self.paging.take() else { return Ok(None) };
        let mut statement = if self.after.is_some() { from.clone() } else { all.clone() };
        statement.set_page_size(self.rows_max);
        let session = self.cluster.session();
        let page = match &self.after {
            Some(key) => session.execute_single_page(&statement, (key,), paging).await,
            None => session.execute_single_page(&statement, (), paging).await,
        };
        let (result, next) = page.map_err(|error| failed(&error))?;
        self.paging = next.into_paging_control_flow().continue_value_or_none();
        let rows = result.into_rows_result().map_err(|error| failed(&error))?;
        let place_after = self.after.as_deref().and_then(|key| self.cluster.place(key));
        let (mut records, mut bytes) = (Vec::with_capacity(rows.rows_num()), 0);
        for row in rows.rows::<HashColumns>().map_err(|error| failed(&error))? {
            let (key, value, flags, token, expiry, ttl, place) = row.map_err(|error| failed(&error))?;
            // Keys with the same token are ordered by their bytes. Those up to the last key have
            // been passed before.
            if place_after == Some(place) && self.after.as_ref().is_some_and(|after| key <= *after) {
                continue;
            }
            if let Some(row) = StoredRow::new((value, flags, token, expiry, ttl), self.cluster.now()) {
                bytes += key.len() + row.value.len();
                records.push((key, row));
            }
        }
        self.rows_max = page_rows(records.len(), bytes);
        Ok(Some(records))
    }
}

/// Returns the state of the next page.
trait PagingEnd {
    fn continue_value_or_none(self) -> Option<PagingState>;
}

impl PagingEnd for std::ops::ControlFlow<(), PagingState> {
    fn continue_value_or_none(self) -> Option<PagingState> {
        match self {
            std::ops::ControlFlow::Continue(state) => Some(state),
            std::ops::ControlFlow::Break(()) => None,
        }
    }
}

/// A walk through an ordered table in the order of its keys.
pub(crate) struct OrderedWalk {
    cluster: Arc<Cluster>,
    direction: ScanDirection,
    buckets: Vec<BucketPage>,
}

/// The records of one bucket that have been read and not been passed yet.
struct BucketPage {
    records: VecDeque<ScannedRecord>,
    /// The place from which the next page is read; `None` at the end of the bucket.
    next: Option<Bound<Vec<u8>>>,
    rows_max: i32,
}

impl OrderedWalk {
    pub(crate) fn new(cluster: &Arc<Cluster>, direction: ScanDirection, from: Bound<&[u8]>) -> OrderedWalk {
        let bucket = |_| BucketPage {
            records: VecDeque::new(),
            next: Some(from.map(<[u8]>::to_vec)),
            rows_max: FIRST_ROWS,
        };
        let buckets = (0..cluster.buckets.unwrap_or(0)).map(bucket).collect();
        OrderedWalk { cluster: Arc::clone(cluster), direction, buckets }
    }

    /// Returns the next record; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<ScannedRecord>> {
        if self.buckets.iter().any(|bucket| bucket.records.is_empty() && bucket.next.is_some()) {
            self.refill().await?;
        }
        let heads = self.buckets.iter_mut().filter(|bucket| !bucket.records.is_empty());
        let first = match self.direction {
            ScanDirection::Up => heads.min_by(|one, other| one.records[0].0.cmp(&other.records[0].0)),
            ScanDirection::Down => heads.max_by(|one, other| one.records[0].0.cmp(&other.records[0].0)),
        };
        Ok(first.and_then(|bucket| bucket.records.pop_front()))
    }

    /// Reads the next page of each bucket whose records have been passed.
    async fn refill(&mut self) -> Result<()> {
        let mut waiting: VecDeque<usize> = (0..self.buckets.len())
            .filter(|number| self.buckets[*number].records.is_empty())
            .filter(|number| self.buckets[*number].next.is_some())
            .collect();
        let mut reading = JoinSet::new();
        loop {
            while reading.len() < PAGES_MAX
                && let Some(number) = waiting.pop_front()
            {
                let (cluster, direction) = (Arc::clone(&self.cluster), self.direction);
                let bucket = &mut self.buckets[number];
                let (from, rows_max) = (bucket.next.take().unwrap_or(Bound::Unbounded), bucket.rows_max);
                reading.spawn(async move {
                    (number, bucket_page(&cluster, direction, number as i16, &from, rows_max).await)
                });
            }
            let Some(page) = reading.join_next().await else { return Ok(()) };
            let (number, page) = page.map_err(|error| failed(&error))?;
            let (records, has_more, last) = page?;
            let bucket = &mut self.buckets[number];
            let bytes = records.iter().map(|(key, row)| key.len() + row.value.len()).sum();
            bucket.rows_max = page_rows(records.len(), bytes);
            bucket.next = last.filter(|_| has_more).map(Bound::Excluded);
            bucket.records = records.into();
            if bucket.records.is_empty() && bucket.next.is_some() {
                waiting.push_back(number);
            }
        }
    }
}

/// The columns of a row of an ordered table, with its key.
type OrderedColumns = (Vec<u8>, Option<Vec<u8>>, Option<i32>, Option<i64>, Option<i64>, Option<i32>);
/// The records of a page, whether there are more, and the last key.
type ReadPage = (Vec<ScannedRecord>, bool, Option<Vec<u8>>);

async fn bucket_page(
    cluster: &Cluster,
    direction: ScanDirection,
    bucket: i16,
    from: &Bound<Vec<u8>>,
    rows_max: i32,
) -> Result<ReadPage> {
    let ScanStatements::Ordered(directed) = &cluster.scans else { return Ok((Vec::new(), false, None)) };
    let [up, down] = &**directed;
    let statements = if direction == ScanDirection::Up { up } else { down };
    let statement = match from {
        Bound::Unbounded => &statements.all,
        Bound::Included(_) => &statements.including,
        Bound::Excluded(_) => &statements.excluding,
    };
    let mut statement = statement.clone();
    statement.set_page_size(rows_max);
    let (session, start) = (cluster.session(), PagingState::start());
    let page = match from {
        Bound::Unbounded => session.execute_single_page(&statement, (bucket,), start).await,
        Bound::Included(key) | Bound::Excluded(key) => {
            session.execute_single_page(&statement, (bucket, key), start).await
        }
    };
    let (result, next) = page.map_err(|error| failed(&error))?;
    let has_more = next.into_paging_control_flow().is_continue();
    let rows = result.into_rows_result().map_err(|error| failed(&error))?;
    let (mut records, mut last) = (Vec::with_capacity(rows.rows_num()), None);
    for row in rows.rows::<OrderedColumns>().map_err(|error| failed(&error))? {
        let (key, value, flags, token, expiry, ttl) = row.map_err(|error| failed(&error))?;
        last = Some(key.clone());
        if let Some(row) = StoredRow::new((value, flags, token, expiry, ttl), cluster.now()) {
            records.push((key, row));
        }
    }
    Ok((records, has_more, last))
}
