//! Defines the figures of Kyoto Tycoon's clients.

use super::{MeasurementValue, ServerReadings, table};
use crate::session::kyoto::VERSION;
use crate::shared::SharedState;

table! { KYOTO, "Kyoto Tycoon's protocols",
    "The kinds of requests are `call`, `rest`, `binary`, and `refused` for invalid requests and for those\n\
     of web pages. `report` also has `db_NUMBER` (`count=N size=N path=PATH`) for each database,\n\
     `db_total_count` and `db_total_size`.", |s, r: ServerReadings|
    _, _, "todana_kyoto_requests_total{kind=call}", Counter, "Requests of Kyoto Tycoon's clients by kind." => r.kyoto.calls;
    _, _, "todana_kyoto_requests_total{kind=rest}", Counter, "REST requests." => r.kyoto.resources;
    _, _, "todana_kyoto_requests_total{kind=binary}", Counter, "Binary requests." => r.kyoto.binary;
    _, _, "todana_kyoto_requests_total{kind=refused}", Counter, "Refused requests." => r.kyoto.refused;
    _, "cnt_get", _, Counter, "Records requested." => r.kyoto.get;
    _, "cnt_set", _, Counter, "Records to be stored." => r.kyoto.set;
    _, "cnt_remove", _, Counter, "Records to be removed." => r.kyoto.remove;
    _, _, "todana_kyoto_commands_total{command=get,status=hit}", Counter,
        "Records requested, by outcome." => hits(r.kyoto.get, r.kyoto.get_misses);
    _, "cnt_get_misses", "todana_kyoto_commands_total{command=get,status=miss}", Counter, "Reads that found no record." =>
        r.kyoto.get_misses;
    _, _, "todana_kyoto_commands_total{command=set,status=hit}", Counter, "Stores." => hits(r.kyoto.set, r.kyoto.set_misses);
    _, "cnt_set_misses", "todana_kyoto_commands_total{command=set,status=miss}", Counter, "Stores without effect." =>
        r.kyoto.set_misses;
    _, _, "todana_kyoto_commands_total{command=remove,status=hit}", Counter, "Removals." =>
        hits(r.kyoto.remove, r.kyoto.remove_misses);
    _, "cnt_remove_misses", "todana_kyoto_commands_total{command=remove,status=miss}", Counter, "Removals that found no record." =>
        r.kyoto.remove_misses;
    _, _, "todana_kyoto_read_bytes_total", Counter, "Bytes of requests." => r.kyoto.bytes_read;
    _, _, "todana_kyoto_written_bytes_total", Counter, "Bytes of answers." => r.kyoto.bytes_written;
    _, "cnt_script", "todana_kyoto_scripts_total", Counter, "Scripts called." => r.kyoto.script;
    _, "cnt_misc", "todana_kyoto_other_total", Counter, "Other requests." => r.kyoto.misc;
    _, _, "todana_kyoto_waiting", Gauge, "Clients that wait for a signal, or for a message of a queue." =>
        s.kyoto.signals.count();
    _, "serv_task_count", "todana_kyoto_background_calls", Gauge, "Long procedures that are queued or running." =>
        background_calls(s);
    _, _, "todana_kyoto_background_calls_done_total", Counter, "Long procedures that have ended." =>
        s.kyoto.calls.done() + s.kyoto.script_calls.done();
    _, "conf_kt_version", _, Gauge, "The version of Kyoto Tycoon that the server reports to clients." => format!("{VERSION} (2.19)");
    _, "conf_kt_features", _, Gauge, "The features of Kyoto Tycoon that the server reports." => "(epoll)(lua)(todana)";
    _, "conf_kc_version", _, Gauge, "The version of Kyoto Cabinet that the server reports to clients." => "1.2.76 (16.13)";
    _, "conf_kc_features", _, Gauge, "The features of Kyoto Cabinet that the server reports." => "(atomic)(zlib)";
    _, "conf_os_name", _, Gauge, "The operating system." => "Linux";
}

/// Returns the number of commands without those that missed.
fn hits(all: u64, part: u64) -> MeasurementValue {
    MeasurementValue::Difference { all, part }
}

fn background_calls(shared: &SharedState) -> usize {
    shared.kyoto.calls.pending() + shared.kyoto.script_calls.pending()
}
