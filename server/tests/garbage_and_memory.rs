//! Tests sessions that use much memory: garbage (mutated commands, truncated blocks, very large
//! lengths), and large values with many readers. They have a test program of their own, because
//! they measure the memory of the complete process.

mod running;

use fastrand::Rng;
use running::{Client, Running, WAIT_MAX, eventually, options};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use todana_server::{LimitOptions, MemoryOptions, ServerOptions};

/// Returns the resident memory of this process, which contains the server.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

const VALID: [&str; 24] = [
    "get key",
    "gets a b c d",
    "gat 10 key other",
    "set key 1 0 5\r\nhello",
    "set key 4294967295 -1 0\r\n",
    "add key 0 60 3 noreply\r\nabc",
    "append key 0 0 2\r\nxy",
    "cas key 0 0 1 7\r\nz",
    "delete key",
    "incr n 18446744073709551615",
    "decr n 1 noreply",
    "touch key 100",
    "flush_all 1000",
    "stats settings",
    "verbosity 1",
    "cache_memlimit 64",
    "mn",
    "me key",
    "mg key s v t f h l c O123 q",
    "mg a2V5 b k v N30 R20",
    "ms key 5 T0 F3 c I C9\r\nhello",
    "md key q I T30 x",
    "ma n N0 J13 D2 MI v t",
    "lru_crawler metadump all",
];

fn session(random: &mut Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.usize(1..12) {
        let mut command = VALID[random.usize(..VALID.len())].as_bytes().to_vec();
        match random.u8(..10) {
            // A byte is changed, inserted or removed, a piece is doubled, or the end is cut off.
            0 => {
                *{
                    let at = random.usize(..command.len());
                    &mut command[at]
                } = random.u8(..)
            }
            1 => command.insert(random.usize(..command.len()), random.u8(..)),
            2 => drop(command.remove(random.usize(..command.len()))),
            3 => {
                let at = random.usize(..command.len());
                command.extend_from_within(at..);
            }
            4 => command.truncate(random.usize(..command.len())),
            5 => {
                let len = [1 << 20, i32::MAX as u64, i32::MAX as u64 - 2, 1 << 31, 1 << 40, u64::MAX];
                let verb = if random.bool() { "set key 0 0" } else { "ms key" };
                command = format!("{verb} {}\r\nshort", len[random.usize(..6)]).into_bytes();
            }
            6 => {
                let verb = ["get ", "set ", "gat 1 ", "mg ", ""][random.usize(..5)];
                command = [verb.as_bytes(), &vec![random.u8(33..); random.usize(200..5000)]].concat();
            }
            7 => command = (0..random.usize(..300)).map(|_| random.u8(..)).collect(),
            _ => {}
        }
        bytes.extend_from_slice(&command);
        bytes.extend_from_slice(if random.u8(..8) == 0 { b"\n" } else { b"\r\n" });
    }
    bytes
}

/// Plays a session. The replies are arbitrary, but they must end.
fn play(server: &Running, random: &mut Rng) {
    let bytes = session(random);
    let mut stream = TcpStream::connect(server.addresses[0]).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    // Some clients send in pieces, and some disconnect at once. The server may close before
    // everything is sent.
    let cut = random.usize(..=bytes.len());
    for piece in [&bytes[..cut], &bytes[cut..]] {
        if stream.write_all(piece).is_err() {
            return;
        }
    }
    if random.u8(..4) == 0 || stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) => assert_eq!(
            error.kind(),
            std::io::ErrorKind::ConnectionReset,
            "{} was not answered to its end",
            bytes.escape_ascii()
        ),
    }
}

/// Serializes the tests, because all measure the memory of the entire process.
static ALONE: Mutex<()> = Mutex::new(());

fn survives(sessions: u32, seed: u64) {
    let _alone = ALONE.lock();
    let server = Running::start(ServerOptions {
        limits: LimitOptions { threads: 2, ..options().limits },
        ..options()
    });
    let mut random = Rng::with_seed(seed);
    // Allocates the buffers and pages that any use needs.
    for _ in 0..300 {
        play(&server, &mut random);
    }
    let before = resident_bytes();
    for _ in 0..sessions {
        play(&server, &mut random);
    }
    server.connect().expect_version();
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes more after {sessions} sessions");
}

#[test]
fn two_thousand_sessions_of_garbage_do_no_harm() {
    survives(2_000, 20_260_713);
}

#[test]
#[ignore = "opens a hundred thousand connections; for a long run"]
fn garbage_sessions_do_no_harm() {
    survives(100_000, 20_260_714);
}

/// Replies share a large value until it is sent. Therefore, 64 slow readers of one value of 8 MiB
/// (half a GiB of replies) cost no copies, and each gets the old value although it is replaced
/// meanwhile.
#[test]
fn slow_readers_share_a_replaced_large_value() {
    let _alone = ALONE.lock();
    let server = Running::start(ServerOptions {
        limits: LimitOptions { item_size_max: 8 << 20, ..options().limits },
        ..options()
    });
    let mut writer = server.connect();
    let old: Vec<u8> = (0..8_000_000usize).map(|n| (n % 253) as u8).collect();
    writer.set(b"k", &old);
    let before = resident_bytes();
    let mut readers: Vec<Client> = (0..64).map(|_| server.connect()).collect();
    readers.iter_mut().for_each(|reader| reader.send(b"get k\r\n"));
    // Sockets buffer a part of each reply, but most of it waits in the server.
    eventually("all replies have begun", || {
        writer.stat("response_obj_bytes").parse::<u64>().unwrap() > 64 * 1_000_000
    });
    eventually("all reads are counted", || writer.stat("get_hits") == "64");
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more for 64 readers of 8 MB");
    writer.set(b"k", b"new");
    let expected = [b"VALUE k 0 8000000\r\n", &old[..], b"\r\nEND\r\n"].concat();
    readers.iter_mut().for_each(|reader| reader.expect(&expected));
    writer.expect_value(b"k", b"new");
}

/// 300 clients that stall in a value of nearly 1 MiB hold no more than their share of the limit.
/// Refused values are discarded, and the clients within the share are served.
#[test]
fn requests_that_stall_together_stay_within_their_share() {
    let _alone = ALONE.lock();
    let server = Running::start(ServerOptions {
        memory: MemoryOptions { limit_mib: 64, ..options().memory },
        ..options()
    });
    let mut other = server.connect();
    other.set(b"k", b"value");
    let mut head = b"set big 0 0 1048000\r\n".to_vec();
    head.resize(head.len() + 1_000_000, b'v');
    let mut stalled: Vec<Client> = (0..100).map(|_| server.connect()).collect();
    stalled.iter_mut().for_each(|client| client.send(&head));
    let total = 100 * head.len() as u64;
    eventually("all of it is read", || other.stat("bytes_read").parse::<u64>().unwrap() >= total);
    let held: u64 = other.stat("read_buf_bytes").parse().unwrap();
    assert!((8 << 20..32 << 20).contains(&held), "{held} bytes are kept of {total}");
    other.expect_value(b"k", b"value");
    // Sends the rest of each value and another command. A client whose value was refused got the
    // error, and its connection goes on.
    let (mut stored, mut refused) = (0, 0);
    for client in &mut stalled {
        client.send(&[&vec![b'v'; 48_000][..], b"\r\nmn\r\n"].concat());
        let mut answer = client.line();
        if answer == "STORED\r\n" {
            stored += 1;
        } else {
            let answers = ["out of memory storing object\r\n", "Out of memory during read\r\n"];
            assert!(
                answer.strip_prefix("SERVER_ERROR ").is_some_and(|text| answers.contains(&text)),
                "{answer}"
            );
            refused += 1;
        }
        answer = client.line();
        assert_eq!(answer, "MN\r\n");
    }
    assert!(stored >= 8 && refused >= 60, "{stored} stored, {refused} refused");
    drop(stalled);
    eventually("nothing is kept", || other.stat("read_buf_bytes") == "0");
    other.expect_value(b"k", b"value");
}

/// Readers that take nothing are disconnected when their pending replies exceed their share. The
/// others go on.
#[test]
fn readers_that_take_nothing_stay_within_their_share() {
    let _alone = ALONE.lock();
    let server = Running::start(ServerOptions {
        memory: MemoryOptions { limit_mib: 64, ..options().memory },
        ..options()
    });
    let mut other = server.connect();
    // These values are too short to be shared with the engine.
    other.set(b"k", &[b'v'; 60_000]);
    let mut readers: Vec<Client> = (0..400).map(|_| server.connect()).collect();
    // This is more than all sockets can buffer. A reader that has been disconnected may be unable
    // to send.
    for reader in &mut readers {
        let _ = reader.stream.write_all(&b"get k\r\n".repeat(200));
    }
    eventually("some are cut off", || other.stat("response_obj_oom") != "0");
    let waiting: u64 = other.stat("response_obj_bytes").parse().unwrap();
    assert!(waiting < 18 << 20, "{waiting} bytes wait");
    other.expect_value(b"k", &[b'v'; 60_000]);
}
