//! `random`: any free block. The indices are drawn outside and fed in, one per coming take.

use std::collections::VecDeque;

use super::{Policy, Pool, Taken};
use crate::error::{Error, Result, ensure};
use crate::{BlockId, Owner};

/// Makes the policy.
pub(super) fn make(pool: Pool) -> Result<Box<dyn Policy>> {
    Ok(Box::new(Random::new(pool.blocks)))
}

/// A free list from which the fed index is taken by swapping it with the last.
#[derive(Clone, Debug)]
struct Random {
    free: Vec<BlockId>,
    indices: VecDeque<u32>,
    fault: Option<Error>,
    taken: Taken,
}

impl Random {
    /// A pool of `blocks` free blocks and no index.
    fn new(blocks: u32) -> Self {
        Self {
            free: (0..blocks).map(BlockId).collect(),
            indices: VecDeque::new(),
            fault: None,
            taken: Taken::new(blocks),
        }
    }
}

impl Policy for Random {
    fn take(&mut self, _owner: Owner) -> Option<BlockId> {
        if self.free.is_empty() {
            return None;
        }
        let Some(index) = self.indices.pop_front() else {
            self.fault = Some(Error::invalid("indices", "none left", "one fed per block taken"));
            return None;
        };
        if index as usize >= self.free.len() {
            let most = self.free.len() - 1;
            self.fault = Some(Error::invalid("indices", index, format!("allowed 0 to {most} for this take")));
            return None;
        }
        let block = self.free.swap_remove(index as usize);
        self.taken.take(block);
        Some(block)
    }

    fn give(&mut self, block: BlockId) -> Result<()> {
        self.taken.give(block)?;
        self.free.push(block);
        Ok(())
    }

    fn draws(&self) -> bool {
        true
    }

    fn feed(&mut self, indices: &[u32]) -> Result<()> {
        if let Some(index) = indices.iter().find(|&&i| i >= self.blocks()) {
            return Err(Error::invalid("indices", index, format!("allowed 0 to {}", self.blocks() - 1)));
        }
        self.indices.extend(indices);
        Ok(())
    }

    fn fault(&mut self) -> Option<Error> {
        self.fault.take()
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
        (self.free.capacity() + self.indices.capacity()) * size_of::<u32>() + self.taken.bytes()
    }

    fn boxed(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn check(&self) -> Result<()> {
        ensure(self.free_blocks() + self.taken.count() == self.blocks(), || "free count is off".into())?;
        self.taken.check_free(self.free.iter().copied())
    }
}
