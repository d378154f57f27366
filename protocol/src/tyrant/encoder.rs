//! Encodes requests of the binary protocol for clients.

use super::binary::FIRST_BYTE;
use super::number;
use super::request::TyrantRequest;
use crate::ReplySink;

impl TyrantRequest<'_> {
    /// Writes the request as a client sends it. No field may be longer than its limit.
    pub fn encode(&self, out: &mut impl ReplySink) {
        out.put(&[FIRST_BYTE, self.command().byte()]);
        match *self {
            TyrantRequest::Put { key, value, .. } => {
                put_lens(&[key, value], out);
                put_all(&[key, value], out);
            }
            TyrantRequest::PutShl { key, value, width } => {
                put_lens(&[key, value], out);
                out.put(&width.to_be_bytes());
                put_all(&[key, value], out);
            }
            TyrantRequest::Out { key: field }
            | TyrantRequest::Get { key: field }
            | TyrantRequest::VSiz { key: field }
            | TyrantRequest::Optimize { tuning: field }
            | TyrantRequest::Copy { path: field } => {
                put_lens(&[field], out);
                out.put(field);
            }
            TyrantRequest::MGet { keys } => {
                out.put(&(keys.len() as u32).to_be_bytes());
                out.put(keys.as_bytes());
            }
            TyrantRequest::FwmKeys { prefix, limit } => {
                put_lens(&[prefix], out);
                let limit = limit.map_or(-1, |limit| i32::try_from(limit).unwrap_or(i32::MAX));
                out.put(&limit.to_be_bytes());
                out.put(prefix);
            }
            TyrantRequest::AddInt { key, delta } => {
                put_lens(&[key], out);
                out.put(&delta.to_be_bytes());
                out.put(key);
            }
            TyrantRequest::AddDouble { key, delta } => {
                put_lens(&[key], out);
                out.put(&number::encode(delta));
                out.put(key);
            }
            TyrantRequest::Ext { name, options, key, value } => {
                put_lens(&[name], out);
                out.put(&options.to_be_bytes());
                put_lens(&[key, value], out);
                put_all(&[name, key, value], out);
            }
            TyrantRequest::Restore { path, since_micros, options } => {
                put_lens(&[path], out);
                out.put(&since_micros.to_be_bytes());
                out.put(&options.to_be_bytes());
                out.put(path);
            }
            TyrantRequest::SetMst { host, port, since_micros, options } => {
                put_lens(&[host], out);
                out.put(&port.to_be_bytes());
                out.put(&since_micros.to_be_bytes());
                out.put(&options.to_be_bytes());
                out.put(host);
            }
            TyrantRequest::Misc { name, options, arguments } => {
                put_lens(&[name], out);
                out.put(&options.to_be_bytes());
                out.put(&(arguments.len() as u32).to_be_bytes());
                put_all(&[name, arguments.as_bytes()], out);
            }
            TyrantRequest::Repl { since_micros, server_id } => {
                out.put(&since_micros.to_be_bytes());
                out.put(&server_id.to_be_bytes());
            }
            TyrantRequest::IterInit
            | TyrantRequest::IterNext
            | TyrantRequest::Sync
            | TyrantRequest::Vanish
            | TyrantRequest::RNum
            | TyrantRequest::Size
            | TyrantRequest::Stat => {}
        }
    }
}

/// Writes the lengths of fields.
fn put_lens(fields: &[&[u8]], out: &mut impl ReplySink) {
    fields.iter().for_each(|field| out.put(&(field.len() as u32).to_be_bytes()));
}

/// Writes fields without their lengths.
fn put_all(fields: &[&[u8]], out: &mut impl ReplySink) {
    fields.iter().for_each(|field| out.put(field));
}
