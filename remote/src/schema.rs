//! The tables of a keyspace. They are created if they are missing; the keyspace itself only if the
//! name of the database says with how many copies.

use crate::cluster::ALL_NODES_TIMEOUT;
use scylla::client::session::Session;
use scylla::statement::unprepared::Statement;
use todana::ClusterName;
use todana_core::{Error, ErrorKind, Result};

/// A table, with the columns that must exist and their types.
struct TableSchema {
    name: &'static str,
    columns: &'static [(&'static str, &'static str)],
    primary_key: &'static str,
}

const HASH_TABLE: TableSchema = TableSchema {
    name: "kv",
    columns: &[("k", "blob"), ("v", "blob"), ("f", "int"), ("c", "bigint"), ("e", "bigint")],
    primary_key: "k",
};
const ORDERED_TABLE: TableSchema = TableSchema {
    name: "okv",
    columns: &[
        ("b", "smallint"),
        ("k", "blob"),
        ("v", "blob"),
        ("f", "int"),
        ("c", "bigint"),
        ("e", "bigint"),
    ],
    primary_key: "(b), k",
};

impl TableSchema {
    fn creation(&self, keyspace: &str) -> String {
        let columns: Vec<String> = self.columns.iter().map(|(name, kind)| format!("{name} {kind}")).collect();
        format!(
            "CREATE TABLE IF NOT EXISTS {keyspace}.{} ({}, PRIMARY KEY ({}))",
            self.name,
            columns.join(", "),
            self.primary_key
        )
    }
}

/// Creates the tables of a database if they are missing. Fails with `Invalid` if the keyspace is
/// missing or a table has other columns. The error contains the statement that is needed.
pub(crate) async fn ensure(session: &Session, name: &ClusterName) -> Result<()> {
    let keyspace = &name.keyspace;
    if text_rows(
        session,
        "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?",
        keyspace,
    )
    .await?
    .is_empty()
    {
        create_keyspace(session, name).await?;
    }
    let table = if name.buckets.is_some() { &ORDERED_TABLE } else { &HASH_TABLE };
    let creation = table.creation(keyspace);
    session.query_unpaged(schema_change(&creation), ()).await.map_err(|error| {
        let message = format!(
            "keyspace {keyspace}: table {} is missing and cannot be created: {error}; execute: {creation};",
            table.name
        );
        Error::new(ErrorKind::Invalid, message)
    })?;
    await_agreement(session).await?;
    expect_columns(session, keyspace, table).await
}

/// Returns the datacenters of the cluster.
fn datacenters(session: &Session) -> Vec<String> {
    let state = session.get_cluster_state();
    let mut names: Vec<String> =
        state.get_nodes_info().iter().filter_map(|node| node.datacenter.clone()).collect();
    names.sort();
    names.dedup();
    names
}

async fn create_keyspace(session: &Session, name: &ClusterName) -> Result<()> {
    let copies = name.replication.unwrap_or(3);
    let places: Vec<String> =
        datacenters(session).iter().map(|datacenter| format!("'{datacenter}': {copies}")).collect();
    let statement = format!(
        "CREATE KEYSPACE IF NOT EXISTS {} WITH replication = {{'class': 'NetworkTopologyStrategy', {}}}",
        name.keyspace,
        places.join(", ")
    );
    let missing = |problem: &str| {
        let message = format!("keyspace {}: {problem}; execute: {statement};", name.keyspace);
        Error::new(ErrorKind::Invalid, message)
    };
    if name.replication.is_none() {
        return Err(missing(
            "does not exist; add #replication=COPIES to the name of the database to create it, or create it yourself",
        ));
    }
    let created = session.query_unpaged(schema_change(&statement), ()).await;
    created.map_err(|error| missing(&format!("does not exist and cannot be created: {error}")))?;
    await_agreement(session).await
}

/// Returns a statement with the time that all nodes may need to agree on a change of the schema.
fn schema_change(text: &str) -> Statement {
    let mut statement = Statement::new(text);
    statement.set_request_timeout(Some(ALL_NODES_TIMEOUT));
    statement
}

async fn await_agreement(session: &Session) -> Result<()> {
    let agreed = session.await_schema_agreement().await;
    agreed.map(drop).map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("cluster: the nodes do not agree on the tables: {error}"))
    })
}

/// Checks that a table has the columns that are needed, with their types.
async fn expect_columns(session: &Session, keyspace: &str, table: &TableSchema) -> Result<()> {
    let statement = format!(
        "SELECT column_name, type FROM system_schema.columns WHERE keyspace_name = ? AND table_name = '{}'",
        table.name
    );
    let found = pairs(session, &statement, keyspace).await?;
    for (column, kind) in table.columns {
        let problem = match found.iter().find(|(name, _)| name == column) {
            Some((_, found)) if found == kind => continue,
            Some((_, found)) => {
                format!("column {column} has the type {found} in place of {kind}; use another keyspace")
            }
            None => format!(
                "column {column} is missing; execute: ALTER TABLE {keyspace}.{} ADD {column} {kind};",
                table.name
            ),
        };
        return Err(Error::new(ErrorKind::Invalid, format!("table {keyspace}.{}: {problem}", table.name)));
    }
    Ok(())
}

async fn text_rows(session: &Session, statement: &str, keyspace: &str) -> Result<Vec<String>> {
    let result = session.query_unpaged(statement, (keyspace,)).await.map_err(|error| unreadable(&error))?;
    let rows = result.into_rows_result().map_err(|error| unreadable(&error))?;
    let rows = rows.rows::<(String,)>().map_err(|error| unreadable(&error))?;
    rows.map(|row| row.map(|(name,)| name).map_err(|error| unreadable(&error))).collect()
}

async fn pairs(session: &Session, statement: &str, keyspace: &str) -> Result<Vec<(String, String)>> {
    let result = session.query_unpaged(statement, (keyspace,)).await.map_err(|error| unreadable(&error))?;
    let rows = result.into_rows_result().map_err(|error| unreadable(&error))?;
    let rows = rows.rows::<(String, String)>().map_err(|error| unreadable(&error))?;
    rows.map(|row| row.map_err(|error| unreadable(&error))).collect()
}

fn unreadable(error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Unavailable, format!("cluster: the tables cannot be listed: {error}"))
}
