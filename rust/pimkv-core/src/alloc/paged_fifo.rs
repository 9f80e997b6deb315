//! `paged-fifo`: a queue of free ids, as vLLM V1 keeps it; the block that has been free longest goes first.
//!
//! Source: vLLM V1's `FreeKVCacheBlockQueue` (0.10 to 0.23, and to this day for blocks that are hashed for
//! prefix caching). It pops the front and appends what is freed; block 0 is taken out at the start as the
//! null block that stands for "no block" in a table, and never handed out. That a sequence's blocks come back
//! in reverse is the manager's doing. Left out: lookups by hash, which would take a block from the middle.

use std::collections::VecDeque;

use super::{Policy, Pool, Taken};
use crate::error::{Result, ensure};
use crate::{BlockId, Owner};

/// Makes the policy.
pub(super) fn make(pool: Pool) -> Result<Box<dyn Policy>> {
    Ok(Box::new(PagedFifo::new(pool.blocks)))
}

const NULL: BlockId = BlockId(0);

/// First in, first out. A fresh pool hands out ascending ids from 1.
#[derive(Clone, Debug)]
struct PagedFifo {
    free: VecDeque<BlockId>,
    taken: Taken,
}

impl PagedFifo {
    fn new(blocks: u32) -> Self {
        Self { free: (1..blocks).map(BlockId).collect(), taken: Taken::new(blocks) }
    }
}

impl Policy for PagedFifo {
    fn take(&mut self, _owner: Owner) -> Option<BlockId> {
        let block = self.free.pop_front()?;
        self.taken.take(block);
        Some(block)
    }

    fn give(&mut self, block: BlockId) -> Result<()> {
        self.taken.give(block)?;
        self.free.push_back(block);
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
        ensure(self.free_blocks() + self.taken.count() + 1 == self.blocks(), || "free count is off".into())?;
        self.taken.check_free(self.free.iter().copied().chain([NULL]))
    }
}
