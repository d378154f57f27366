//! Tests `encode` with replies that do not occur in the other tests.

use crate::exchange::hit;
use std::sync::Arc;
use todana_core::{HitReply, Record, RefusalReason, Reply, SharedBytes};
use todana_protocol::memcached::MemcachedCommand;
use todana_protocol::memcached::{
    MemcachedDecoder, MemcachedLimits, MemcachedStep, ReplyForm, ReplySink, encode,
};

/// A sink that separates shared from copied bytes.
#[derive(Default)]
struct Parts {
    copied: Vec<u8>,
    shared: Vec<SharedBytes>,
}

impl ReplySink for Parts {
    fn put(&mut self, bytes: &[u8]) {
        self.copied.extend_from_slice(bytes);
    }
    fn share(&mut self, bytes: &SharedBytes) {
        self.copied.extend_from_slice(b"<shared>");
        self.shared.push(bytes.clone());
    }
}

/// Runs `see` with the command and the form of a request.
fn with_form(request: &[u8], see: impl FnOnce(&MemcachedCommand<'_>, &ReplyForm<'_>)) {
    let mut scratch = Vec::new();
    let step = MemcachedDecoder::default().decode(&MemcachedLimits::default(), request, &mut scratch);
    let MemcachedStep::Request { request, .. } = step else { panic!("{step:?}") };
    see(&request.command, &request.form);
}

#[test]
fn a_large_value_is_shared_not_copied() {
    let shared: SharedBytes = Arc::new(vec![b'v'; 5]);
    for (request, expected) in [
        (&b"get k\r\n"[..], &b"VALUE k 5 5\r\n<shared>\r\nEND\r\n"[..]),
        (b"get k l\r\n", b"VALUE k 5 5\r\n<shared>\r\n"),
        (b"mg k v s\r\n", b"VA 5 s5\r\n<shared>\r\n"),
        (b"mg k s\r\n", b"HD s5\r\n"),
    ] {
        with_form(request, |_, form| {
            let plain = hit(b"k");
            let record = Record { shared: Some(&shared), ..plain.record };
            let reply = Reply::Hit(HitReply { record, ..plain });
            let mut parts = Parts::default();
            encode(form, &reply, &mut parts);
            assert_eq!(parts.copied.escape_ascii().to_string(), expected.escape_ascii().to_string());
            assert!(parts.shared.iter().all(|share| Arc::ptr_eq(share, &shared)));
            // A sink without sharing copies the bytes.
            let mut copied = Vec::new();
            encode(form, &reply, &mut copied);
            let expected = expected.escape_ascii().to_string().replace("<shared>", "vvvvv");
            assert_eq!(copied.escape_ascii().to_string(), expected);
        });
    }
}

#[test]
fn silent_forms_write_nothing_and_say_so() {
    for (request, is_silent) in [
        (&b"set k 0 0 1 noreply\r\na\r\n"[..], true),
        (b"set k 0 0 1\r\na\r\n", false),
        (b"delete k noreply\r\n", true),
        (b"quit\r\n", true),
        (b"get noreply\r\n", false),
        (b"mg k q\r\n", false),
    ] {
        with_form(request, |_, form| assert_eq!(form.is_silent(), is_silent));
    }
    with_form(b"set k 0 0 1 noreply\r\na\r\n", |_, form| {
        for reply in
            [Reply::NotStored, Reply::Refused(RefusalReason::OutOfMemory), Reply::Faulty("x"), Reply::End]
        {
            let mut out = Vec::new();
            encode(form, &reply, &mut out);
            assert_eq!(out, b"");
        }
    });
}

#[test]
fn a_get_line_ends_with_its_last_key() {
    for (request, is_last) in [
        (&b"get a b\r\n"[..], false),
        (b"gats 0 a  b\r\n", false),
        (b"get a\r\n", true),
        (b"get a  \r\n", true),
        (b"set k 0 0 1\r\na\r\n", true),
        (b"mg k\r\n", true),
        (b"foo\r\n", true),
    ] {
        with_form(request, |_, form| assert_eq!(form.is_last_of_line(), is_last));
    }
}

#[test]
fn end_of_gets_can_be_written_separately() {
    with_form(b"version\r\n", |_, form| {
        let mut out = Vec::new();
        encode(form, &Reply::End, &mut out);
        assert_eq!(out, b"END\r\n");
    });
}

#[test]
fn numbers_are_written_at_their_edges() {
    let mut hit = hit(b"k");
    hit.record.attributes.flags = u32::MAX;
    hit.record.attributes.version = u64::MAX;
    with_form(b"gets k\r\n", |_, form| {
        let mut out = Vec::new();
        encode(form, &Reply::Hit(hit), &mut out);
        assert_eq!(out, b"VALUE k 4294967295 5 18446744073709551615\r\nvalue\r\nEND\r\n");
    });
}

#[test]
fn unreadable_record_is_not_a_miss() {
    let damaged = "SERVER_ERROR the record is damaged on disk\r\n";
    for (request, expected) in [
        (&b"get k\r\n"[..], damaged),
        (b"gets k\r\n", damaged),
        // An error ends a list, so none is written before its last key.
        (b"get k l\r\n", ""),
        (b"mg k v q\r\n", damaged),
        (b"md k q\r\n", damaged),
        (b"set k 0 0 1\r\na\r\n", damaged),
        (b"delete k\r\n", damaged),
    ] {
        with_form(request, |_, form| {
            let mut out = Vec::new();
            encode(form, &Reply::Refused(RefusalReason::Damaged), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        });
    }
}
