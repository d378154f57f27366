//! Machines that run a server each and lose their power, and lines between them that are cut and stall.

pub(crate) mod line;
pub(crate) mod site;
