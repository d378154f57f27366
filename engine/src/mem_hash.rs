//! The compact hash.
use todana_core::{Engine, MemoryLimit, Place, Record, Result, Status, Visitor, WhenFull};

/// How a [`MemHash`] is made.
#[derive(Clone, Debug)]
pub struct MemHashOptions {
    /// The hash seed; `None` takes a random one.
    pub seed: Option<u64>,
    /// How many shards (rounded up to a power of two); `None` chooses by the limit.
    pub shards: Option<usize>,
    /// The memory limit.
    pub limit: MemoryLimit,
    /// Upper bounds of the plain sizes (key + value + 4 if flags) by which `status` counts records, ascending.
    pub class_bounds: Vec<u32>,
}

impl Default for MemHashOptions {
    fn default() -> Self {
        MemHashOptions {
            seed: None,
            shards: None,
            limit: MemoryLimit { bytes: None, when_full: WhenFull::Evict },
            class_bounds: Vec::new(),
        }
    }
}

/// The compact hash.
pub struct MemHash {}

impl MemHash {
    /// An empty hash.
    pub fn new(options: MemHashOptions) -> Result<MemHash> {
        let _ = options;
        Ok(MemHash {})
    }
}

impl Engine for MemHash {
    fn view(&self, _: &[u8], _: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        Ok(false)
    }
    fn visit(&self, _: &[u8], _: &mut dyn Visitor) -> Result<()> {
        Ok(())
    }
    fn scan(
        &self,
        _: Option<Place>,
        _: &mut dyn FnMut(&[u8], Record<'_>) -> std::ops::ControlFlow<()>,
    ) -> Result<Option<Place>> {
        Ok(None)
    }
    fn clear(&self) -> Result<()> {
        Ok(())
    }
    fn status(&self) -> Status {
        Status::default()
    }
}
