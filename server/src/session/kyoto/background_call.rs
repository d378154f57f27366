//! Runs long calls as background jobs.

use super::answers::CallAnswer;
use super::long_call::{LongCall, LongCallResult, write_answer, write_binary_answer};
use crate::session::background_jobs::{BackgroundWork, JobAnswer, JobLimits, JobNotDone, JobRefused};
use crate::shared::SharedState;
use crate::transport::output::ConnectionOutput;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use todana_protocol::kyoto::{self, AnswerBanner, AnswerStatus, CallFailure, HttpForm, SignalSend};

/// The limits of searches, and of calls that write data to disk.
pub(super) const OF_CALLS: JobLimits =
    JobLimits { threads: 4, waiting: 1024, bytes: 16 << 20, stack_bytes: None };

/// Returns the limits of scripts. Scripts have threads of their own, so that other work continues
/// meanwhile. As in Kyoto Tycoon, up to one script per worker runs at once.
pub(super) fn of_scripts(workers: usize) -> JobLimits {
    let stack_bytes = Some(todana_script::STACK_SIZE);
    JobLimits { threads: workers.max(1), waiting: 65_536, bytes: 64 << 20, stack_bytes }
}

const TOO_MANY: CallFailure<'static> = CallFailure::Other {
    status: AnswerStatus::InternalError,
    text: "too many procedures that take long are waiting",
};
const CANCELLED: CallFailure<'static> =
    CallFailure::Other { status: AnswerStatus::InternalError, text: "the server is stopping" };
const FAILED: CallFailure<'static> =
    CallFailure::Other { status: AnswerStatus::InternalError, text: "the procedure has failed" };

impl From<JobRefused> for CallFailure<'static> {
    fn from(refused: JobRefused) -> Self {
        match refused {
            JobRefused::TooMany => TOO_MANY,
            JobRefused::Closed => CANCELLED,
        }
    }
}

/// The form of a call's answer.
pub(super) enum AnswerForm {
    Call {
        form: HttpForm,
        banner: AnswerBanner,
        /// The name of the signal that is sent after the call, and true if all connections that
        /// wait for this name receive it.
        signal: Option<(Vec<u8>, bool)>,
    },
    /// The answer of a script that was called through the binary protocol.
    Binary { is_silent: bool },
}

/// A long call.
pub(super) struct BackgroundCall {
    pub(super) shared: Arc<SharedState>,
    pub(super) long_call: LongCall,
    pub(super) form: AnswerForm,
}

impl BackgroundCall {
    fn write(&self, done: Result<LongCallResult, CallFailure<'static>>) -> ConnectionOutput {
        let mut output = ConnectionOutput::default();
        match &self.form {
            AnswerForm::Call { form, banner, signal } => {
                let signal = signal.as_ref().map(|(name, all)| SignalSend { name, is_broadcast: *all });
                let signals = &self.shared.kyoto.signals;
                let mut answer = CallAnswer {
                    form: *form,
                    position_of: None,
                    banner,
                    signal,
                    signals,
                    output: &mut output,
                };
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
        self.long_call.len()
    }

    fn perform(&self, is_cancelled: &Arc<AtomicBool>) -> Option<JobAnswer> {
        let mut changes = Vec::new();
        let done = self.long_call.perform(&self.shared, is_cancelled, true, &mut changes);
        // The result of a script is sent even if the server is stopping.
        let is_wanted = !is_cancelled.load(Ordering::Relaxed) || self.long_call.is_script();
        is_wanted.then(|| (self.write(done), changes))
    }

    fn not_done(&self, why: JobNotDone) -> ConnectionOutput {
        self.write(Err(match why {
            JobNotDone::Failed => FAILED,
            JobNotDone::Cancelled => CANCELLED,
        }))
    }
}

/// The number of commands that may run at the same time. It leaves at least one thread to other
/// calls.
const COMMANDS_MAX: usize = 2;

/// The running commands of `synchronize`.
#[derive(Default)]
pub(crate) struct RunningCommands(AtomicUsize);

/// Permission to run a command. Dropping the value ends the permission.
pub(super) struct CommandTurn<'t>(&'t AtomicUsize);

impl Drop for CommandTurn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl RunningCommands {
    /// Returns permission to run a command. Returns `None` if too many commands run.
    pub(super) fn turn(&self) -> Option<CommandTurn<'_>> {
        let count = self.0.fetch_add(1, Ordering::Relaxed);
        let turn = CommandTurn(&self.0);
        (count < COMMANDS_MAX).then_some(turn)
    }
}
