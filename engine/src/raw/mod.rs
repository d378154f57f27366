//! The only module of the workspace with `unsafe`: memory from the system, and hints to the processor.
//! Each file has its entry in SAFETY.md.
#![allow(unsafe_code)]

mod mapping;

pub(crate) use mapping::{Mapping, SYSTEM_PAGE};
