//! A cluster of Apache Cassandra on loopback addresses of this machine. Its libraries come from
//! Maven's central repository. It needs Maven and Java 11 or 17.

use crate::step::{program, target_directory};
use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const VERSION: &str = "5.0.9";
/// The time in which the nodes must serve clients.
const START_MAX: Duration = Duration::from_secs(240);

/// The packages of Java to which Cassandra needs access.
const EXPORTS: [&str; 9] = [
    "java.base/jdk.internal.misc",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "java.base/java.lang.ref",
    "jdk.unsupported/sun.misc",
    "jdk.compiler/com.sun.tools.javac.file",
    "jdk.attach/sun.tools.attach",
];
const OPENS: [&str; 15] = [
    "java.base/java.lang.module",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.util.jar",
    "jdk.management/com.sun.management.internal",
    "java.base/sun.nio.ch",
    "java.base/java.io",
    "java.base/java.lang.reflect",
    "java.base/java.nio",
    "jdk.compiler/com.sun.tools.javac",
    "java.base/java.lang",
    "java.base/java.util",
];

/// A running cluster. It ends, and its files are removed, when this value is dropped.
pub(super) struct LocalCluster {
    folder: PathBuf,
    classpath: String,
    ports: ClusterPorts,
    /// The number of nodes at the start. The tokens of later ones are between theirs.
    first_nodes: usize,
    nodes: Vec<Child>,
}

/// The ports of all nodes. Each node has an address of its own.
#[derive(Clone, Copy)]
struct ClusterPorts {
    clients: u16,
    nodes: u16,
    management: u16,
}

impl LocalCluster {
    /// Starts a cluster of this number of nodes. Fails with the reason if that is not possible on
    /// this machine.
    pub(super) fn start(nodes: usize) -> Result<LocalCluster, String> {
        let folder = target_directory().join("cassandra");
        let folder = std::path::absolute(&folder).map_err(|error| error.to_string())?;
        // The files of an earlier cluster belong to other ports.
        let _ = fs::remove_dir_all(folder.join("nodes"));
        let classpath = classpath(&folder)?;
        let ports = ClusterPorts { clients: free_port()?, nodes: free_port()?, management: free_port()? };
        let mut cluster = LocalCluster { folder, classpath, ports, first_nodes: nodes, nodes: Vec::new() };
        for number in 1..=nodes {
            let node = cluster.launch(number)?;
            cluster.nodes.push(node);
        }
        for number in 1..=nodes {
            cluster.await_clients(number)?;
        }
        Ok(cluster)
    }

    /// Waits until a node serves clients.
    fn await_clients(&mut self, number: usize) -> Result<(), String> {
        let since = Instant::now();
        while TcpStream::connect((address(number), self.ports.clients)).is_err() {
            let has_ended = self.nodes[number - 1].try_wait().is_ok_and(|ended| ended.is_some());
            if has_ended || since.elapsed() > START_MAX {
                return Err(format!(
                    "node {number} of Cassandra does not serve clients; see {}",
                    self.node_folder(number).display()
                ));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// Adds a node, which first copies its share of the records.
    pub(super) fn add(&mut self) -> Result<(), String> {
        let number = self.nodes.len() + 1;
        let node = self.launch(number)?;
        self.nodes.push(node);
        self.await_clients(number)
    }

    /// Kills a node.
    pub(super) fn kill(&mut self, number: usize) -> Result<(), String> {
        let node = &mut self.nodes[number - 1];
        node.kill().and_then(|()| node.wait()).map(drop).map_err(|error| error.to_string())
    }

    /// Starts a killed node with its files.
    pub(super) fn start_again(&mut self, number: usize) -> Result<(), String> {
        self.nodes[number - 1] = self.launch(number)?;
        self.await_clients(number)
    }

    /// Pauses a node, whose connections stay open.
    pub(super) fn pause(&self, number: usize) -> Result<(), String> {
        self.signal(number, Signal::STOP)
    }

    /// Lets a paused node continue.
    pub(super) fn resume(&self, number: usize) -> Result<(), String> {
        self.signal(number, Signal::CONT)
    }

    fn signal(&self, number: usize, signal: Signal) -> Result<(), String> {
        let pid = Pid::from_child(&self.nodes[number - 1]);
        kill_process(pid, signal).map_err(|error| error.to_string())
    }

    /// Returns the addresses for clients, separated by commas.
    pub(super) fn contact_points(&self) -> String {
        let points =
            (1..=self.nodes.len()).map(|number| format!("{}:{}", address(number), self.ports.clients));
        points.collect::<Vec<_>>().join(",")
    }

    fn node_folder(&self, number: usize) -> PathBuf {
        self.folder.join("nodes").join(number.to_string())
    }

    fn launch(&self, number: usize) -> Result<Child, String> {
        let folder = self.node_folder(number);
        let configuration = folder.join("conf");
        let write = |name: &str, text: &str| {
            fs::write(configuration.join(name), text).map_err(|error| format!("{name}: {error}"))
        };
        fs::create_dir_all(&configuration).map_err(|error| error.to_string())?;
        fs::create_dir_all(folder.join("tmp")).map_err(|error| error.to_string())?;
        write("cassandra.yaml", &self.configuration(number, &folder))?;
        write("cassandra-rackdc.properties", "dc=dc1\nrack=rack1\n")?;
        write("logback.xml", &logging(&folder))?;
        let console = File::create(folder.join("console.log")).map_err(|error| error.to_string())?;
        let errors = console.try_clone().map_err(|error| error.to_string())?;
        let shown = |path: &Path| path.display().to_string();
        let mut java = Command::new("java");
        java.args(["-Xms256M", "-Xmx256M", "-Xss256k", "-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=256M"]);
        java.args(["-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError", "-Djdk.attach.allowAttachSelf=true"]);
        for package in EXPORTS {
            java.args(["--add-exports", &format!("{package}=ALL-UNNAMED")]);
        }
        for package in OPENS {
            java.args(["--add-opens", &format!("{package}=ALL-UNNAMED")]);
        }
        java.args(["-Dio.netty.tryReflectionSetAccessible=true", "-Djava.net.preferIPv4Stack=true"]);
        for (name, path) in [
            ("java.io.tmpdir", shown(&folder.join("tmp"))),
            ("jna.tmpdir", shown(&folder.join("tmp"))),
            ("cassandra.config", format!("file://{}", configuration.join("cassandra.yaml").display())),
            (
                "cassandra-rackdc.properties",
                format!("file://{}", configuration.join("cassandra-rackdc.properties").display()),
            ),
            ("logback.configurationFile", shown(&configuration.join("logback.xml"))),
            ("cassandra.storagedir", shown(&folder)),
            ("cassandra.logdir", shown(&folder)),
            ("cassandra.jmx.local.port", (usize::from(self.ports.management) + number).to_string()),
            ("cassandra.ring_delay_ms", "5000".into()),
            ("cassandra.consistent.rangemovement", "false".into()),
            ("cassandra.skip_wait_for_gossip_to_settle", "0".into()),
            ("cassandra.superuser_setup_delay_ms", "0".into()),
            ("cassandra-foreground", "yes".into()),
        ] {
            java.arg(format!("-D{name}={path}"));
        }
        java.arg("-cp").arg(format!("{}:{}", configuration.display(), self.classpath));
        java.arg("org.apache.cassandra.service.CassandraDaemon").current_dir(&folder);
        java.stdin(Stdio::null()).stdout(console).stderr(errors);
        java.spawn().map_err(|error| format!("java: cannot be started: {error}"))
    }

    /// Returns the text of a node's `cassandra.yaml`.
    fn configuration(&self, number: usize, folder: &Path) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            // A write to a String cannot fail.
            let _ = writeln!(text, "{name}: {value}");
        };
        // One token for each node, so that all nodes can start at once. A later node takes half of
        // the range of another one.
        let step = i128::from(u64::MAX) / self.first_nodes as i128;
        let is_first = number <= self.first_nodes;
        let end = i128::from(i64::MIN) + step * ((number - 1) % self.first_nodes + 1) as i128;
        line("initial_token", &(if is_first { end } else { end - step / 2 }));
        line("auto_bootstrap", &!is_first);
        line("listen_address", &address(number));
        line("rpc_address", &address(number));
        line("storage_port", &self.ports.nodes);
        line("native_transport_port", &self.ports.clients);
        for name in ["commitlog", "hints", "saved_caches", "cdc_raw"] {
            line(&format!("{name}_directory"), &folder.join(name).display());
        }
        let _ = write!(
            text,
            "data_file_directories: [{}/data]\n\
             seed_provider: [{{class_name: org.apache.cassandra.locator.SimpleSeedProvider, \
             parameters: [{{seeds: \"{}:{}\"}}]}}]\n",
            folder.display(),
            address(1),
            self.ports.nodes
        );
        text + SETTINGS
    }
}

/// The settings that are the same for all nodes.
const SETTINGS: &str = "\
cluster_name: todana-test
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: GossipingPropertyFileSnitch
start_native_transport: true
authenticator: AllowAllAuthenticator
authorizer: AllowAllAuthorizer
commitlog_sync: periodic
commitlog_sync_period: 10s
commitlog_segment_size: 16MiB
commitlog_total_space: 256MiB
hinted_handoff_enabled: true
paxos_variant: v2
storage_compatibility_mode: NONE
auto_snapshot: false
concurrent_reads: 8
concurrent_writes: 8
concurrent_compactors: 1
memtable_flush_writers: 1
memtable_heap_space: 96MiB
memtable_offheap_space: 96MiB
networking_cache_size: 16MiB
file_cache_size: 32MiB
key_cache_size: 8MiB
native_transport_max_threads: 64
native_transport_max_frame_size: 16MiB
read_request_timeout: 5s
write_request_timeout: 2s
cas_contention_timeout: 5s
truncate_request_timeout: 60s
";

fn address(number: usize) -> String {
    format!("127.0.87.{number}")
}

/// Returns a port that no program uses now.
fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind((address(1).as_str(), 0)).map_err(|error| error.to_string())?;
    listener.local_addr().map(|address| address.port()).map_err(|error| error.to_string())
}

fn logging(folder: &Path) -> String {
    format!(
        "<configuration><appender name=\"FILE\" class=\"ch.qos.logback.core.FileAppender\">\
         <file>{}/system.log</file><encoder><pattern>%-5level %date %msg%n</pattern></encoder></appender>\
         <root level=\"INFO\"><appender-ref ref=\"FILE\"/></root></configuration>\n",
        folder.display()
    )
}

/// Returns the libraries of Cassandra, which Maven fetches into its own repository.
fn classpath(folder: &Path) -> Result<String, String> {
    let list = folder.join(format!("classpath-{VERSION}"));
    if let Ok(classpath) = fs::read_to_string(&list) {
        let is_complete = classpath.split(':').all(|library| Path::new(library).is_file());
        if is_complete {
            return Ok(classpath);
        }
    }
    if !program("java", &["-version"]).succeeds() || !program("mvn", &["-version"]).succeeds() {
        return Err("Cassandra needs Maven and Java 11 or 17, which are not installed".into());
    }
    let project = folder.join("maven");
    fs::create_dir_all(&project).map_err(|error| error.to_string())?;
    let text = format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>\
         <groupId>local</groupId><artifactId>cassandra-run</artifactId><version>1</version>\
         <packaging>pom</packaging><dependencies><dependency><groupId>org.apache.cassandra</groupId>\
         <artifactId>cassandra-all</artifactId><version>{VERSION}</version></dependency></dependencies></project>\n"
    );
    fs::write(project.join("pom.xml"), text).map_err(|error| error.to_string())?;
    let output = format!("-Dmdep.outputFile={}", list.display());
    let words = ["-q", "-B", "dependency:build-classpath", "-DincludeScope=runtime", &output];
    if !program("mvn", &words).folder(&project).succeeds() {
        return Err("Maven cannot fetch org.apache.cassandra:cassandra-all".into());
    }
    fs::read_to_string(&list).map_err(|error| format!("{}: {error}", list.display()))
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
        let _ = fs::remove_dir_all(self.folder.join("nodes"));
    }
}
