//! `patton`: blocks of 16 tokens in groups of 16 that an owner fills one after the other.
//!
//! Source: PATTON's owned groups of 256 tokens with reference-counted sharing. Our minimal model: `pim-aware`'s
//! rule over groups in place of regions. An owner takes the lowest free id of its current group; else the
//! lowest-numbered wholly free group becomes current; else it shares the group with the most free ids (lowest
//! number on ties); a full pool preempts. Which V block is staged, and that it is moved when it is full, is
//! counted where sequences grow: it changes no id.

use super::{Policy, Pool, RegionIndex};
use crate::error::{Error, Result};
use crate::{BlockId, Owner};

/// Blocks of a group.
const GROUP: u32 = 16;

/// Makes the policy; the pool is whole groups.
pub(super) fn make(pool: Pool) -> Result<Box<dyn Policy>> {
    if !pool.blocks.is_multiple_of(GROUP) {
        let what = format!("a pool of groups has a multiple of {GROUP} blocks");
        return Err(Error::invalid("blocks", pool.blocks, what));
    }
    Ok(Box::new(Patton(RegionIndex::new(pool.blocks, GROUP)?)))
}

/// The index, with groups for regions.
#[derive(Clone, Debug)]
struct Patton(RegionIndex);

impl Policy for Patton {
    fn take(&mut self, owner: Owner) -> Option<BlockId> {
        self.0.take(owner)
    }

    fn give(&mut self, block: BlockId) -> Result<()> {
        self.0.give(block)
    }

    fn forget(&mut self, owner: Owner) {
        self.0.forget(owner);
    }

    fn blocks(&self) -> u32 {
        self.0.blocks()
    }

    fn free_blocks(&self) -> u32 {
        self.0.free_blocks()
    }

    fn is_taken(&self, block: BlockId) -> bool {
        self.0.is_taken(block)
    }

    fn bookkeeping_bytes(&self) -> usize {
        self.0.bookkeeping_bytes()
    }

    fn boxed(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn check(&self) -> Result<()> {
        self.0.check()
    }
}
