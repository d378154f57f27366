//! Defines the interface of engines that copy their groups of records as they lie in memory.

use crate::{Attributes, Expiry, Record, Result, ScanOrder, ScanPosition};

/// The form of an image. An engine adopts only images of its own form without reading each record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageForm {
    /// The layout of buckets (docs/format/checkpoint.md, section 2.3). It includes the order of
    /// bytes, which is the same on all machines.
    pub bucket_format: u32,
    /// The number of shards among which the records are divided.
    pub shards: u32,
    /// The seed of the hash, and the number of all buckets when the image was begun.
    pub order: ScanOrder,
}

/// The result of [`ImagedEngine::copy_buckets`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedBuckets {
    /// The number of records that were appended to the image.
    pub records: u32,
    /// The position at which to continue. `None` after the last bucket.
    pub next: Option<ScanPosition>,
}

/// An engine whose buckets can be copied as they lie in memory, and put into an engine of the same
/// form as they are.
pub trait ImagedEngine: Send + Sync {
    /// Returns the form of an image that is begun now.
    fn image_form(&self) -> ImageForm;

    /// Appends the next buckets from position `from` on (`None`: the start) to `image`: a few
    /// thousand bytes, unless a single bucket is longer. Leaves out the records for whose expiry
    /// `is_dead` returns true. The records that do not lie in buckets are passed to `see` instead,
    /// which runs under a lock: it must be brief and must not call the engine. `see` must read the
    /// bytes of a long value only through [`Record::shared`], which may be compressed.
    ///
    /// A record that exists during the entire copy is copied or passed exactly once, even if others
    /// write meanwhile. Fails with `Busy` if the engine has another seed than that of `form`.
    fn copy_buckets(
        &self,
        form: &ImageForm,
        from: Option<ScanPosition>,
        is_dead: &dyn Fn(Expiry) -> bool,
        image: &mut Vec<u8>,
        see: &mut dyn FnMut(&[u8], Record<'_>),
    ) -> Result<CopiedBuckets>;

    /// Takes over the seed of an image if the engine is empty. Returns true if the engine has that
    /// seed now. The number of buckets limits the memory that the load of the image may prepare.
    fn begin_image_load(&self, form: &ImageForm) -> bool;

    /// Adds the buckets of a block of an image, between `begin_image_load` and
    /// [`end_ordered_load`](crate::Engine::end_ordered_load). `note` receives the attributes of
    /// each record that has attributes and was added with its bucket. Records whose bucket does not
    /// fit as it is, for example because there is another record in its place, are passed to `put`.
    ///
    /// Returns the number of all records. Fails with `Corrupt` if the block is not intact; some of
    /// its buckets may have been added before. Otherwise fails with the error of `put`.
    fn adopt_buckets(
        &self,
        form: &ImageForm,
        block: &[u8],
        note: &mut dyn FnMut(&Attributes),
        put: &mut dyn FnMut(&[u8], Record<'_>) -> Result<()>,
    ) -> Result<u64>;
}
