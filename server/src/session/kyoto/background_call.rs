//! Long calls as background jobs.

use super::answers::CallAnswer;
use super::work::{LongCall, LongCallResult, write_answer, write_binary_answer};
use crate::session::background::{BackgroundWork, JobAnswer, JobLimits, JobRefused, NotDone};
use crate::shared::Shared;
use crate::transport::output::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use todana_protocol::kyoto::{self, AnswerBanner, AnswerStatus, CallFailure, HttpForm, SignalSend};

/// The limits of searches, and of calls that write data to disk.
pub(super) const OF_CALLS: JobLimits =
    JobLimits { threads: 4, waiting: 1024, bytes: 16 << 20, stack_bytes: None };

/// Returns the limits of scripts. Scripts have threads of their own, so that all else continues
/// while they run; as many run at once as the server has workers, as in Kyoto Tycoon.
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

/// The form of a call's answer.
pub(super) enum AnswerForm {
    Call {
        form: HttpForm,
        banner: AnswerBanner,
        /// The name of the signal that follows the call, and true if all waiting connections
        /// receive it.
        signal: Option<(Vec<u8>, bool)>,
    },
    /// A script of the binary protocol.
    Binary { is_silent: bool },
}

/// A long call.
pub(super) struct BackgroundCall {
    pub(super) shared: Arc<Shared>,
    pub(super) work: LongCall,
    pub(super) form: AnswerForm,
}

impl BackgroundCall {
    fn write(&self, done: Result<LongCallResult, CallFailure<'static>>) -> Output {
        let mut output = Output::default();
        match &self.form {
            AnswerForm::Call { form, banner, signal } => {
                let signal = signal.as_ref().map(|(name, all)| SignalSend { name, is_broadcast: *all });
                let signals = &self.shared.kyoto.signals;
                let mut answer = CallAnswer { form: *form, banner, signal, signals, output: &mut output };
                write_answer(done, &mut kyoto::AnswerPairs::default(), &mut answer);
            }
            AnswerForm::Binary { is_silent: true } => {}
            AnswerForm::Binary { is_silent: false } => write_binary_answer(done, &mut output),
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
        // The result of a script is sent even if the server is stopping.
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

/// The number of commands that run at the same time; other calls keep at least one thread.
const COMMANDS_MAX: usize = 2;

/// The running commands of `synchronize`.
#[derive(Default)]
pub(crate) struct RunningCommands(AtomicUsize);

/// A running command, until dropped.
pub(super) struct CommandTurn<'t>(&'t AtomicUsize);

impl Drop for CommandTurn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl RunningCommands {
    /// Returns a turn for a command; `None` if too many run.
    pub(super) fn turn(&self) -> Option<CommandTurn<'_>> {
        let count = self.0.fetch_add(1, Ordering::Relaxed);
        let turn = CommandTurn(&self.0);
        (count < COMMANDS_MAX).then_some(turn)
    }
}
