//! How a request is executed, and how its connection goes on after it.

use crate::session::kyoto::{PluginSession, Session};
use crate::session::login::Login;
use crate::session::memcached::listing::Listing;
use crate::transport::output::Output;
use todana_core::{Buffer, Reply};
use todana_protocol::memcached::{Head, Request, encode};

/// Requests decoded before the first is executed, so that their records can be fetched into the cache together.
pub(crate) const BATCH: usize = 16;

/// The lengths of a request with a long value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    pub(crate) head_len: usize,
    pub(crate) value_len: usize,
    /// Of what ends the block, behind the value.
    pub(crate) end_len: usize,
}

/// Why a connection stopped serving its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// All that was whole is done.
    NeedsInput,
    /// Its share of this turn is used up.
    Yields,
    /// Its peer has to read first.
    Blocked,
    /// A list of all keys has to be written first.
    Lists,
    /// It watches from now on.
    Watches,
    /// An export comes first.
    Exports,
    /// Whoever checks a password has to answer first, or a signal to come.
    Waits,
    /// A long value comes next.
    Receives(Announced),
    /// It is to be closed.
    Closes,
    /// It is to be closed because its input is no request.
    Fails,
}

impl Pause {
    pub(crate) fn is_last(self) -> bool {
        matches!(self, Pause::Closes | Pause::Fails)
    }
}

/// How a connection goes on after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    /// A list of all keys comes first.
    List,
    /// It serves nothing more, but tells events.
    Watch,
    /// An export comes first.
    Export,
    /// Another database is used: the next turn begins with its limits.
    Use,
    /// The client is known from here on ...
    Admit,
    /// ... or not any more.
    Expel,
    /// The request is executed again when the connection is woken.
    Wait,
    Close,
}

/// What executes requests.
pub(crate) trait Execute {
    /// Says which record comes soon.
    fn prefetch(&self, key: &[u8]);
    /// Memory for a long value; `None` if there cannot be.
    fn buffer(&self, len: usize) -> Option<Box<dyn Buffer>>;
    /// The next piece of such memory to write to; `None` if there is no room for it.
    fn room<'b>(&self, buffer: &'b mut dyn Buffer, len: usize) -> Option<&'b mut [u8]>;
    /// Serves what has come of requests of Kyoto's protocols: how much is done with, how much more is needed at least, and why it
    /// stopped. `room`: how much of a request that is not whole may be kept.
    fn converse(
        &mut self,
        session: &mut Session,
        data: &[u8],
        room: usize,
        budget: &mut u32,
        output: &mut Output,
    ) -> (usize, usize, Pause);
    /// The same for memcached's protocol as Kyoto Tycoon's plug-in speaks it.
    fn converse_as_plugin(
        &mut self,
        session: &mut PluginSession,
        data: &[u8],
        room: usize,
        budget: &mut u32,
        output: &mut Output,
    ) -> (usize, usize, Pause);
    /// Runs a command.
    fn execute(&mut self, request: &Request<'_>, login: &mut Login, output: &mut Output) -> Flow;
    /// Whether requests are to be told.
    fn is_aloud(&self) -> bool;
    /// Tells which dialect a connection has chosen.
    fn tell_dialect(&self, is_binary: bool);
    /// Runs a command and tells it, and its reply.
    fn execute_aloud(
        &mut self,
        head: Head<'_>,
        request: &Request<'_>,
        login: &mut Login,
        output: &mut Output,
    ) -> Flow;
    /// Waits until what has been executed is settled; false if whether it is cannot be known.
    fn settle(&mut self) -> bool;
    /// Writes a piece of a walk over all records, `None` for the one that the last request asked for; returns it unless it
    /// has come to its end.
    fn list(&mut self, listing: Option<Box<Listing>>, output: &mut Output) -> Option<Box<Listing>>;
}

/// Writes a reply in the form of its request.
#[inline]
pub(crate) fn answer(request: &Request<'_>, reply: &Reply<'_>, output: &mut Output) {
    encode(&request.form, reply, output);
}
