//! `sglang-sorted`: `SGLang`'s page allocator with `need_sort`, the strongest of the stock orders.
//!
//! Source: `SGLang`'s `PagedTokenToKVPoolAllocator`: an ordered list of free pages from whose front pages are
//! taken, and freed pages kept apart; an allocation that asks for more than the list holds first merges both
//! and sorts. Our minimal model: an admission asks for all its blocks at once (`plan`), everything else (growth,
//! a branch, a prefix) for one at a time, where `SGLang` asks for the growth of a whole batch at once. Its page 0
//! for padding lies outside the pool that it accounts for, so it is left out.

use std::collections::VecDeque;

use super::{Policy, Pool, Taken};
use crate::error::{Result, ensure};
use crate::{BlockId, Owner};

/// Makes the policy.
pub(super) fn make(pool: Pool) -> Result<Box<dyn Policy>> {
    Ok(Box::new(SglangSorted::new(pool.blocks)))
}

/// A list in ascending order, and what has been freed since it was sorted.
#[derive(Clone, Debug)]
struct SglangSorted {
    list: VecDeque<BlockId>,
    freed: Vec<BlockId>,
    taken: Taken,
}

impl SglangSorted {
    fn new(blocks: u32) -> Self {
        Self { list: (0..blocks).map(BlockId).collect(), freed: Vec::new(), taken: Taken::new(blocks) }
    }

    /// The freed ids join the list if it holds fewer than are asked for.
    fn merge_for(&mut self, blocks: u64) {
        if blocks > self.list.len() as u64 && !self.freed.is_empty() {
            self.list.extend(self.freed.drain(..));
            self.list.make_contiguous().sort_unstable();
        }
    }
}

impl Policy for SglangSorted {
    fn take(&mut self, _owner: Owner) -> Option<BlockId> {
        self.merge_for(1);
        let block = self.list.pop_front()?;
        self.taken.take(block);
        Some(block)
    }

    fn give(&mut self, block: BlockId) -> Result<()> {
        self.taken.give(block)?;
        self.freed.push(block);
        Ok(())
    }

    fn plan(&mut self, _owner: Owner, blocks: u64) {
        self.merge_for(blocks);
    }

    fn blocks(&self) -> u32 {
        self.taken.len()
    }

    fn free_blocks(&self) -> u32 {
        (self.list.len() + self.freed.len()) as u32
    }

    fn is_taken(&self, block: BlockId) -> bool {
        self.taken.contains(block)
    }

    fn bookkeeping_bytes(&self) -> usize {
        (self.list.capacity() + self.freed.capacity()) * size_of::<BlockId>() + self.taken.bytes()
    }

    fn boxed(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn check(&self) -> Result<()> {
        ensure(self.list.iter().is_sorted(), || "the list is out of order".into())?;
        ensure(self.free_blocks() + self.taken.count() == self.blocks(), || "free count is off".into())?;
        self.taken.check_free(self.list.iter().chain(&self.freed).copied())
    }
}
