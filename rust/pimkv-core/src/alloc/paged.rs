//! `paged`: a stack of free ids, as vLLM v0.2.7 keeps it; the block freed last is handed out first.

use super::{Policy, Pool, Taken};
use crate::error::{Result, ensure};
use crate::{BlockId, Owner};

/// Makes the policy.
pub(super) fn make(pool: Pool) -> Result<Box<dyn Policy>> {
    Ok(Box::new(Paged::new(pool.blocks)))
}

/// Last in, first out. A fresh pool is a stack filled with 0..n, so it hands out descending ids.
#[derive(Clone, Debug)]
pub struct Paged {
    free: Vec<BlockId>,
    taken: Taken,
}

impl Paged {
    /// A pool of `blocks` free blocks.
    #[must_use]
    pub fn new(blocks: u32) -> Self {
        Self { free: (0..blocks).map(BlockId).collect(), taken: Taken::new(blocks) }
    }
}

impl Policy for Paged {
    fn take(&mut self, _owner: Owner) -> Option<BlockId> {
        let block = self.free.pop()?;
        self.taken.take(block);
        Some(block)
    }

    fn give(&mut self, block: BlockId) -> Result<()> {
        self.taken.give(block)?;
        self.free.push(block);
        Ok(())
    }

    fn blocks(&self) -> u32 {
        self.taken.len()
    }

    fn free_blocks(&self) -> u32 {
        self.free.len() as u32
    }

    fn is_taken(&self, block: BlockId) -> bool {
        self.taken.contains(block)
    }

    fn bookkeeping_bytes(&self) -> usize {
        self.free.capacity() * size_of::<BlockId>() + self.taken.bytes()
    }

    fn boxed(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn check(&self) -> Result<()> {
        ensure(self.free_blocks() + self.taken.count() == self.blocks(), || "free count is off".into())?;
        self.taken.check_free(self.free.iter().copied())
    }
}
