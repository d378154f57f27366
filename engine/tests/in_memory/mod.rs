//! Promises that both engines in memory keep.

/// Tests each promise, a function, with both of them: how a hash is made, how a tree is made, the promises.
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
