//! All records whose places begin with the same 511 bytes, in one LMDB value (docs/format/disk-tree.md, section 2).

use super::front::Entry;
use super::place;
use super::record::{decode_varint, encode_varint};
use std::cmp::Ordering;
use todana_core::{Error, ErrorKind, Result};

/// A record in a sheaf: the rest of its place, and its bytes.
pub(super) type Stalk<'a> = (&'a [u8], &'a [u8]);

/// The records of a sheaf, in order.
pub(super) fn stalks(sheaf: &[u8]) -> Result<Vec<Stalk<'_>>> {
    let mut rest = sheaf;
    let mut stalks: Vec<Stalk<'_>> = Vec::new();
    while !rest.is_empty() {
        let stalk = take(&mut rest).and_then(|place| Some((place, take(&mut rest)?)));
        let stalk = stalk.ok_or_else(|| Error::new(ErrorKind::Corrupt, "a sheaf of long keys ends early"))?;
        if stalks.last().is_some_and(|last| last.0 >= stalk.0) {
            return Err(Error::new(ErrorKind::Corrupt, "a sheaf of long keys is not in order"));
        }
        stalks.push(stalk);
    }
    Ok(stalks)
}

fn take<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = decode_varint(bytes)?.try_into().ok()?;
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

/// The record whose place goes on like this.
pub(super) fn find<'a>(sheaf: &'a [u8], rest: &[u8]) -> Result<Option<&'a [u8]>> {
    Ok(stalks(sheaf)?.into_iter().find(|stalk| stalk.0 == rest).map(|stalk| stalk.1))
}

/// The sheaf with these changes, which are in order and belong here; empty if nothing is left.
pub(super) fn changed(sheaf: &[u8], changes: &[&Entry]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut old = stalks(sheaf)?.into_iter().peekable();
    for change in changes {
        let place = place::of_key(change.key());
        let rest = place::split(&place).1.expect("what comes here has a long key");
        while let Some(stalk) = old.next_if(|stalk| stalk.0 < rest) {
            bind(stalk.0, [stalk.1, &[]], &mut out);
        }
        let _replaced = old.next_if(|stalk| stalk.0.cmp(rest) == Ordering::Equal);
        if let Some(parts) = change.parts() {
            bind(rest, parts, &mut out);
        }
    }
    old.for_each(|stalk| bind(stalk.0, [stalk.1, &[]], &mut out));
    Ok(out)
}

fn bind(rest: &[u8], parts: [&[u8]; 2], out: &mut Vec<u8>) {
    encode_varint(rest.len() as u64, out);
    out.extend_from_slice(rest);
    encode_varint((parts[0].len() + parts[1].len()) as u64, out);
    parts.iter().for_each(|part| out.extend_from_slice(part));
}
