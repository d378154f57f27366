//! Writes spans as an `ExportTraceServiceRequest` of OTLP in JSON. Numbers of 64 bits are texts
//! there, and IDs are hexadecimal.
//!
//! Attributes have the names of OpenTelemetry's conventions for databases and networks (version
//! 1.38).

use super::Span;
use crate::observation::connection_table::ConnectionAddress;
use serde_json::{Value, json};

/// The kind of a span on a server that answers a request.
const SERVER: u32 = 2;
/// The status of a span whose request failed.
const ERROR: u32 = 2;

/// Returns the body of a request with these spans.
pub(super) fn body(spans: &[Span]) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let mut resource = vec![text("service.name", "todana"), text("service.version", version)];
    resource.push(number("process.pid", std::process::id().into()));
    resource.extend(rustix::system::uname().nodename().to_str().ok().map(|name| text("host.name", name)));
    let spans: Vec<Value> = spans.iter().map(span).collect();
    let scope = json!({ "scope": { "name": "todana", "version": version }, "spans": spans });
    let all = json!({ "resourceSpans": [{ "resource": { "attributes": resource }, "scopeSpans": [scope] }] });
    all.to_string().into_bytes()
}

fn span(span: &Span) -> Value {
    let started = span.started_at.as_nanos();
    let mut value = json!({
        "traceId": hex(&span.trace.trace_id),
        "spanId": hex(&span.span_id),
        "name": span.command,
        "kind": SERVER,
        "startTimeUnixNano": started.to_string(),
        "endTimeUnixNano": (started + span.time.as_nanos()).to_string(),
    });
    if let Some(parent) = &span.trace.parent_span_id {
        value["parentSpanId"] = hex(parent).into();
    }
    let mut attributes = vec![
        text("db.system.name", "todana"),
        text("db.operation.name", span.command),
        text("db.namespace", &span.database.to_string()),
    ];
    if let Some(key) = &span.key {
        attributes.push(text("todana.key", &String::from_utf8_lossy(key)));
    }
    let code = span.reply.split(' ').next().unwrap_or_default();
    if !code.is_empty() && span.failure.is_none() {
        attributes.push(text("db.response.status_code", code));
    }
    // A request without a reply has not failed.
    let refusal = Some(code).filter(|code| code.ends_with("ERROR"));
    if let Some(error) = span.failure.or(refusal) {
        attributes.push(text("error.type", error));
        let message = if span.failure.is_some() { error } else { &span.reply };
        value["status"] = json!({ "code": ERROR, "message": message });
    }
    put_address(&span.local, ("server.address", "server.port"), &mut attributes);
    put_address(&span.peer, ("network.peer.address", "network.peer.port"), &mut attributes);
    value["attributes"] = attributes.into();
    value
}

fn put_address(address: &ConnectionAddress, (name, port): (&str, &str), attributes: &mut Vec<Value>) {
    match address {
        ConnectionAddress::Tcp(address) | ConnectionAddress::Udp(address) => {
            attributes.push(text(name, &address.ip().to_string()));
            attributes.push(number(port, address.port().into()));
        }
        ConnectionAddress::Unix(path) => attributes.push(text(name, path)),
        ConnectionAddress::Unknown => {}
    }
}

fn text(name: &str, value: &str) -> Value {
    json!({ "key": name, "value": { "stringValue": value } })
}

fn number(name: &str, value: u64) -> Value {
    json!({ "key": name, "value": { "intValue": value.to_string() } })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
