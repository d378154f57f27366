//! Tests spans of OpenTelemetry: a collector in the test receives exactly those of the requests
//! that name a trace, and a collector that fails harms no request.

use crate::running::{Client, Running, WAIT_MAX, eventually, options};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use todana::update_log::SyncPolicy;
use todana_protocol::trace_context::TraceContext;
use todana_server::{
    DataDirectoryOptions, DatabaseOptions, ObservationOptions, ReplicationOptions, ServerOptions,
    TraceOptions,
};

const TRACE_ID: [u8; 16] = *b"\x4b\xf9\x2f\x35\x77\xb3\x4d\xa6\xa3\xce\x92\x9d\x0e\x0e\x47\x36";
const TRACE: TraceContext = TraceContext { trace_id: TRACE_ID, parent_span_id: None };
const CALL: TraceContext = TraceContext { parent_span_id: Some(*b"\0\xf0\x67\xaa\x0b\xa9\x02\xb7"), ..TRACE };

/// Returns the reply to a read of a record that does not exist.
fn miss() -> String {
    format!("EN O{TRACE}\r\n")
}

fn traced(collector: &TcpListener, with_keys: bool, options: ServerOptions) -> Running {
    let collector = format!("http://{}/otlp", collector.local_addr().unwrap()).parse().unwrap();
    let traces = Some(TraceOptions { collector, with_keys });
    Running::start(ServerOptions {
        observation: ObservationOptions { traces, ..options.observation },
        ..options
    })
}

/// Accepts one request, checks its head, answers it, and returns its spans.
fn receive(collector: &TcpListener, response: &str) -> Vec<Value> {
    let (stream, _) = collector.accept().unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let mut reader = BufReader::new(&stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line == "\r\n" {
            break;
        }
        lines.push(line.trim_end().to_owned());
    }
    assert_eq!(lines[0], "POST /otlp/v1/traces HTTP/1.1");
    assert!(lines.contains(&"Content-Type: application/json".into()), "{lines:?}");
    assert!(lines.contains(&format!("Host: {}", collector.local_addr().unwrap())), "{lines:?}");
    let len = lines.iter().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
    let mut body = vec![0; len.parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    (&stream).write_all(format!("HTTP/1.1 {response}\r\nContent-Length: 2\r\n\r\n{{}}").as_bytes()).unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    let resource = &body["resourceSpans"][0];
    assert_eq!(resource["resource"]["attributes"][0], text("service.name", "todana"));
    resource["scopeSpans"][0]["spans"].as_array().unwrap().clone()
}

/// Receives this number of spans, which may arrive in several requests.
fn receive_spans(collector: &TcpListener, count: usize) -> Vec<Value> {
    let mut spans = Vec::new();
    while spans.len() < count {
        spans.extend(receive(collector, "200 OK"));
    }
    spans
}

fn text(name: &str, value: &str) -> Value {
    json!({ "key": name, "value": { "stringValue": value } })
}

/// Removes the fields of a span that differ in each run, and checks them.
fn without_times(mut span: Value, client: &Client, since: Duration) -> Value {
    let fields = span.as_object_mut().unwrap();
    let id = fields.remove("spanId").unwrap();
    assert!(id.as_str().is_some_and(|id| id.len() == 16 && id != "0000000000000000"), "{id}");
    let mut time = |name| fields.remove(name).unwrap().as_str().unwrap().parse::<u128>().unwrap();
    let (start, end) = (time("startTimeUnixNano"), time("endTimeUnixNano"));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    assert!(since.as_nanos() <= start && start < end && end <= now.as_nanos(), "{since:?} {start} {end}");
    let attributes = fields.get_mut("attributes").unwrap().as_array_mut().unwrap();
    let number = |name: &str, port: u16| json!({ "key": name, "value": { "intValue": port.to_string() } });
    let (local, peer) = (client.stream.peer_addr().unwrap(), client.stream.local_addr().unwrap());
    let ends = [
        text("server.address", "127.0.0.1"),
        number("server.port", local.port()),
        text("network.peer.address", "127.0.0.1"),
        number("network.peer.port", peer.port()),
    ];
    assert_eq!(attributes.split_off(attributes.len() - 4), ends);
    span
}

fn span(parent: Option<&str>, command: &str, rest: &[Value], error: Option<&str>) -> Value {
    let mut attributes =
        vec![text("db.system.name", "todana"), text("db.operation.name", command), text("db.namespace", "0")];
    attributes.extend_from_slice(rest);
    let mut span = json!({
        "traceId": "4bf92f3577b34da6a3ce929d0e0e4736", "name": command, "kind": 2, "attributes": attributes
    });
    if let Some(parent) = parent {
        span["parentSpanId"] = parent.into();
    }
    if let Some(error) = error {
        span["status"] = json!({ "code": 2, "message": error });
    }
    span
}

#[test]
fn requests_with_a_trace_have_one_span_each() {
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = traced(&collector, false, options());
    let mut client = server.connect();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // The second request names no trace, and the last one has no reply.
    let long = "v".repeat(300_000);
    client.send(
        format!(
            "ms k 1 O{CALL}\r\n5\r\nmg k v O17\r\nmg k v k O{TRACE}/17\r\nmg none v O{TRACE}\r\n\
             ma none O{TRACE}\r\nms k 300000 O{TRACE}\r\n{long}\r\nma k O{TRACE}\r\nmd k q O{TRACE}\r\nmn\r\n"
        )
        .as_bytes(),
    );
    let error = "CLIENT_ERROR cannot increment or decrement non-numeric value";
    client.expect(
        format!(
            "HD O{CALL}\r\nVA 1 O17\r\n5\r\nVA 1 kk O{TRACE}/17\r\n5\r\nEN O{TRACE}\r\nNF O{TRACE}\r\nHD O{TRACE}\r\n\
             {error}\r\nMN\r\n"
        )
        .as_bytes(),
    );
    let spans = receive_spans(&collector, 7);
    let spans: Vec<Value> = spans.into_iter().map(|span| without_times(span, &client, since)).collect();
    let code = |code| text("db.response.status_code", code);
    let failed = [code("CLIENT_ERROR"), text("error.type", "CLIENT_ERROR")];
    let expected = [
        span(Some("00f067aa0ba902b7"), "ms", &[code("HD")], None),
        span(None, "mg", &[code("VA")], None),
        span(None, "mg", &[code("EN")], None),
        span(None, "ma", &[code("NF")], None),
        span(None, "ms", &[code("HD")], None),
        span(None, "ma", &failed, Some(error)),
        span(None, "md", &[], None),
    ];
    assert_eq!(spans, expected);
    eventually("all spans are counted", || client.stat("todana_spans_sent") == "7");
    assert_eq!(client.stat("todana_spans_dropped"), "0");
}

#[test]
fn spans_have_keys_only_on_request() {
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = traced(&collector, true, options());
    let mut client = server.connect();
    client.send(format!("mg user:1 v O{TRACE}\r\n").as_bytes());
    client.expect(miss().as_bytes());
    let span = &receive_spans(&collector, 1)[0];
    assert!(span["attributes"].as_array().unwrap().contains(&text("todana.key", "user:1")), "{span}");
}

#[test]
fn span_includes_the_wait_for_replicas() {
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ack_time_max = Duration::from_millis(50);
    let replication =
        ReplicationOptions { server_id: 1, acks: 1, ack_time_max, ..ReplicationOptions::default() };
    let data = Some(DataDirectoryOptions::new(folder.path().into(), SyncPolicy::Always));
    let databases = DatabaseOptions { data, replication, ..options().databases };
    let server = traced(&collector, false, ServerOptions { databases, ..options() });
    let mut client = server.connect();
    client.send(format!("ms k 1 O{TRACE}\r\nv\r\n").as_bytes());
    assert!(client.line().starts_with("SERVER_ERROR"));
    let span = &receive_spans(&collector, 1)[0];
    assert_eq!(span["status"], json!({ "code": 2, "message": "change_refused" }));
    let time = |name: &str| span[name].as_str().unwrap().parse::<u128>().unwrap();
    let waited = time("endTimeUnixNano") - time("startTimeUnixNano");
    assert!(waited >= ack_time_max.as_nanos(), "{waited}");
}

#[test]
fn unsent_reply_fails_its_span() {
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = traced(&collector, false, options());
    let mut client = server.connect();
    client.set(b"k", &vec![b'v'; 1_000_000]);
    // The replies are longer than the buffers of both sockets.
    client.send(format!("mg k v O{TRACE}\r\n").repeat(50).as_bytes());
    client.expect(b"VA 1000000 ");
    drop(client);
    let spans = std::iter::repeat_with(|| receive(&collector, "200 OK")).flatten();
    let failed = spans.into_iter().find(|span| span["status"]["message"] == "connection_closed");
    let attributes = failed.unwrap()["attributes"].as_array().unwrap().clone();
    assert!(attributes.contains(&text("error.type", "connection_closed")), "{attributes:?}");
    assert!(attributes.iter().all(|attribute| attribute["key"] != "db.response.status_code"));
}

#[test]
fn spans_survive_a_restart_of_the_collector() {
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = traced(&collector, false, options());
    let mut client = server.connect();
    client.send(format!("mg k v O{TRACE}\r\n").as_bytes());
    client.expect(miss().as_bytes());
    let first = receive(&collector, "503 Service Unavailable");
    assert_eq!(receive(&collector, "200 OK"), first);
    client.send(format!("mg k v O{TRACE}\r\n").as_bytes());
    client.expect(miss().as_bytes());
    assert_eq!(receive(&collector, "400 Bad Request").len(), 1);
    eventually("the refused span is counted", || client.stat("todana_spans_dropped") == "1");
    assert_eq!(client.stat("todana_spans_sent"), "1");
}

#[test]
fn stuck_collector_holds_up_no_request() {
    // The kernel accepts connections, and nobody answers.
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut server = traced(&collector, false, options());
    let mut client = server.connect();
    let count = 5000;
    for _ in 0..count / 50 {
        client.send(format!("mg k v O{TRACE}\r\n").repeat(50).as_bytes());
        client.expect(miss().repeat(50).as_bytes());
    }
    // At most 2048 wait in the queue, and 512 are being sent.
    let dropped: usize = client.stat("todana_spans_dropped").parse().unwrap();
    assert!((count - 2560..count).contains(&dropped), "{dropped}");
    assert_eq!(client.stat("todana_spans_sent"), "0");
    drop(client);
    server.handle.stop();
    server.join();
}

#[test]
fn last_spans_are_sent_at_the_stop() {
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut server = traced(&collector, false, options());
    let mut client = server.connect();
    client.send(format!("mg k v O{TRACE}\r\n").as_bytes());
    client.expect(miss().as_bytes());
    server.handle.stop();
    assert_eq!(receive_spans(&collector, 1).len(), 1);
    server.join();
    assert!(TcpStream::connect(server.addresses[0]).is_err());
}
