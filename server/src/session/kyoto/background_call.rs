//! Calls that take long, as background jobs.

use super::answers::Answer;
use super::work::{Done, Work, tell, tell_binary};
use crate::session::background::{BackgroundWork, JobAnswer, JobLimits, JobRefused, NotDone};
use crate::shared::Shared;
use crate::transport::output::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use todana_protocol::kyoto::{self, AnswerBanner, AnswerStatus, CallFailure, HttpForm, SignalSend};

/// The limits of searches, and of calls that bring data to disk.
pub(super) const OF_CALLS: JobLimits =
    JobLimits { threads: 4, waiting: 1024, bytes: 16 << 20, stack_bytes: None };

/// Returns the limits of scripts, which have threads of their own, so that everything else goes on however long they take: as many
/// at once as the server has workers, as in the original.
pub(super) fn of_scripts(workers: usize) -> JobLimits {
    let stack_bytes = Some(todana_script::STACK_SIZE);
    JobLimits { threads: workers.max(1), waiting: 65_536, bytes: 64 << 20, stack_bytes }
}

const TOO_MANY: CallFailure<'static> = CallFailure::Other {
    status: AnswerStatus::InternalError,
    text: "too many procedures that take long are waiting",
};
const CALLED_OFF: CallFailure<'static> =
    CallFailure::Other { status: AnswerStatus::InternalError, text: "the server is stopping" };
const FAILED: CallFailure<'static> =
    CallFailure::Other { status: AnswerStatus::InternalError, text: "the procedure has failed" };

impl From<JobRefused> for CallFailure<'static> {
    fn from(refused: JobRefused) -> Self {
        match refused {
            JobRefused::TooMany => TOO_MANY,
            JobRefused::Closed => CALLED_OFF,
        }
    }
}

/// How a call is answered.
pub(super) enum AnswerForm {
    Call {
        form: HttpForm,
        banner: AnswerBanner,
        /// The name of the signal that is given after it, and whether to all.
        signal: Option<(Vec<u8>, bool)>,
    },
    /// A script of the binary protocol.
    Binary { is_silent: bool },
}

/// A call that takes long.
pub(super) struct BackgroundCall {
    pub(super) shared: Arc<Shared>,
    pub(super) work: Work,
    pub(super) form: AnswerForm,
}

impl BackgroundCall {
    fn write(&self, done: Result<Done, CallFailure<'static>>) -> Output {
        let mut output = Output::default();
        match &self.form {
            AnswerForm::Call { form, banner, signal } => {
                let signal = signal.as_ref().map(|(name, all)| SignalSend { name, is_broadcast: *all });
                let signals = &self.shared.kyoto.signals;
                let mut answer = Answer { form: *form, banner, signal, signals, output: &mut output };
                tell(done, &mut kyoto::AnswerPairs::default(), &mut answer);
            }
            AnswerForm::Binary { is_silent: true } => {}
            AnswerForm::Binary { is_silent: false } => tell_binary(done, &mut output),
        }
        output
    }
}

impl BackgroundWork for BackgroundCall {
    fn len_bytes(&self) -> usize {
        self.work.len()
    }

    fn perform(&self, is_called_off: &Arc<AtomicBool>) -> Option<JobAnswer> {
        let mut changes = Vec::new();
        let done = self.work.perform(&self.shared, is_called_off, true, &mut changes);
        // The outcome of a script is sent although the server is stopping.
        let is_wanted = !is_called_off.load(Ordering::Relaxed) || self.work.is_script();
        is_wanted.then(|| (self.write(done), changes))
    }

    fn not_done(&self, why: NotDone) -> Output {
        self.write(Err(match why {
            NotDone::Failed => FAILED,
            NotDone::CalledOff => CALLED_OFF,
        }))
    }
}

/// How many commands run at once: other calls have a thread left.
const COMMANDS_MAX: usize = 2;

/// The commands of `synchronize` that run.
#[derive(Default)]
pub(crate) struct RunningCommands(AtomicUsize);

/// One of them, until it is dropped.
pub(super) struct CommandTurn<'t>(&'t AtomicUsize);

impl Drop for CommandTurn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl RunningCommands {
    /// Returns a turn for a command; `None` if enough of them run.
    pub(super) fn turn(&self) -> Option<CommandTurn<'_>> {
        let count = self.0.fetch_add(1, Ordering::Relaxed);
        let turn = CommandTurn(&self.0);
        (count < COMMANDS_MAX).then_some(turn)
    }
}
