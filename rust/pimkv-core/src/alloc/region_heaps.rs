//! `pim-aware` with the published structures: a sequence fills a region before it takes another.
//!
//! A min-heap of free slots per region, one min-heap of empty regions whose stale entries are
//! skipped, and a scan over all regions when no region is empty. Deliberate difference: an empty
//! region is queued at most once, so that the heap cannot outgrow the number of regions.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;

use super::{Policy, Taken};
use crate::error::{Error, Result, ensure};
use crate::{BlockId, Owner, RegionId};

/// The writeup's allocator. Region r is the ids `r * blocks_per_region ..` up to the next region.
///
/// `take` gives the lowest free id of the owner's current region; else the lowest-numbered wholly
/// free region becomes current; else the region with the most free ids (lowest number on ties).
#[derive(Clone, Debug)]
pub struct RegionHeaps {
    blocks_per_region: u32,
    /// Free ids per region.
    slots: Vec<BinaryHeap<Reverse<u32>>>,
    /// Wholly free regions, and some that no longer are.
    empty: BinaryHeap<Reverse<u32>>,
    /// Which regions stand in `empty`.
    queued: FixedBitSet,
    current: FxHashMap<Owner, RegionId>,
    free: u32,
    taken: Taken,
}

impl RegionHeaps {
    /// A pool of `blocks` free blocks, a whole number of regions.
    pub fn new(blocks: u32, blocks_per_region: u32) -> Result<Self> {
        if blocks_per_region == 0 || !blocks.is_multiple_of(blocks_per_region) {
            return Err(Error::invalid(
                "blocks",
                blocks,
                format!("a pool of regions has a multiple of blocks_per_region = {blocks_per_region} blocks"),
            ));
        }
        let regions = blocks / blocks_per_region;
        let region = |r: u32| (r * blocks_per_region..(r + 1) * blocks_per_region).map(Reverse).collect();
        let mut queued = FixedBitSet::with_capacity(regions as usize);
        queued.insert_range(..);
        Ok(Self {
            blocks_per_region,
            slots: (0..regions).map(region).collect(),
            empty: (0..regions).map(Reverse).collect(),
            queued,
            current: FxHashMap::default(),
            free: blocks,
            taken: Taken::new(blocks),
        })
    }

    fn is_empty(&self, region: u32) -> bool {
        self.slots[region as usize].len() == self.blocks_per_region as usize
    }

    /// The lowest-numbered wholly free region; it and the stale entries before it leave the heap.
    fn pop_empty(&mut self) -> Option<u32> {
        while let Some(Reverse(region)) = self.empty.pop() {
            self.queued.remove(region as usize);
            if self.is_empty(region) {
                return Some(region);
            }
        }
        None
    }

    /// The region with the most free ids, the lowest-numbered of several.
    fn fullest_of_free(&self) -> Option<u32> {
        let best = (0..self.slots.len()).max_by_key(|&r| (self.slots[r].len(), Reverse(r)))?;
        (!self.slots[best].is_empty()).then_some(best as u32)
    }
}

impl Policy for RegionHeaps {
    fn take(&mut self, owner: Owner) -> Option<BlockId> {
        if self.free == 0 {
            return None;
        }
        let current = self.current.get(&owner).map(|r| r.0).filter(|&r| !self.slots[r as usize].is_empty());
        let region = if let Some(region) = current {
            region
        } else {
            let region = self.pop_empty().or_else(|| self.fullest_of_free())?;
            self.current.insert(owner, RegionId(region));
            region
        };
        let Reverse(id) = self.slots[region as usize].pop()?;
        self.free -= 1;
        self.taken.take(BlockId(id));
        Some(BlockId(id))
    }

    fn give(&mut self, block: BlockId) -> Result<()> {
        self.taken.give(block)?;
        let region = block.0 / self.blocks_per_region;
        self.slots[region as usize].push(Reverse(block.0));
        self.free += 1;
        if self.is_empty(region) && !self.queued.put(region as usize) {
            self.empty.push(Reverse(region));
        }
        Ok(())
    }

    fn forget(&mut self, owner: Owner) {
        self.current.remove(&owner);
    }

    fn blocks(&self) -> u32 {
        self.taken.0.len() as u32
    }

    fn free_blocks(&self) -> u32 {
        self.free
    }

    fn is_taken(&self, block: BlockId) -> bool {
        self.taken.contains(block)
    }

    fn bookkeeping_bytes(&self) -> usize {
        self.slots.iter().map(|s| s.capacity() * size_of::<u32>()).sum::<usize>()
            + self.slots.capacity() * size_of::<BinaryHeap<Reverse<u32>>>()
            + self.empty.capacity() * size_of::<u32>()
            + self.queued.len().div_ceil(8)
            + self.current.capacity() * size_of::<(Owner, RegionId)>()
            + self.taken.bytes()
    }

    fn check(&self) -> Result<()> {
        ensure(self.free + self.taken.count() == self.blocks(), || "free count is off".into())?;
        for (region, slots) in self.slots.iter().enumerate() {
            ensure(slots.iter().all(|s| (s.0 / self.blocks_per_region) as usize == region), || {
                format!("region {region} holds a foreign id")
            })?;
            ensure(!self.is_empty(region as u32) || self.queued.contains(region), || {
                format!("empty region {region} is not queued")
            })?;
        }
        ensure(self.empty.len() == self.queued.count_ones(..), || "queue of empty regions is off".into())?;
        self.taken.check_free(self.slots.iter().flatten().map(|s| BlockId(s.0)))
    }
}
