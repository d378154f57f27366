//! `todana bench`: selects the server or database to measure, and connects to it.
//!
//! Not here: the workloads and the measurements (crate `todana_bench`).

use crate::CommandFailure;
use crate::amount::amount;
use crate::command_target::{CommandTarget, LocalDatabase};
use crate::server_options::ServerOptions;
use todana_bench::{
    BenchError, LoadOptions, LoadTarget, MEMORY_AFTER_HELP, MemoryOptions, ReplayOptions, TRACE_AFTER_HELP,
    TraceOptions,
};
use todana_client::{Address, Connection, LoginDestination};

pub(crate) const AFTER_HELP: &str = "\
Examples:
  todana bench
      a million requests, 50 connections, 10 gets per set
  todana bench --pipeline 16 --duration 10s
      batches of 16 requests, for ten seconds
  todana bench --distribution zipf:0.99 --value-size lognormal:300:1 --verify
      few hot keys, realistic sizes, every value checked
  todana bench --plot run.html --json run.json
      a page with charts, and all figures as JSON
  todana bench --load-only --keys 10000000 --value-size key --pid 1234
      the memory of ten million records
  todana bench --pid 1234 --name Todana --vs 127.0.0.1:11212 --vs-pid 1235
      --vs-name memcached --plot both.svg
      two servers in turn: CPU time per request, memory per record, charts
  todana bench ./new.hash --threads 4 --value-size 400
      no server: a database on disk in this process
  todana bench trace oltp.u32.zst
      no server: the miss ratio of recorded requests
  todana bench replay oltp.u32.zst
      the miss ratio of recorded requests on a running server

A connection sends a batch (--pipeline), waits for all its replies, and sends
the next batch. Latency counts from the moment the batch is sent. --seed
determines keys, values and order: two runs with one seed do the same work.

Exit codes: 0 done, 2 wrong usage, 3 a server cannot be reached, refused a
request, or sent a wrong reply.";

/// Options of `todana bench`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    /// The server: host:port, todana://host:port, todanas://host:port (TLS); or a database on disk,
    /// which the benchmark fills. Overrides -S
    #[arg(value_name = "SERVER")]
    named: Option<CommandTarget>,
    #[command(flatten)]
    server: ServerOptions,
    #[command(flatten)]
    load: LoadOptions,
}

#[derive(Debug, clap::Subcommand)]
enum BenchCommand {
    /// Replay recorded requests in the engine and in LRU, S3-FIFO, SIEVE and GDSF: misses
    #[command(after_help = TRACE_AFTER_HELP)]
    Trace(TraceOptions),
    /// Replay recorded requests on a running server: a get for each request, and a set after each
    /// miss
    #[command(after_help = REPLAY_AFTER_HELP)]
    Replay(Box<ReplayArguments>),
    /// Start servers, fill them with records of several shapes, and compare their memory per record
    #[command(after_help = MEMORY_AFTER_HELP)]
    Memory(MemoryOptions),
}

const REPLAY_AFTER_HELP: &str = "\
Examples:
  todana bench replay oltp.u32.zst localhost:11311       the miss ratio of a recorded trace
  todana bench replay oltp.u32.zst --copies 10 --pid 1234
                                                         ten copies at once, each with its own keys
  todana bench replay zipf:0.9 --keys 5000000 --requests 20000000
                                                         random requests, few hot keys
  todana bench replay oltp.u32.zst --dry-run             count requests and keys only

TRACE is a file as for `todana bench trace`, or uniform or zipf:S (./zipf is a
file of that name). The server should be empty. Without --records, keys and
values consist of letters, because Todana stores numbers in fewer bytes. To
compare servers, give their processes the same memory (RssAnon): -m has another
meaning in each server.

Exit codes: 0 done, 2 wrong usage, 3 a trace cannot be read, or the server cannot
be reached or sends a wrong reply. Sets that are refused because memory is full
are counted.";

/// Options of `todana bench replay`.
#[derive(Debug, clap::Args)]
struct ReplayArguments {
    /// The trace: a file; or uniform, zipf or zipf:S for random requests (--requests)
    #[arg(value_name = "TRACE")]
    trace: String,
    /// The server; overrides -S
    #[arg(value_name = "SERVER")]
    named: Option<LoginDestination>,
    #[command(flatten)]
    server: ServerOptions,
    #[command(flatten)]
    replay: ReplayOptions,
}

/// Runs the benchmark. Fails if a server cannot be reached or sent wrong replies.
pub(crate) fn run(arguments: &BenchArguments) -> Result<(), CommandFailure> {
    match &arguments.command {
        Some(BenchCommand::Trace(options)) => Ok(options.run()?),
        Some(BenchCommand::Replay(arguments)) => arguments.run(),
        Some(BenchCommand::Memory(options)) => Ok(options.run()?),
        None => match arguments.place()? {
            CommandTarget::Database(name) => arguments.on_database(&name),
            target => arguments.on_servers(&target.server()?),
        },
    }
}

impl BenchArguments {
    fn place(&self) -> Result<CommandTarget, CommandFailure> {
        self.server.expect_no_database()?;
        self.named.clone().map_or_else(|| self.server.place(None), Ok)
    }

    fn on_database(&self, name: &LocalDatabase) -> Result<(), CommandFailure> {
        if self.load.need_server() {
            return Err(CommandFailure::usage(format!(
                "{name}: is a database on disk; --vs, --pid, --json and --plot need a server"
            )));
        }
        let workload = self.load.workload()?;
        if !self.load.force && name.path().exists() {
            let records = crate::database::open(name, false)?.count();
            expect_empty(Some(records), name)?;
        }
        Ok(self.load.run_embedded(&workload, &crate::database::open(name, true)?)?)
    }

    fn on_servers(&self, first: &LoginDestination) -> Result<(), CommandFailure> {
        let load = &self.load;
        expect_one_pid(self.named.as_ref().map(|_| first), load.pid)?;
        let workload = load.workload()?;
        let mut named = vec![(first, &load.name, load.pid)];
        named.extend(load.vs.as_ref().map(|server| (server, &load.vs_name, load.vs_pid)));
        let addresses: Vec<&Address> = named.iter().map(|(server, ..)| &server.address).collect();
        let tls = self.server.tls.load(&addresses)?;
        let mut servers = Vec::new();
        for (destination, name, pid) in named {
            let login = self.server.login.at(destination)?;
            let address = destination.address.clone();
            if !load.force {
                expect_empty(records(&mut self.server.connect(destination)?)?, &address)?;
            }
            let name = name.clone().unwrap_or_else(|| address.to_string());
            servers.push(LoadTarget { name, address, tls: tls.clone(), login, pid });
        }
        Ok(load.run(&workload, &servers)?)
    }
}

impl ReplayArguments {
    fn run(&self) -> Result<(), CommandFailure> {
        expect_one_pid(self.named.as_ref(), self.replay.pid)?;
        let requests = self.replay.read(&self.trace)?;
        let connection = if self.replay.dry_run { None } else { Some(self.connect()?) };
        Ok(self.replay.run(&self.trace, &requests, connection)?)
    }

    fn connect(&self) -> Result<Connection, CommandFailure> {
        let destination = match &self.named {
            Some(named) => named.clone(),
            None => self.server.place(None)?.server()?,
        };
        let mut connection = self.server.at(destination.clone()).connect()?;
        if !self.replay.force {
            expect_empty(records(&mut connection)?, &destination)?;
        }
        Ok(connection)
    }
}

/// Returns the number of records of a server, or `None` if the server does not report it.
fn records(connection: &mut Connection) -> Result<Option<u64>, CommandFailure> {
    Ok(connection.statistic("curr_items")?.and_then(|count| count.parse().ok()))
}

/// Fails if the server or database holds records, because the benchmark would mix its own records
/// with them.
fn expect_empty(records: Option<u64>, place: &dyn std::fmt::Display) -> Result<(), CommandFailure> {
    match records {
        None | Some(0) => Ok(()),
        Some(count) => Err(CommandFailure::usage(format!(
            "{place}: holds {}; the benchmark would add its own records; --force allows that",
            amount(count, "record")
        ))),
    }
}

/// Fails if the positional argument is a number after `--pid`. The shell expands `--pid $(pidof
/// NAME)` to several process IDs if several processes have that name.
fn expect_one_pid(named: Option<&LoginDestination>, pid: Option<u32>) -> Result<(), CommandFailure> {
    match (named.map(|named| &named.address), pid) {
        (Some(Address::Tcp(host, _)), Some(_)) if host.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err(CommandFailure::usage(format!("{host}: is not a server; --pid takes a single process id")))
        }
        _ => Ok(()),
    }
}

impl From<BenchError> for CommandFailure {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Usage(message) => CommandFailure::usage(message),
            BenchError::Failed(message) => CommandFailure::trouble(message),
            BenchError::Io(error) => error.into(),
            BenchError::Client(error) => error.into(),
            BenchError::Database(error) => error.into(),
        }
    }
}
