//! Computes the size class under which a record is reported. Todana has no slabs, but tools read
//! `stats items` and `stats slabs` by class, so each record is reported under the class that
//! memcached 1.6 would use.

/// The chunk sizes of memcached's classes 1 to 39 with its default growth factor.
pub const CHUNK_SIZES: [u32; 39] = [
    96, 120, 152, 192, 240, 304, 384, 480, 600, 752, 944, 1184, 1480, 1856, 2320, 2904, 3632, 4544, 5680,
    7104, 8880, 11104, 13880, 17352, 21696, 27120, 33904, 42384, 52984, 66232, 82792, 103496, 129376, 161720,
    202152, 252696, 315872, 394840, 524288,
];

/// The bytes that memcached adds to the lengths of key and value: a header of 48, a CAS ID of 8,
/// the NUL after the key, and CRLF. Flags other than 0 add 4 more.
pub const ITEM_OVERHEAD_BYTES: u64 = 48 + 8 + 1 + 2;

/// Returns the size of an item by memcached's rule. The option `-I` limits this size.
pub fn item_size(key_len: u64, value_len: u64, flags: u32) -> u64 {
    ITEM_OVERHEAD_BYTES + key_len + value_len + if flags != 0 { 4 } else { 0 }
}

/// Returns the class (1 to 39) of an item of this size. memcached splits larger items into chunks
/// of the last class.
pub fn size_class(item_size: u64) -> usize {
    CHUNK_SIZES.partition_point(|&chunk| u64::from(chunk) < item_size).min(CHUNK_SIZES.len() - 1) + 1
}
