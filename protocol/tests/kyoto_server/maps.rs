//! Maps of requests.

use todana_protocol::kyoto::{KyotoDecoder, KyotoLimits, KyotoRequest, KyotoStep, MapScratch};

/// Entries were sorted from time to time, and then treated as sorted although an unsorted name had
/// been added.
#[test]
fn a_name_before_many_smaller_ones_is_found() {
    let names: String = (0..20_000).map(|key| format!("_{key}\tv\n")).collect();
    let body = format!("xt\t-1000\n{names}");
    let head = "POST /rpc/set_bulk HTTP/1.1\r\nContent-Type: text/tab-separated-values\r\nContent-Length";
    let request = format!("{head}: {}\r\n\r\n{body}", body.len());
    let (mut dialect, mut scratch) = (KyotoDecoder::default(), MapScratch::default());
    let step = dialect.decode(&KyotoLimits::default(), request.as_bytes(), &mut scratch);
    let KyotoStep::Request { request: KyotoRequest::Call(call), .. } = step else { panic!("{step:?}") };
    assert_eq!(call.input.len(), 20_001);
    assert_eq!(call.xt(), Some(-1000));
    assert_eq!(call.input.get(b"_777"), Some(&b"v"[..]));
    assert!(call.input.iter().is_sorted());
}
