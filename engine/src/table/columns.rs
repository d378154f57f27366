//! Rows: the columns of a record's value.
//!
//! ```text
//! value = name NUL value NUL name NUL value ...
//! ```
//!
//! Neither names nor values contain NUL. A last name without a value does not count. If a name
//! occurs twice, the first occurrence counts.

/// Returns the columns of a row in their order.
pub fn columns(row: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut parts = row.split(|&byte| byte == 0);
    std::iter::from_fn(move || Some((parts.next()?, parts.next()?)))
}

/// Returns the value of a column.
pub fn column<'r>(row: &'r [u8], name: &[u8]) -> Option<&'r [u8]> {
    columns(row).find(|(found, _)| *found == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::{column, columns};

    #[test]
    fn columns_are_pairs_of_parts() {
        let row = b"name\0zed\0age\0\0name\0other\0rest";
        let all: Vec<_> = columns(row).collect();
        assert_eq!(all, [(&b"name"[..], &b"zed"[..]), (b"age", b""), (b"name", b"other")]);
        assert_eq!((column(row, b"name"), column(row, b"age")), (Some(&b"zed"[..]), Some(&b""[..])));
        assert_eq!((column(row, b"rest"), column(row, b"none")), (None, None));
        assert_eq!(columns(b"").count(), 0);
        assert_eq!(column(b"\0x", b""), Some(&b"x"[..]));
    }
}
