//! The same ids as `pim-aware`, from an index: bitmaps of free ids, regions listed by how many are free.
//!
//! No path looks at all regions: the lowest empty region, the roomiest and the next one of a given room are
//! successor queries on small trees of bitmaps. `pim-gather` plans on the same index and takes where it
//! wants (`take_at`).

use rustc_hash::FxHashMap;

use super::Policy;
use super::min_sets::MinSets;
use crate::error::{Error, Result, ensure};
use crate::{BlockId, Owner, RegionId};

/// Regions indexed by their number of free ids. Region r is the ids `r * blocks_per_region ..` up to the next.
///
/// `take` gives the lowest free id of the owner's current region; else the lowest-numbered wholly free
/// region becomes current; else the region with the most free ids (lowest number on ties).
#[derive(Clone, Debug)]
pub struct RegionIndex {
    blocks_per_region: u32,
    /// `ceil(2^64 / blocks_per_region)`, 0 for regions of one block: divides by multiplying.
    reciprocal: u64,
    /// Words of the bitmap of one region.
    words: usize,
    /// Free ids, `words` words a region.
    free_ids: Vec<u64>,
    /// Free ids per region.
    free_in: Vec<u32>,
    /// Regions by their number of free ids.
    rooms: MinSets,
    /// Which of `rooms` hold a region.
    occupied: MinSets,
    current: FxHashMap<Owner, RegionId>,
    free: u32,
}

impl RegionIndex {
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
        let words = blocks_per_region.div_ceil(64) as usize;
        let mut region = vec![u64::MAX; words];
        if !blocks_per_region.is_multiple_of(64) {
            region[words - 1] = (1 << (blocks_per_region % 64)) - 1;
        }
        let mut rooms = MinSets::new(blocks_per_region as usize + 1, regions);
        rooms.fill(blocks_per_region, regions);
        let mut occupied = MinSets::new(1, blocks_per_region + 1);
        occupied.insert(0, blocks_per_region);
        Ok(Self {
            blocks_per_region,
            reciprocal: (u64::MAX / u64::from(blocks_per_region)).wrapping_add(1),
            words,
            free_ids: region.repeat(regions as usize),
            free_in: vec![blocks_per_region; regions as usize],
            rooms,
            occupied,
            current: FxHashMap::default(),
            free: blocks,
        })
    }

    /// Blocks of a region.
    #[must_use]
    pub fn blocks_per_region(&self) -> u32 {
        self.blocks_per_region
    }

    /// The region of a block.
    #[must_use]
    pub fn region_of(&self, block: BlockId) -> RegionId {
        RegionId(self.region(block))
    }

    /// How many ids of the region are free.
    #[must_use]
    pub fn room(&self, region: RegionId) -> u32 {
        self.free_in[region.0 as usize]
    }

    /// The region that the owner took from last, if it remembers one.
    #[must_use]
    pub fn current(&self, owner: Owner) -> Option<RegionId> {
        self.current.get(&owner).copied()
    }

    /// The owner takes from this region next, as long as it has room.
    pub(crate) fn set_current(&mut self, owner: Owner, region: RegionId) {
        self.current.insert(owner, region);
    }

    /// The lowest-numbered wholly free region.
    #[must_use]
    pub fn lowest_empty(&self) -> Option<RegionId> {
        self.rooms.first(self.blocks_per_region).map(RegionId)
    }

    /// Regions with at least `least` free ids, most free first, the lowest number first among equals.
    pub fn roomiest(&self, least: u32) -> impl Iterator<Item = RegionId> {
        let mut at = self.occupied.previous(0, self.blocks_per_region).map(|room| (room, 0));
        std::iter::from_fn(move || {
            loop {
                let (room, from) = at.filter(|&(room, _)| room >= least.max(1))?;
                if let Some(region) = self.rooms.next(room, from) {
                    at = Some((room, region + 1));
                    return Some(RegionId(region));
                }
                at = self.occupied.previous(0, room - 1).map(|room| (room, 0));
            }
        })
    }

    /// Regions with at least `least` free ids, fewest free first, the lowest number first among equals.
    pub fn tightest(&self, least: u32) -> impl Iterator<Item = RegionId> {
        let mut at = self.occupied.next(0, least.max(1)).map(|room| (room, 0));
        std::iter::from_fn(move || {
            loop {
                let (room, from) = at?;
                if let Some(region) = self.rooms.next(room, from) {
                    at = Some((room, region + 1));
                    return Some(RegionId(region));
                }
                at = self.occupied.next(0, room + 1).map(|room| (room, 0));
            }
        })
    }

    /// Regions with exactly so many free ids, ascending.
    pub(super) fn in_list(&self, room: u32) -> impl Iterator<Item = RegionId> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let region = self.rooms.next(room, from)?;
            from = region + 1;
            Some(RegionId(region))
        })
    }

    /// The free ids of a region, ascending.
    pub fn free_ids(&self, region: RegionId) -> impl Iterator<Item = BlockId> {
        let first = region.0 as usize * self.words;
        let base = region.0 * self.blocks_per_region;
        let words = self.free_ids[first..first + self.words].iter().zip(0_u32..);
        words.flat_map(move |(&word, i)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(BlockId(base + i * 64 + bit))
            })
        })
    }

    pub(super) fn lowest_free(&self, region: RegionId) -> Option<BlockId> {
        self.free_ids(region).next()
    }

    /// The number of a block's region. Exact for 32-bit numbers (Lemire, Kaser, Kurz: Faster remainder by
    /// direct computation, 2019).
    fn region(&self, block: BlockId) -> u32 {
        if self.reciprocal == 0 {
            return block.0;
        }
        ((u128::from(self.reciprocal) * u128::from(block.0)) >> 64) as u32
    }

    fn word_of(&self, block: BlockId) -> (usize, u64) {
        self.word_in(self.region(block), block)
    }

    fn word_in(&self, region: u32, block: BlockId) -> (usize, u64) {
        let slot = block.0 - region * self.blocks_per_region;
        (region as usize * self.words + slot as usize / 64, 1 << (slot % 64))
    }

    pub(super) fn is_free(&self, block: BlockId) -> bool {
        let (word, bit) = self.word_of(block);
        self.free_ids[word] & bit != 0
    }

    /// Marks a free id taken, or a taken one free.
    pub(super) fn flip(&mut self, block: BlockId) {
        let region = self.region(block);
        let (word, bit) = self.word_in(region, block);
        self.free_ids[word] ^= bit;
        let before = self.free_in[region as usize];
        let after = if self.free_ids[word] & bit == 0 { before - 1 } else { before + 1 };
        self.count(region, before, after);
    }

    /// The region had `before` free ids and has `after`.
    fn count(&mut self, region: u32, before: u32, after: u32) {
        self.free = self.free + after - before;
        self.free_in[region as usize] = after;
        if self.rooms.remove(before, region) {
            self.occupied.remove(0, before);
        }
        if self.rooms.insert(after, region) {
            self.occupied.insert(0, after);
        }
    }
}

impl Policy for RegionIndex {
    fn take(&mut self, owner: Owner) -> Option<BlockId> {
        let current = self.current(owner).filter(|&r| self.room(r) > 0);
        let region = if let Some(region) = current {
            region
        } else {
            // Without an empty region the roomiest; the list of regions without room is no choice.
            let roomiest = self.occupied.previous(0, self.blocks_per_region).filter(|&room| room > 0)?;
            let region = RegionId(self.rooms.first(roomiest)?);
            self.current.insert(owner, region);
            region
        };
        let first = region.0 as usize * self.words;
        let word = (first..first + self.words).find(|&w| self.free_ids[w] != 0)?;
        let bit = self.free_ids[word].trailing_zeros();
        self.free_ids[word] &= self.free_ids[word] - 1;
        let room = self.room(region);
        self.count(region.0, room, room - 1);
        let slot = (word - first) as u32 * 64 + bit;
        Some(BlockId(region.0 * self.blocks_per_region + slot))
    }

    fn take_at(&mut self, block: BlockId) -> Result<()> {
        if block.0 >= self.blocks() || !self.is_free(block) {
            return Err(Error::BrokenInvariant(format!("block {block} is not free to be taken")));
        }
        self.flip(block);
        Ok(())
    }

    fn give(&mut self, block: BlockId) -> Result<()> {
        if block.0 >= self.blocks() {
            return Err(Error::ForeignBlock { block: block.0.into(), blocks: self.blocks() });
        }
        let region = self.region(block);
        let (word, bit) = self.word_in(region, block);
        if self.free_ids[word] & bit != 0 {
            return Err(Error::DoubleFree(block));
        }
        self.free_ids[word] |= bit;
        let room = self.room(RegionId(region));
        self.count(region, room, room + 1);
        Ok(())
    }

    fn forget(&mut self, owner: Owner) {
        self.current.remove(&owner);
    }

    fn index(&self) -> Option<&RegionIndex> {
        Some(self)
    }

    fn index_mut(&mut self) -> Option<&mut RegionIndex> {
        Some(self)
    }

    fn blocks(&self) -> u32 {
        self.free_in.len() as u32 * self.blocks_per_region
    }

    fn free_blocks(&self) -> u32 {
        self.free
    }

    fn is_taken(&self, block: BlockId) -> bool {
        !self.is_free(block)
    }

    fn bookkeeping_bytes(&self) -> usize {
        self.free_ids.len() * size_of::<u64>()
            + self.free_in.len() * size_of::<u32>()
            + self.rooms.bytes()
            + self.occupied.bytes()
            + self.current.capacity() * size_of::<(Owner, RegionId)>()
    }

    fn boxed(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn check(&self) -> Result<()> {
        let mut free = 0;
        for (region, &room) in (0..).map(RegionId).zip(&self.free_in) {
            let counted = self.free_ids(region).count() as u32;
            ensure(counted == room, || format!("region {region} has {counted} free ids, counted {room}"))?;
            for n in 0..=self.blocks_per_region {
                ensure(self.rooms.contains(n, region.0) == (n == room), || {
                    format!("region {region} with {room} free ids is listed wrongly under {n}")
                })?;
            }
            free += room;
        }
        for n in 0..=self.blocks_per_region {
            ensure(self.occupied.contains(0, n) == self.rooms.first(n).is_some(), || {
                format!("whether regions with {n} free ids exist is off")
            })?;
        }
        ensure(free == self.free, || format!("{free} blocks free, counted {}", self.free))
    }
}
