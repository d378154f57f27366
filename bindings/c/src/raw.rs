//! Memory that is shared with C: what comes in as pointers, and what goes out made by `malloc`.
//!
//! What the caller promises (include/todana.h says so): a pointer that is not NULL points at what its type says, that much of it, and stays so
//! until the function returns; nobody writes there meanwhile. The fields are private: Rust code makes none of these from thin air.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use todana::{Error, ErrorKind, Result};

/// Bytes somewhere. Where a function takes them, `data` may be NULL if `len` is 0. Where it gives them, to be freed, a NUL that does not count
/// stands behind them; not where it shows them. `data` is NULL where there is nothing.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    data: *const c_void,
    len: usize,
}

/// A list of bytes. One that is given is a single piece of memory, bytes and all: todana_free(list.items).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct List {
    items: *const Bytes,
    len: usize,
}

/// A list of numbers. One that is given is a single piece of memory: todana_free(numbers.items).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Numbers {
    items: *const usize,
    len: usize,
}

/// A string of C.
///
/// cbindgen:transparent-typedef
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Bytes {
    pub(crate) const NONE: Bytes = Bytes { data: ptr::null(), len: 0 };

    /// Whether nothing is meant, not even no bytes.
    pub(crate) fn is_null(&self) -> bool {
        self.data.is_null()
    }

    /// What the caller has passed.
    pub(crate) fn as_slice(&self) -> Result<&[u8]> {
        match (self.data.is_null(), self.len) {
            (true, 0) => Ok(&[]),
            (true, _) => Err(invalid("bytes at NULL have a length")),
            (false, len) if len > isize::MAX as usize => Err(invalid("bytes are longer than memory can be")),
            // SAFETY: not NULL and no longer than any piece of memory; that so many bytes are there and stay is the caller's promise.
            (false, len) => Ok(unsafe { std::slice::from_raw_parts(self.data.cast(), len) }),
        }
    }

    /// Shows bytes that stay where they are for as long as the function's description says.
    pub(crate) fn lend(bytes: &[u8]) -> Bytes {
        Bytes { data: bytes.as_ptr().cast(), len: bytes.len() }
    }

    /// A copy for the caller to free, with a NUL behind it.
    pub(crate) fn give(bytes: &[u8]) -> Result<Bytes> {
        let copy = allocate(bytes.len().checked_add(1))?;
        // SAFETY: `copy` is new and has `bytes.len() + 1` bytes.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len());
            copy.add(bytes.len()).write(0);
        }
        Ok(Bytes { data: copy.cast(), len: bytes.len() })
    }
}

impl List {
    /// What the caller has passed.
    pub(crate) fn as_slices(&self) -> Result<Vec<&[u8]>> {
        match (self.items.is_null(), self.len) {
            (true, 0) => Ok(Vec::new()),
            (true, _) => Err(invalid("a list at NULL has a length")),
            (false, len) if len > isize::MAX as usize / size_of::<Bytes>() => {
                Err(invalid("a list is longer than memory can be"))
            }
            (false, len) => {
                // SAFETY: not NULL and no longer than any piece of memory; that so many items are there and stay is the caller's promise.
                let items: &[Bytes] = unsafe { std::slice::from_raw_parts(self.items, len) };
                items.iter().map(Bytes::as_slice).collect()
            }
        }
    }

    /// A copy for the caller to free: the items, and behind them their bytes, each with a NUL. `None` becomes NULL.
    pub(crate) fn give<B: AsRef<[u8]>>(all: &[Option<B>]) -> Result<List> {
        let head = all.len().checked_mul(size_of::<Bytes>());
        let len = all.iter().flatten().try_fold(head.unwrap_or(usize::MAX), |sum, bytes| {
            sum.checked_add(bytes.as_ref().len())?.checked_add(1)
        });
        let block = allocate(len)?;
        let items: *mut Bytes = block.cast();
        let mut at = head.unwrap_or(usize::MAX);
        for (index, bytes) in all.iter().enumerate() {
            let mut item = Bytes::NONE;
            if let Some(bytes) = bytes.as_ref().map(AsRef::as_ref) {
                // SAFETY: the block was made long enough for the items and, behind them, for each item's bytes and a NUL; `at` is behind
                // what has been written of that.
                unsafe {
                    let copy = block.add(at);
                    ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len());
                    copy.add(bytes.len()).write(0);
                    item = Bytes { data: copy.cast(), len: bytes.len() };
                }
                at += bytes.len() + 1;
            }
            // SAFETY: the block begins with so many items, and what `malloc` gives is aligned for them.
            unsafe { items.add(index).write(item) };
        }
        Ok(List { items, len: all.len() })
    }
}

impl Numbers {
    /// A copy for the caller to free.
    pub(crate) fn give(numbers: &[usize]) -> Result<Numbers> {
        let items: *mut usize = allocate(numbers.len().checked_mul(size_of::<usize>()))?.cast();
        // SAFETY: the block is new, long enough, and aligned for numbers, as all that `malloc` gives is.
        unsafe { ptr::copy_nonoverlapping(numbers.as_ptr(), items, numbers.len()) };
        Ok(Numbers { items, len: numbers.len() })
    }
}

impl Text {
    /// What the caller has passed; `None` for NULL.
    pub(crate) fn as_str(&self) -> Result<Option<&str>> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: not NULL; that a NUL ends it, and that it stays, is the caller's promise.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(Some).map_err(|_| invalid("a text is not UTF-8"))
    }
}

/// Gives back the memory of bytes or a list that a function has given. NULL is left alone. It may be called at any time, in a visitor, too.
#[unsafe(no_mangle)]
pub extern "C" fn todana_free(memory: *const c_void) {
    // SAFETY: all that is given away was made by `malloc`; that it is such a piece, and given back once, is the caller's promise.
    unsafe { libc::free(memory.cast_mut()) }
}

/// New memory of so many bytes, at least one, or an error if there is none.
fn allocate(len: Option<usize>) -> Result<*mut u8> {
    let len = len.filter(|&len| len <= isize::MAX as usize);
    // SAFETY: any length may be asked of `malloc`.
    let block = len.map_or(ptr::null_mut(), |len| unsafe { libc::malloc(len.max(1)) });
    if block.is_null() {
        return Err(Error::new(ErrorKind::Full, "the system gives no memory for the answer"));
    }
    Ok(block.cast())
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
