//! What the original answered, byte for byte: captures. `...` stands for the headers that vary.

use crate::exchange::{answers, hex, send_in_pieces};
use todana_protocol::kyoto::Limits;

#[test]
fn a_record_is_set_and_got() {
    let set = b"POST /rpc/set HTTP/1.1\r\nHost: x\r\nContent-Type: text/tab-separated-values\r\nContent-Length: 22\r\n\r\n\
        key\tjapan\nvalue\ttokyo\n";
    let get = b"GET /rpc/get?key=japan HTTP/1.1\r\n\r\n";
    assert_eq!(
        answers(&[&set[..], get].concat()),
        "HTTP/1.1 200 OK\\r\\n...Content-Length: 0\\r\\nContent-Type: text/tab-separated-values\\r\\n\\r\\n\
         HTTP/1.1 200 OK\\r\\n...Content-Length: 12\\r\\nContent-Type: text/tab-separated-values\\r\\n\\r\\n\
         value\\ttokyo\\n"
    );
}

#[test]
fn records_travel_in_binary() {
    let set = "b8 00000000 00000002 0000 00000005 00000005 7fffffffffffffff 6a6170616e 746f6b796f \
               0000 00000002 00000001 ffffffff88ca6c00 6b32 76";
    let get = "ba 00000000 00000003 0000 00000005 6a6170616e 0000 00000004 6e6f7065 0000 00000002 6b32";
    let remove = "b9 00000000 00000002 0000 00000005 6a6170616e 0000 00000004 6e6f7065";
    let outcome = send_in_pieces(&Limits::default(), &hex(&[set, get, remove].concat()), &[]);
    let answers = "b8 00000002 \
                   ba 00000002 0000 00000005 00000005 000000ffffffffff 6a6170616e 746f6b796f \
                   0000 00000002 00000001 0000000077359400 6b32 76 \
                   b9 00000001";
    assert_eq!(outcome.answers, hex(answers));
    assert!(!outcome.is_closed);
}
