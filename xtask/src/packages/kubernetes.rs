//! The manifests for Kubernetes, which need no build.

use crate::clients::{PYTHON, pip};
use crate::step::{StepOutcome, built, with_time_limit};

pub(super) fn test() -> Result<StepOutcome, StepOutcome> {
    pip("kubernetes-validate", "kubernetes_validate", &[])?;
    let todana = built("todana").display().to_string();
    Ok(with_time_limit(PYTHON, &["tests/packages/kubernetes.py", &todana]).run())
}
