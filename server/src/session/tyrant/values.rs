//! Functions of `misc` on trees, whose keys may have several values.

use super::DATABASE;
use super::records::visit;
use crate::session::worker_context::WorkerContext;
use crate::transport::output::ConnectionOutput;
use todana::DatabaseKind;
use todana::tyrant::{AddValueVisitor, RemoveValuesVisitor, ValuesVisitor};
use todana_core::Visitor;
use todana_protocol::tyrant::{FieldBuffer, FieldList, reply};

/// Returns true if a key may have several values.
pub(super) fn may_have_several(context: &WorkerContext) -> bool {
    let kind = context.shared.databases[DATABASE].name.kind;
    matches!(kind, DatabaseKind::MemTree | DatabaseKind::DiskTree)
}

/// Executes a function that differs on trees. Returns false if it is another one. `list_len_max` is
/// the largest length of a list in a reply, in bytes.
pub(super) fn execute(
    context: &WorkerContext,
    name: &[u8],
    arguments: FieldList<'_>,
    list_len_max: usize,
    output: &mut ConnectionOutput,
) -> bool {
    let mut list = FieldBuffer::default();
    let is_done = match (name, arguments.get(0), arguments.get(1)) {
        (b"putdup", Some(key), Some(value)) => visit(context, key, &mut AddValueVisitor::last(value)),
        (b"putdupback", Some(key), Some(value)) => visit(context, key, &mut AddValueVisitor::first(value)),
        (b"putlist", ..) => {
            let mut pairs = arguments.iter();
            let mut next = || Some((pairs.next()?, pairs.next()?));
            std::iter::from_fn(&mut next)
                .all(|(key, value)| visit(context, key, &mut AddValueVisitor::last(value)))
        }
        (b"outlist", ..) => {
            arguments.iter().all(|key| visit(context, key, &mut RemoveValuesVisitor::default()))
        }
        (b"get", Some(key), _) => {
            see_values(context, key, &mut |value| list.push(value)) && list.len_bytes() <= list_len_max
        }
        (b"getlist", ..) => arguments.iter().all(|key| {
            see_values(context, key, &mut |value| {
                list.push(key);
                list.push(value);
            });
            list.len_bytes() <= list_len_max
        }),
        _ => return false,
    };
    let fields = if is_done { list.list() } else { FieldList::default() };
    reply::put_fields(is_done, &fields, output);
    true
}

/// Shows all values of a key. Returns false if there is none.
fn see_values(context: &WorkerContext, key: &[u8], see: &mut dyn FnMut(&[u8])) -> bool {
    let mut values = ValuesVisitor::new(see);
    let visitor: &mut dyn Visitor = &mut values;
    visit(context, key, visitor) && values.is_found()
}
