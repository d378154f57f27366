//! Requirements on both engines in memory.

/// Tests each requirement, a function, with both engines: the constructor of a hash, that of a
/// tree, the requirements.
macro_rules! engines_in_memory {
    ($hash:expr, $tree:expr, $($promise:ident)*) => {
        mod mem_hash {
            use super::*;

            $(#[test] fn $promise() { super::$promise($hash); })*
        }

        mod mem_tree {
            use super::*;

            $(#[test] fn $promise() { super::$promise($tree); })*
        }
    };
}
