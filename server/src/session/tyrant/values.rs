//! Functions of `misc` on trees, whose keys may have several values.

use super::operations::visit;
use crate::session::worker_context::WorkerContext;
use crate::transport::output::ConnectionOutput;
use todana::tyrant::{AddValuesVisitor, RemoveValuesVisitor, ValuesVisitor, put_lists};
use todana_core::Visitor;
use todana_protocol::tyrant::{FieldBuffer, FieldList, reply};

/// Returns true if a key may have several values.
pub(super) fn may_have_several(context: &WorkerContext) -> bool {
    context.shared.databases.primary().database.holds_value_lists()
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
        (b"putdup", Some(key), Some(value)) => visit(context, key, &mut AddValuesVisitor::last(&[value])),
        (b"putdupback", Some(key), Some(value)) => {
            visit(context, key, &mut AddValuesVisitor::first(&[value]))
        }
        (b"putlist", ..) => put_lists(arguments, &mut |key, values| {
            visit(context, key, &mut AddValuesVisitor::last(values)).then_some(()).ok_or(())
        })
        .is_ok(),
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
