//! `pim-aware` on the index: the ids of `region_heaps` at every step, and no path that looks at all regions.

use rustc_hash::FxHashSet;

use super::{Policy, Pool, RegionHeaps, RegionIndex};
use crate::error::{Error, Result};
use crate::{BlockId, Owner};

/// Makes the policy, in the structures that are asked for.
pub(super) fn make(pool: Pool) -> Result<Box<dyn Policy>> {
    let Pool { blocks, blocks_per_region, best_fit, .. } = pool;
    if pool.heaps {
        Ok(Box::new(RegionHeaps::planning(blocks, blocks_per_region, best_fit)?))
    } else {
        Ok(Box::new(PimAware::planning(blocks, blocks_per_region, best_fit)?))
    }
}

/// The writeup's allocator and its two options, over a [`RegionIndex`].
#[derive(Clone, Debug)]
struct PimAware {
    index: RegionIndex,
    best_fit: bool,
}

impl PimAware {
    /// A pool of `blocks` free blocks, a whole number of regions. With `best_fit`, an owner that asks for
    /// several blocks while no region is wholly free starts in the region with the fewest free ids that
    /// still hold them (the published negative result).
    fn planning(blocks: u32, blocks_per_region: u32, best_fit: bool) -> Result<Self> {
        Ok(Self { index: RegionIndex::new(blocks, blocks_per_region)?, best_fit })
    }
}

impl Policy for PimAware {
    fn take(&mut self, owner: Owner) -> Option<BlockId> {
        self.index.take(owner)
    }

    fn give(&mut self, block: BlockId) -> Result<()> {
        self.index.give(block)
    }

    fn forget(&mut self, owner: Owner) {
        self.index.forget(owner);
    }

    fn plan(&mut self, owner: Owner, blocks: u64) {
        if !self.best_fit || self.index.lowest_empty().is_some() {
            return;
        }
        let fits = u32::try_from(blocks).ok().and_then(|n| self.index.tightest(n).next());
        if let Some(region) = fits {
            self.index.set_current(owner, region);
        }
    }

    fn compact(&mut self, most_used: u32) -> Result<Vec<(BlockId, BlockId)>> {
        let size = self.index.blocks_per_region();
        // Least used first: the victims stand in that order in the lists, all that are not wholly free.
        let least = size.saturating_sub(most_used);
        let mut victims: Vec<_> = self.index.roomiest(least).filter(|&r| self.index.room(r) < size).collect();
        if least == 0 {
            victims.extend(self.index.in_list(0));
        }
        let mut moves = Vec::new();
        let mut received = FxHashSet::default();
        for victim in victims {
            if received.contains(&victim) {
                continue;
            }
            let first = victim.0 * size;
            let taken: Vec<_> =
                (first..first + size).map(BlockId).filter(|&b| !self.index.is_free(b)).collect();
            for block in taken {
                // The fullest region with room, so that as few as possible stay in part.
                let Some(target) = self.index.tightest(1).find(|&r| r != victim) else {
                    return Ok(moves);
                };
                if self.index.room(target) == size {
                    return Ok(moves);
                }
                received.insert(target);
                let Some(slot) = self.index.lowest_free(target) else {
                    return Err(Error::BrokenInvariant(format!("region {target} has no free id")));
                };
                self.index.flip(slot);
                self.index.flip(block);
                moves.push((block, slot));
            }
        }
        Ok(moves)
    }

    fn blocks(&self) -> u32 {
        self.index.blocks()
    }

    fn free_blocks(&self) -> u32 {
        self.index.free_blocks()
    }

    fn is_taken(&self, block: BlockId) -> bool {
        self.index.is_taken(block)
    }

    fn bookkeeping_bytes(&self) -> usize {
        self.index.bookkeeping_bytes()
    }

    fn boxed(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn check(&self) -> Result<()> {
        self.index.check()
    }
}
