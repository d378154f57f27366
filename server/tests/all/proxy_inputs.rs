//! Plays the stored inputs of the fuzz targets of the proxy.

use crate::fuzz_inputs;
use crate::proxy_bytes;

#[test]
fn bytes_of_clients_leave_the_proxy_running() {
    fuzz_inputs::play_all("proxy_client", 30, proxy_bytes::play_client);
}

#[test]
fn bytes_of_servers_leave_one_reply_each() {
    fuzz_inputs::play_all("proxy_server", 30, proxy_bytes::play_server);
}
