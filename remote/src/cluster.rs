//! The session of the driver: its settings, the statements, and their outcomes.
//!
//! Conditional statements go to the first replica of their key, so that those of one key queue
//! there. With the driver's default, a random replica, concurrent increments of one key often ended
//! with an unknown outcome. They are never repeated by the driver. Reads and plain writes are
//! repeated on another node if the first one has not answered after 200 ms. A plain write carries
//! its own time, so that its repetition changes nothing.

use crate::outcome::RequestFailure;
use crate::row::{RowColumns, RowLifetime, StoredRow};
use crate::schema;
use crate::token::{AttemptClock, RowToken, now_us};
use scylla::client::PoolSize;
use scylla::client::execution_profile::{ExecutionProfile, ExecutionProfileHandle};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::errors::ExecutionError;
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::policies::speculative_execution::SimpleSpeculativeExecutionPolicy;
use scylla::response::query_result::QueryResult;
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency};
use scylla::value::{CqlValue, Row};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana::ClusterName;
use todana_core::{Error, ErrorKind, Result, UnixSeconds};
use tokio::sync::{Mutex, MutexGuard};

/// The time after which a request without an answer fails.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// The time after which a read or a plain write is sent to another node, too.
const SPECULATION_AFTER: Duration = Duration::from_millis(200);
/// The number of times that a read or a plain write is tried. A lost connection ends an attempt at
/// once.
const ATTEMPTS_MAX: u32 = 3;
/// The pause before another attempt.
const PAUSE: Duration = Duration::from_millis(20);
const KEEPALIVE: Duration = Duration::from_secs(1);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that the removal of all records, or a change of the schema, may take. Every node takes
/// part in it.
pub(crate) const ALL_NODES_TIMEOUT: Duration = Duration::from_secs(60);

/// The outcome of a conditional write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConditionalOutcome {
    Applied,
    /// The condition does not hold. Shows the token of the row, if the condition compares tokens
    /// and there is a row.
    NotApplied(Option<RowToken>),
}

/// The condition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowCondition {
    /// There is no row.
    Absent,
    /// There is a row.
    Exists,
    /// The row has this token.
    Token(RowToken),
    /// Always holds. The write passes through Paxos, like all other conditional writes.
    Always,
}

/// The columns of a row that is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRow<'r> {
    pub(crate) value: &'r [u8],
    pub(crate) flags: u32,
    pub(crate) token: RowToken,
    pub(crate) lifetime: RowLifetime,
}

/// A table of the cluster, with its statements.
pub(crate) struct Cluster {
    session: Session,
    pub(crate) clock: AttemptClock,
    pub(crate) keyspace: String,
    /// The number of buckets of an ordered table.
    pub(crate) buckets: Option<u16>,
    /// The turns of the buckets. Conditional writes of one bucket would contend on the cluster.
    bucket_turns: Vec<Mutex<()>>,
    reading: PreparedStatement,
    serial_reading: PreparedStatement,
    update: UpdateStatements,
    update_with_ttl: UpdateStatements,
    delete: DeleteStatements,
    pub(crate) scans: crate::scan::ScanStatements,
}

/// The statements that write a row, by their condition.
struct UpdateStatements {
    plain: PreparedStatement,
    absent: PreparedStatement,
    exists: PreparedStatement,
    token: PreparedStatement,
    always: PreparedStatement,
}

/// The statements that remove a row, by their condition.
struct DeleteStatements {
    plain: PreparedStatement,
    exists: PreparedStatement,
    token: PreparedStatement,
}

/// The settings of the driver for one kind of statement.
pub(crate) struct StatementProfiles {
    plain: ExecutionProfileHandle,
    conditional: ExecutionProfileHandle,
}

impl StatementProfiles {
    fn new(name: &ClusterName) -> StatementProfiles {
        let policy = |shuffles: bool| {
            let builder = DefaultPolicy::builder().token_aware(true).enable_shuffling_replicas(shuffles);
            match &name.datacenter {
                Some(datacenter) => builder.prefer_datacenter(datacenter.clone()),
                None => builder,
            }
            .build()
        };
        let base = || {
            ExecutionProfile::builder()
                .request_timeout(Some(REQUEST_TIMEOUT))
                .consistency(Consistency::LocalQuorum)
                .serial_consistency(Some(SerialConsistency::LocalSerial))
                .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
        };
        let speculation =
            SimpleSpeculativeExecutionPolicy { max_retry_count: 1, retry_interval: SPECULATION_AFTER };
        StatementProfiles {
            plain: base()
                .load_balancing_policy(policy(true))
                .speculative_execution_policy(Some(Arc::new(speculation)))
                .build()
                .into_handle(),
            conditional: base()
                .load_balancing_policy(policy(false))
                .speculative_execution_policy(None)
                .build()
                .into_handle(),
        }
    }

    /// Prepares a read or a write without a condition, which may be repeated.
    pub(crate) async fn plain(&self, session: &Session, text: &str) -> Result<PreparedStatement> {
        let mut statement = session.prepare(text).await.map_err(|error| failed(text, &error))?;
        statement.set_execution_profile_handle(Some(self.plain.clone()));
        statement.set_is_idempotent(true);
        // The columns of a table never change, so the answers need not name them.
        statement.set_use_cached_result_metadata(true);
        Ok(statement)
    }

    /// Prepares a statement with a condition.
    async fn conditional(&self, session: &Session, text: &str) -> Result<PreparedStatement> {
        let mut statement = session.prepare(text).await.map_err(|error| failed(text, &error))?;
        statement.set_execution_profile_handle(Some(self.conditional.clone()));
        statement.set_is_idempotent(false);
        Ok(statement)
    }
}

fn failed(object: &str, error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{object}: {error}"))
}

/// Executes a statement whose last values are the key, or the bucket and the key.
macro_rules! execute {
    ($cluster:expr, $statement:expr, ($($value:expr,)*), $key:expr) => {
        match $cluster.bucket($key) {
            None => $cluster.session.execute_unpaged($statement, ($($value,)* $key,)).await,
            Some(bucket) => $cluster.session.execute_unpaged($statement, ($($value,)* bucket, $key)).await,
        }
    };
}

impl Cluster {
    /// Connects to a cluster, and creates the tables if they are missing.
    pub(crate) async fn connect(name: &ClusterName) -> Result<Cluster> {
        let profiles = StatementProfiles::new(name);
        let mut builder = SessionBuilder::new()
            .known_nodes(&name.hosts)
            .connection_timeout(CONNECT_TIMEOUT)
            .keepalive_interval(KEEPALIVE)
            .keepalive_timeout(KEEPALIVE)
            .pool_size(PoolSize::PerHost(NonZeroUsize::MIN))
            .default_execution_profile_handle(profiles.plain.clone());
        if let Some(datacenter) = &name.datacenter {
            builder = builder.prefer_datacenter(datacenter.clone());
        }
        if let Some(path) = &name.login_file {
            let (user, password) = read_login(path)?;
            builder = builder.user(user, password);
        }
        let session = builder.build().await.map_err(|error| failed(&name.hosts.join(","), &error))?;
        schema::ensure(&session, name).await?;
        let (table, key) = match name.buckets {
            None => (format!("{}.kv", name.keyspace), "k = ?"),
            Some(_) => (format!("{}.okv", name.keyspace), "b = ? AND k = ?"),
        };
        let reading = format!("SELECT v, f, c, e, TTL(v) FROM {table} WHERE {key}");
        let mut serial_reading = profiles.conditional(&session, &reading).await?;
        serial_reading.set_consistency(Consistency::LocalSerial);
        let set = "SET v = ?, f = ?, c = ?";
        let update = UpdateStatements {
            plain: profiles
                .plain(&session, &format!("UPDATE {table} USING TIMESTAMP ? {set} WHERE {key}"))
                .await?,
            absent: profiles
                .conditional(&session, &format!("UPDATE {table} {set} WHERE {key} IF c = null"))
                .await?,
            exists: profiles
                .conditional(&session, &format!("UPDATE {table} {set} WHERE {key} IF EXISTS"))
                .await?,
            token: profiles
                .conditional(&session, &format!("UPDATE {table} {set} WHERE {key} IF c = ?"))
                .await?,
            always: profiles
                .conditional(&session, &format!("UPDATE {table} {set} WHERE {key} IF c != 0"))
                .await?,
        };
        let with_ttl = format!("UPDATE {table} USING TTL ?");
        let set = "SET v = ?, f = ?, c = ?, e = ?";
        let update_with_ttl = UpdateStatements {
            plain: profiles.plain(&session, &format!("{with_ttl} AND TIMESTAMP ? {set} WHERE {key}")).await?,
            absent: profiles
                .conditional(&session, &format!("{with_ttl} {set} WHERE {key} IF c = null"))
                .await?,
            exists: profiles
                .conditional(&session, &format!("{with_ttl} {set} WHERE {key} IF EXISTS"))
                .await?,
            token: profiles.conditional(&session, &format!("{with_ttl} {set} WHERE {key} IF c = ?")).await?,
            always: profiles
                .conditional(&session, &format!("{with_ttl} {set} WHERE {key} IF c != 0"))
                .await?,
        };
        let delete = DeleteStatements {
            plain: profiles
                .plain(&session, &format!("DELETE FROM {table} USING TIMESTAMP ? WHERE {key}"))
                .await?,
            exists: profiles
                .conditional(&session, &format!("DELETE FROM {table} WHERE {key} IF EXISTS"))
                .await?,
            token: profiles
                .conditional(&session, &format!("DELETE FROM {table} WHERE {key} IF c = ?"))
                .await?,
        };
        Ok(Cluster {
            reading: profiles.plain(&session, &reading).await?,
            serial_reading,
            update,
            update_with_ttl,
            delete,
            scans: crate::scan::ScanStatements::prepare(&session, &profiles, &table, name.buckets).await?,
            clock: AttemptClock::default(),
            keyspace: name.keyspace.clone(),
            buckets: name.buckets,
            bucket_turns: (0..name.buckets.unwrap_or(0)).map(|_| Mutex::new(())).collect(),
            session,
        })
    }

    /// Returns the bucket of a key in an ordered table.
    fn bucket(&self, key: &[u8]) -> Option<i16> {
        // The hash must be the same in every process and version, so it is FNV-1a.
        let hash = || {
            key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
            })
        };
        self.buckets.map(|buckets| ((hash() >> 32) % u64::from(buckets)) as i16)
    }

    /// Returns the token of a key in a hash table: its place in the order of the cluster.
    pub(crate) fn place(&self, key: &[u8]) -> Option<i64> {
        self.reading.calculate_token(&(key,)).ok().flatten().map(|token| token.value())
    }

    /// Waits for the turn of the bucket of a key, in an ordered table.
    async fn bucket_turn(&self, key: &[u8]) -> Option<MutexGuard<'_, ()>> {
        match self.bucket(key) {
            Some(bucket) => Some(self.bucket_turns[bucket as usize].lock().await),
            None => None,
        }
    }

    /// Returns the current second.
    pub(crate) fn now(&self) -> UnixSeconds {
        UnixSeconds(now_us() / 1_000_000)
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Reads a row. A serial read also completes, or prevents, conditional writes that were under
    /// way.
    pub(crate) async fn read(
        &self,
        key: &[u8],
        is_serial: bool,
    ) -> std::result::Result<Option<StoredRow>, RequestFailure> {
        let statement = if is_serial { &self.serial_reading } else { &self.reading };
        let mut attempts = 1;
        let result = loop {
            let error = match execute!(self, statement, (), key) {
                Ok(result) => break result,
                Err(error) => error,
            };
            log_failure("read", &error);
            match RequestFailure::of_read(&error) {
                RequestFailure::NotExecuted if attempts < ATTEMPTS_MAX => {}
                failure => return Err(failure),
            }
            attempts += 1;
            tokio::time::sleep(PAUSE).await;
        };
        let rows = result.into_rows_result().map_err(|_| RequestFailure::NotExecuted)?;
        let columns = rows.maybe_first_row::<RowColumns>().map_err(|_| RequestFailure::NotExecuted)?;
        Ok(columns.and_then(|columns| StoredRow::new(columns, self.now())))
    }

    /// Writes a row without a condition. An attempt without an answer is repeated with the same
    /// time, which changes nothing if it was executed.
    pub(crate) async fn write(
        &self,
        key: &[u8],
        row: &NewRow<'_>,
    ) -> std::result::Result<(), RequestFailure> {
        let timestamp = self.clock.timestamp_us();
        let (mut attempts, mut is_unknown) = (1, false);
        loop {
            let failure = match self.write_at(key, row, timestamp).await {
                Ok(()) => return Ok(()),
                Err(RequestFailure::Refused) => return Err(RequestFailure::Refused),
                Err(failure) => failure,
            };
            is_unknown |= failure == RequestFailure::Unknown;
            if attempts == ATTEMPTS_MAX {
                return Err(if is_unknown { RequestFailure::Unknown } else { failure });
            }
            attempts += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Writes a row without a condition, once. If the attempt fails at once, the row is surely not
    /// written; otherwise the outcome may be unknown.
    async fn write_at(
        &self,
        key: &[u8],
        row: &NewRow<'_>,
        timestamp: i64,
    ) -> std::result::Result<(), RequestFailure> {
        let began = Instant::now();
        let (value, flags, token) = (row.value, row.flags as i32, row.token.column());
        let result = match row.lifetime {
            RowLifetime::Unlimited => {
                execute!(self, &self.update.plain, (timestamp, value, flags, token,), key)
            }
            RowLifetime::Until { ttl_s, at } => {
                execute!(self, &self.update_with_ttl.plain, (ttl_s, timestamp, value, flags, token, at,), key)
            }
            RowLifetime::Over => execute!(self, &self.delete.plain, (timestamp,), key),
        };
        plain_outcome(result, began)
    }

    /// Waits until a conditional write gets a later time than the plain writes before it. The time
    /// of a conditional write is that of the cluster, in milliseconds. In the same millisecond, a
    /// plain write that was answered before would count as the later one.
    async fn pass_plain_writes(&self) {
        let wait_us = self.clock.until_next_ms(now_us());
        if wait_us > 0 {
            tokio::time::sleep(Duration::from_micros(wait_us)).await;
        }
    }

    /// Writes a row if a condition holds.
    pub(crate) async fn write_if(
        &self,
        key: &[u8],
        row: &NewRow<'_>,
        condition: RowCondition,
    ) -> std::result::Result<ConditionalOutcome, RequestFailure> {
        if row.lifetime == RowLifetime::Over {
            return self.remove_if(key, condition).await;
        }
        self.pass_plain_writes().await;
        let (value, flags, token) = (row.value, row.flags as i32, row.token.column());
        let _turn = self.bucket_turn(key).await;
        let result = match row.lifetime {
            RowLifetime::Over | RowLifetime::Unlimited => {
                let statements = &self.update;
                match condition {
                    RowCondition::Absent => execute!(self, &statements.absent, (value, flags, token,), key),
                    RowCondition::Exists => execute!(self, &statements.exists, (value, flags, token,), key),
                    RowCondition::Always => execute!(self, &statements.always, (value, flags, token,), key),
                    RowCondition::Token(old) => match self.bucket(key) {
                        None => {
                            let values = (value, flags, token, key, old.column());
                            self.session.execute_unpaged(&statements.token, values).await
                        }
                        Some(bucket) => {
                            let values = (value, flags, token, bucket, key, old.column());
                            self.session.execute_unpaged(&statements.token, values).await
                        }
                    },
                }
            }
            RowLifetime::Until { ttl_s, at } => {
                let statements = &self.update_with_ttl;
                match condition {
                    RowCondition::Absent => {
                        execute!(self, &statements.absent, (ttl_s, value, flags, token, at,), key)
                    }
                    RowCondition::Exists => {
                        execute!(self, &statements.exists, (ttl_s, value, flags, token, at,), key)
                    }
                    RowCondition::Always => {
                        execute!(self, &statements.always, (ttl_s, value, flags, token, at,), key)
                    }
                    RowCondition::Token(old) => match self.bucket(key) {
                        None => {
                            let values = (ttl_s, value, flags, token, at, key, old.column());
                            self.session.execute_unpaged(&statements.token, values).await
                        }
                        Some(bucket) => {
                            let values = (ttl_s, value, flags, token, at, bucket, key, old.column());
                            self.session.execute_unpaged(&statements.token, values).await
                        }
                    },
                }
            }
        };
        conditional_outcome(result)
    }

    /// Removes a row if a condition holds.
    pub(crate) async fn remove_if(
        &self,
        key: &[u8],
        condition: RowCondition,
    ) -> std::result::Result<ConditionalOutcome, RequestFailure> {
        self.pass_plain_writes().await;
        let _turn = self.bucket_turn(key).await;
        let result = match condition {
            RowCondition::Token(old) => match self.bucket(key) {
                None => self.session.execute_unpaged(&self.delete.token, (key, old.column())).await,
                Some(bucket) => {
                    self.session.execute_unpaged(&self.delete.token, (bucket, key, old.column())).await
                }
            },
            RowCondition::Exists | RowCondition::Always | RowCondition::Absent => {
                execute!(self, &self.delete.exists, (), key)
            }
        };
        conditional_outcome(result)
    }

    /// Removes all rows.
    pub(crate) async fn truncate(&self) -> std::result::Result<(), RequestFailure> {
        let table = if self.buckets.is_some() { "okv" } else { "kv" };
        let text = format!("TRUNCATE {}.{table}", self.keyspace);
        let mut statement = scylla::statement::unprepared::Statement::new(text);
        statement.set_request_timeout(Some(ALL_NODES_TIMEOUT));
        let result = self.session.query_unpaged(statement, ()).await;
        plain_outcome(result, Instant::now())
    }
}

fn log_failure(what: &str, error: &ExecutionError) {
    tracing::debug!("{what}: {error}");
}

fn plain_outcome(
    result: std::result::Result<QueryResult, ExecutionError>,
    began: Instant,
) -> std::result::Result<(), RequestFailure> {
    let Err(error) = result else { return Ok(()) };
    log_failure("write", &error);
    Err(match RequestFailure::of_write(&error) {
        // The error is that of the last attempt. If there was more than one, another may have
        // succeeded.
        RequestFailure::NotExecuted if began.elapsed() >= SPECULATION_AFTER => RequestFailure::Unknown,
        failure => failure,
    })
}

/// Reads the answer to a conditional statement: column `[applied]`, and the columns of the
/// condition if it does not hold.
fn conditional_outcome(
    result: std::result::Result<QueryResult, ExecutionError>,
) -> std::result::Result<ConditionalOutcome, RequestFailure> {
    let result = result.map_err(|error| {
        log_failure("conditional write", &error);
        RequestFailure::of_write(&error)
    })?;
    let rows = result.into_rows_result().map_err(|_| RequestFailure::Unknown)?;
    let names: Vec<String> = rows.column_specs().iter().map(|column| column.name().to_owned()).collect();
    let row = rows.first_row::<Row>().map_err(|_| RequestFailure::Unknown)?;
    let mut outcome = ConditionalOutcome::NotApplied(None);
    for (name, column) in names.iter().zip(row.columns) {
        match (name.as_str(), column) {
            ("[applied]", Some(CqlValue::Boolean(true))) => return Ok(ConditionalOutcome::Applied),
            ("c", Some(CqlValue::BigInt(token))) => {
                outcome = ConditionalOutcome::NotApplied(Some(RowToken::from_column(token)));
            }
            _ => {}
        }
    }
    Ok(outcome)
}

/// Reads the name and the password for the cluster.
fn read_login(path: &str) -> Result<(String, String)> {
    let text = std::fs::read_to_string(path).map_err(|error| failed(path, &error))?;
    let pair = text.trim_end_matches(['\r', '\n']).split_once(':');
    let (user, password) = pair.ok_or_else(|| {
        Error::new(ErrorKind::Invalid, format!("{path}: must be one line of the form NAME:PASSWORD"))
    })?;
    Ok((user.to_owned(), password.to_owned()))
}
