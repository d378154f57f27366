//! Translates memory that is shared with C: pointers of the caller, and memory for the caller,
//! which is allocated by `malloc`.
//!
//! The caller promises the following (see include/todana.h). A pointer that is not NULL points at a
//! value of its type with the stated length. It stays valid until the function returns, and no
//! thread writes to the value meanwhile. The fields are private, so that Rust code cannot create
//! these values from nothing.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use todana::{Error, ErrorKind, Result};

/// A sequence of bytes. In an argument, `data` may be NULL if `len` is 0. In a result that the
/// caller frees, a NUL follows the bytes and does not count for `len`. Bytes that are only shown
/// have no NUL. `data` is NULL if there is no result.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    data: *const c_void,
    len: usize,
}

/// A list of byte sequences. A result is a single allocation that includes the bytes:
/// todana_free(list.items).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BytesList {
    items: *const Bytes,
    len: usize,
}

/// A list of numbers. A result is a single allocation: todana_free(numbers.items).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NumberList {
    items: *const usize,
    len: usize,
}

/// A string of C.
///
/// cbindgen:transparent-typedef
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct CText(*const c_char);

impl Bytes {
    pub(crate) const NONE: Bytes = Bytes { data: ptr::null(), len: 0 };

    /// Returns true if the argument is missing. An empty argument is not missing.
    pub(crate) fn is_null(&self) -> bool {
        self.data.is_null()
    }

    /// Returns the bytes of the caller.
    pub(crate) fn as_slice(&self) -> Result<&[u8]> {
        match (self.data.is_null(), self.len) {
            (true, 0) => Ok(&[]),
            (true, _) => Err(invalid("bytes at NULL have a length")),
            (false, len) if len > isize::MAX as usize => Err(invalid("bytes are longer than memory can be")),
            // SAFETY: not NULL, and no longer than any allocation can be; the caller promises that
            // `len` bytes are there and stay unchanged.
            (false, len) => Ok(unsafe { std::slice::from_raw_parts(self.data.cast(), len) }),
        }
    }

    /// Returns a view of bytes that stay in their place for as long as the description of the
    /// function says.
    pub(crate) fn lend(bytes: &[u8]) -> Bytes {
        Bytes { data: bytes.as_ptr().cast(), len: bytes.len() }
    }

    /// Returns a copy that the caller frees, followed by a NUL.
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

impl BytesList {
    pub(crate) const NONE: BytesList = BytesList { items: ptr::null(), len: 0 };

    /// Returns the byte sequences of the caller.
    pub(crate) fn as_slices(&self) -> Result<Vec<&[u8]>> {
        match (self.items.is_null(), self.len) {
            (true, 0) => Ok(Vec::new()),
            (true, _) => Err(invalid("a list at NULL has a length")),
            (false, len) if len > isize::MAX as usize / size_of::<Bytes>() => {
                Err(invalid("a list is longer than memory can be"))
            }
            (false, len) => {
                // SAFETY: not NULL, and no longer than any allocation can be; the caller promises
                // that `len` items are there and stay unchanged.
                let items: &[Bytes] = unsafe { std::slice::from_raw_parts(self.items, len) };
                items.iter().map(Bytes::as_slice).collect()
            }
        }
    }

    /// Returns a copy that the caller frees: the items, followed by their bytes, each with a NUL.
    /// `None` becomes NULL.
    pub(crate) fn give<B: AsRef<[u8]>>(all: &[Option<B>]) -> Result<BytesList> {
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
                // SAFETY: the block is long enough for the items, followed by each item's bytes and
                // a NUL; `at` is after all that has been written of them.
                unsafe {
                    let copy = block.add(at);
                    ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len());
                    copy.add(bytes.len()).write(0);
                    item = Bytes { data: copy.cast(), len: bytes.len() };
                }
                at += bytes.len() + 1;
            }
            // SAFETY: the block begins with this many items, and memory of `malloc` is aligned for
            // them.
            unsafe { items.add(index).write(item) };
        }
        Ok(BytesList { items, len: all.len() })
    }
}

impl NumberList {
    /// Returns a copy that the caller frees.
    pub(crate) fn give(numbers: &[usize]) -> Result<NumberList> {
        let items: *mut usize = allocate(numbers.len().checked_mul(size_of::<usize>()))?.cast();
        // SAFETY: the block is new, long enough, and aligned for numbers, as all memory of `malloc`
        // is.
        unsafe { ptr::copy_nonoverlapping(numbers.as_ptr(), items, numbers.len()) };
        Ok(NumberList { items, len: numbers.len() })
    }
}

impl CText {
    /// Returns the text of the caller, or `None` for NULL.
    pub(crate) fn as_str(&self) -> Result<Option<&str>> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: not NULL; the caller promises that a NUL ends it, and that it stays unchanged.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(Some).map_err(|_| invalid("a text is not UTF-8"))
    }
}

/// Frees bytes or a list that a function has returned. NULL is ignored. May be called at any time,
/// even by a visitor.
#[unsafe(no_mangle)]
pub extern "C" fn todana_free(memory: *const c_void) {
    // SAFETY: all memory given to the caller was allocated by `malloc`; the caller promises that
    // this is such memory, and frees it once.
    unsafe { libc::free(memory.cast_mut()) }
}

/// Allocates at least one byte, or returns an error if there is no memory.
fn allocate(len: Option<usize>) -> Result<*mut u8> {
    let len = len.filter(|&len| len <= isize::MAX as usize);
    // SAFETY: `malloc` accepts any length.
    let block = len.map_or(ptr::null_mut(), |len| unsafe { libc::malloc(len.max(1)) });
    if block.is_null() {
        return Err(Error::new(ErrorKind::Full, "the system gives no memory for the answer"));
    }
    Ok(block.cast())
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
