//! `lowest-id`: the smallest free id first, the one-line change to vLLM.
//!
//! A free list kept as a min-heap has these ids; here a tree of bitmaps finds the smallest, 64 ids a word.
//! `pimphony` stands on it too, with a chunk for a block.

use super::min_sets::MinSets;
use super::{Policy, Pool, Taken};
use crate::error::{Result, ensure};
use crate::{BlockId, Owner};

/// Makes the policy.
pub(super) fn make(pool: Pool) -> Result<Box<dyn Policy>> {
    Ok(Box::new(LowestId::new(pool.blocks)))
}

/// The free ids, in the only set of `free`.
#[derive(Clone, Debug)]
struct LowestId {
    free: MinSets,
    count: u32,
    taken: Taken,
}

impl LowestId {
    fn new(blocks: u32) -> Self {
        let mut free = MinSets::new(1, blocks);
        free.fill(0, blocks);
        Self { free, count: blocks, taken: Taken::new(blocks) }
    }
}

impl Policy for LowestId {
    fn take(&mut self, _owner: Owner) -> Option<BlockId> {
        let lowest = self.free.first(0)?;
        self.free.remove(0, lowest);
        self.count -= 1;
        self.taken.take(BlockId(lowest));
        Some(BlockId(lowest))
    }

    fn give(&mut self, block: BlockId) -> Result<()> {
        self.taken.give(block)?;
        self.free.insert(0, block.0);
        self.count += 1;
        Ok(())
    }

    fn blocks(&self) -> u32 {
        self.taken.len()
    }

    fn free_blocks(&self) -> u32 {
        self.count
    }

    fn is_taken(&self, block: BlockId) -> bool {
        self.taken.contains(block)
    }

    fn bookkeeping_bytes(&self) -> usize {
        self.free.bytes() + self.taken.bytes()
    }

    fn boxed(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn check(&self) -> Result<()> {
        ensure(self.count + self.taken.count() == self.blocks(), || "free count is off".into())?;
        let free = (0..self.blocks()).filter(|&id| self.free.contains(0, id));
        self.taken.check_free(free.map(BlockId))?;
        ensure(self.free.first(0) == (0..self.blocks()).find(|&id| !self.taken.contains(BlockId(id))), || {
            "the lowest free id is off".into()
        })
    }
}
