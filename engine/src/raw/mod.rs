//! The only module of the workspace with `unsafe`: memory from the system, given back to it, and hints to the processor.
//! Each file has its entry in SAFETY.md.
#![allow(unsafe_code)]

mod mapping;
mod residency;

pub(crate) use mapping::{Mapping, SYSTEM_PAGE};
pub use residency::release_start_up_memory;
