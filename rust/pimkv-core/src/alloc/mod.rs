//! Allocation policies: which free block an owner gets. One file per policy.
//!
//! A policy knows block ids and owners, never block tables; reference counts are the manager's.
//! Shared invariants, checked by every `check`: each id is either free or taken, `free_blocks`
//! counts the free ones, and a refused call changes nothing.

mod lifo;
mod region_heaps;

use fixedbitset::FixedBitSet;

use crate::error::{Error, Result, ensure};
use crate::{BlockId, Owner};

pub use lifo::Lifo;
pub use region_heaps::RegionHeaps;

/// What a block manager asks of an allocator.
pub trait Policy: Send + Sync {
    /// Hands a free block to `owner`, or `None` if there is none.
    fn take(&mut self, owner: Owner) -> Option<BlockId>;

    /// Takes a block back; refused if it is free already or not one of the pool's.
    fn give(&mut self, block: BlockId) -> Result<()>;

    /// Drops whatever the policy remembers of `owner` (affinity); its blocks stay taken.
    fn forget(&mut self, _owner: Owner) {}

    /// Number of blocks in the pool.
    fn blocks(&self) -> u32;

    /// Number of blocks that `take` could still hand out.
    fn free_blocks(&self) -> u32;

    /// Whether the block is handed out.
    fn is_taken(&self, block: BlockId) -> bool;

    /// Memory of the policy's own structures, in bytes.
    fn bookkeeping_bytes(&self) -> usize;

    /// Verifies every structure against the others.
    fn check(&self) -> Result<()>;
}

/// The names under which [`policy`] makes one, as users select them.
pub const KINDS: &[&str] = &["paged", "pim-aware"];

/// Makes the policy that users call `kind` over `blocks` blocks in regions of `blocks_per_region`.
pub fn policy(kind: &str, blocks: u32, blocks_per_region: u32) -> Result<Box<dyn Policy>> {
    if blocks == 0 || blocks > MAX_BLOCKS {
        return Err(Error::invalid("blocks", blocks, format!("allowed 1 to {MAX_BLOCKS}")));
    }
    if blocks_per_region == 0 {
        return Err(Error::invalid("blocks_per_region", 0, "allowed 1 and up"));
    }
    match kind {
        "paged" => Ok(Box::new(Lifo::new(blocks))),
        "pim-aware" => Ok(Box::new(RegionHeaps::new(blocks, blocks_per_region)?)),
        _ => Err(Error::invalid("kind", format!("{kind:?}"), format!("allowed {}", KINDS.join(", ")))),
    }
}

/// Largest pool, in blocks.
pub const MAX_BLOCKS: u32 = 1 << 31;

/// Which blocks are handed out: the guard against double frees that every policy shares.
#[derive(Clone, Debug)]
struct Taken(FixedBitSet);

impl Taken {
    fn new(blocks: u32) -> Self {
        Self(FixedBitSet::with_capacity(blocks as usize))
    }

    fn take(&mut self, block: BlockId) {
        self.0.insert(block.index());
    }

    /// Marks the block free again, or says why that cannot be.
    fn give(&mut self, block: BlockId) -> Result<()> {
        if block.index() >= self.0.len() {
            return Err(Error::ForeignBlock { block: block.0.into(), blocks: self.0.len() as u32 });
        }
        if !self.0.contains(block.index()) {
            return Err(Error::DoubleFree(block));
        }
        self.0.remove(block.index());
        Ok(())
    }

    fn contains(&self, block: BlockId) -> bool {
        self.0.contains(block.index())
    }

    fn count(&self) -> u32 {
        self.0.count_ones(..) as u32
    }

    fn bytes(&self) -> usize {
        self.0.len().div_ceil(8)
    }

    /// Checks that `free` lists exactly the blocks that are not taken, each once.
    fn check_free(&self, free: impl Iterator<Item = BlockId>) -> Result<()> {
        let mut seen = self.0.clone();
        for block in free {
            ensure(block.index() < seen.len(), || format!("free block {block} is outside the pool"))?;
            ensure(!seen.put(block.index()), || format!("block {block} is free and taken, or free twice"))?;
        }
        ensure(seen.is_full(), || "a block is neither free nor taken".into())
    }
}
