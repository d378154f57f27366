//! Implements a server for the driver's tests: a map with a socket. It knows get, set, mg and ms,
//! and can make errors on request.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use todana_client::Address;

/// The faults that the server can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerFault {
    /// The server has no fault.
    Good,
    /// Sends each byte of a reply separately.
    Hesitant,
    /// Answers gets with values that were not stored.
    Lying,
    /// Answers gets for another key.
    Confused,
    /// Answers gets with an error.
    Refusing,
    /// Sends half of the reply to the first get and closes the connection.
    Leaving,
    /// Answers each get twice.
    Chatty,
}

type SharedRecords = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// Starts a server on a port that the system chooses. The server runs until the process ends.
pub(crate) fn start(fault: ServerFault) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let records = SharedRecords::default();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, records) = (stream.unwrap(), Arc::clone(&records));
            // If a client closes its connection, that is not a failure.
            std::thread::spawn(move || serve(stream, &records, fault));
        }
    });
    address
}

fn serve(stream: TcpStream, records: &SharedRecords, fault: ServerFault) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = BufReader::new(stream.try_clone()?);
    let mut output = stream;
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (verb, key) = (words[0], words[1]);
        let mut block = |len: &str| {
            let mut value = vec![0; len.parse::<usize>().unwrap() + 2];
            input.read_exact(&mut value)?;
            value.truncate(value.len() - 2);
            records.lock().unwrap().insert(key.to_string(), value);
            std::io::Result::Ok(())
        };
        let reply = match verb {
            "set" => block(words[4]).map(|()| b"STORED\r\n".to_vec())?,
            "ms" => block(words[2]).map(|()| b"HD\r\n".to_vec())?,
            _ => {
                let keys = if verb == "get" { &words[1..] } else { &words[1..2] };
                let records = records.lock().unwrap();
                let found = keys.iter().map(|key| (*key, records.get(*key).cloned())).collect();
                answer(verb, found, fault)
            }
        };
        match fault {
            ServerFault::Hesitant => reply.iter().try_for_each(|byte| output.write_all(&[*byte]))?,
            ServerFault::Leaving if !verb.ends_with("s") && verb != "set" => {
                return output.write_all(&reply[..reply.len() / 2]);
            }
            ServerFault::Chatty if verb == "get" || verb == "mg" => {
                output.write_all(&[&reply[..], &reply[..]].concat())?
            }
            _ => output.write_all(&reply)?,
        }
        line.clear();
    }
    Ok(())
}

fn answer(verb: &str, found: Vec<(&str, Option<Vec<u8>>)>, fault: ServerFault) -> Vec<u8> {
    if fault == ServerFault::Refusing {
        return b"SERVER_ERROR not today\r\n".to_vec();
    }
    let mut reply = Vec::new();
    for (key, value) in found {
        let value =
            value.map(|value| if fault == ServerFault::Lying { vec![b'?'; value.len()] } else { value });
        let key = if fault == ServerFault::Confused { "another" } else { key };
        let Some(value) = value else {
            reply.extend_from_slice(if verb == "get" { b"" } else { b"EN\r\n" });
            continue;
        };
        let line = match verb {
            "get" => format!("VALUE {key} 0 {}\r\n", value.len()),
            _ => format!("VA {}\r\n", value.len()),
        };
        reply.extend_from_slice(&[line.as_bytes(), &value, b"\r\n"].concat());
    }
    reply.extend_from_slice(if verb == "get" { b"END\r\n" } else { b"" });
    reply
}
