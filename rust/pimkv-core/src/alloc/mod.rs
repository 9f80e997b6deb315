//! Allocation policies: which free block an owner gets. One file per policy.
//!
//! A policy knows block ids and owners, never block tables; reference counts are the manager's.
//! Shared invariants, checked by every `check`: each id is either free or taken, `free_blocks`
//! counts the free ones, and a refused call changes nothing.

mod min_sets;
mod region_heaps;
mod region_index;

use fixedbitset::FixedBitSet;

use crate::error::{Error, Result, ensure};
use crate::gather::Levers;
use crate::{BlockId, Owner};

pub use paged::Paged;
pub use region_heaps::RegionHeaps;
pub use region_index::RegionIndex;

/// What a block manager asks of an allocator.
pub trait Policy: Send + Sync {
    /// Hands a free block to `owner`, or `None` if there is none.
    fn take(&mut self, owner: Owner) -> Option<BlockId>;

    /// Hands out that very block, for a planner that has chosen it; refused if it is not free.
    fn take_at(&mut self, _block: BlockId) -> Result<()> {
        Err(Error::invalid("kind", "this policy", "only pim-gather takes blocks of its choice"))
    }

    /// The index of regions that a planner reads, of a policy that has one.
    fn index(&self) -> Option<&RegionIndex> {
        None
    }

    /// The same, to steer it.
    fn index_mut(&mut self) -> Option<&mut RegionIndex> {
        None
    }

    /// Takes a block back; refused if it is free already or not one of the pool's.
    fn give(&mut self, block: BlockId) -> Result<()>;

    /// Drops whatever the policy remembers of `owner` (affinity); its blocks stay taken.
    fn forget(&mut self, _owner: Owner) {}

    /// Hears that `owner` is about to take so many blocks at once.
    fn plan(&mut self, _owner: Owner, _blocks: u64) {}

    /// Empties regions of at most `most_used` taken blocks into others, block by block, and returns
    /// the moves (source, target), already made here; no block is both.
    fn compact(&mut self, _most_used: u32) -> Result<Vec<(BlockId, BlockId)>> {
        Err(Error::invalid("kind", "this policy", "only pim-aware compacts regions"))
    }

    /// Whether owners must reserve before they take.
    fn reserves(&self) -> bool {
        false
    }

    /// Sets blocks aside for the owner, as a span or as a promise: `usable` blocks for its coming takes, and
    /// `held_back` ones that stay out of use; `false` if they are not free.
    fn reserve(&mut self, _owner: Owner, _usable: u32, _held_back: u32) -> Result<bool> {
        Err(Error::invalid("kind", "this policy", "it reserves nothing"))
    }

    /// Whether takes consume indices that are drawn outside and fed in.
    fn draws(&self) -> bool {
        false
    }

    /// Appends indices, one per coming take.
    fn feed(&mut self, _indices: &[u32]) -> Result<()> {
        Err(Error::invalid("kind", "this policy", "only random takes indices"))
    }

    /// Why a take failed although blocks were free (of a policy that draws); clears it.
    fn fault(&mut self) -> Option<Error> {
        None
    }

    /// Number of blocks in the pool.
    fn blocks(&self) -> u32;

    /// Number of blocks that `take` could still hand out.
    fn free_blocks(&self) -> u32;

    /// Whether the block is handed out.
    fn is_taken(&self, block: BlockId) -> bool;

    /// Memory of the policy's own structures, in bytes.
    fn bookkeeping_bytes(&self) -> usize;

    /// A copy of the policy in its present state.
    fn boxed(&self) -> Box<dyn Policy>;

    /// Verifies every structure against the others.
    fn check(&self) -> Result<()>;
}

/// What a policy is made for.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    /// Blocks, all free.
    pub blocks: u32,
    /// Blocks that share one row index; `neupims`: those of a channel.
    pub blocks_per_region: u32,
    /// `pim-aware`: with no wholly free region, a request starts in the tightest one that holds it.
    pub best_fit: bool,
    /// `pim-aware`: the published structures in place of the index; the ids are the same.
    pub heaps: bool,
    /// `pim-gather`: what growth may do.
    pub levers: Levers,
}

impl Pool {
    /// A pool without options.
    #[must_use]
    pub fn new(blocks: u32, blocks_per_region: u32) -> Self {
        Self { blocks, blocks_per_region, best_fit: false, heaps: false, levers: Levers::default() }
    }
}

type Make = fn(Pool) -> Result<Box<dyn Policy>>;

/// The registration of the policies: a file each, with a function `make`, and the name that users select it by.
macro_rules! policies {
    ($($file:ident: $name:literal,)*) => {
        $(
            #[allow(clippy::unnecessary_wraps, reason = "some pools cannot be made, so every `make` may refuse")]
            mod $file;
        )*

        const POLICIES: &[(&str, Make)] = &[$(($name, $file::make)),*];
    };
}

policies! {
    paged: "paged",
    paged_fifo: "paged-fifo",
    lowest_id: "lowest-id",
    sglang_sorted: "sglang-sorted",
    contiguous: "contiguous",
    random: "random",
    pim_aware: "pim-aware",
    pim_gather: "pim-gather",
    neupims: "neupims",
    patton: "patton",
}

/// The names of all policies.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    POLICIES.iter().map(|&(name, _)| name)
}

/// Makes the policy that users call `kind`.
pub fn policy(kind: &str, pool: Pool) -> Result<Box<dyn Policy>> {
    let Pool { blocks, blocks_per_region, .. } = pool;
    if blocks == 0 || blocks > MAX_BLOCKS {
        return Err(Error::invalid("blocks", blocks, format!("allowed 1 to {MAX_BLOCKS}")));
    }
    if blocks_per_region == 0 {
        return Err(Error::invalid("blocks_per_region", 0, "allowed 1 and up"));
    }
    let Some((_, make)) = POLICIES.iter().find(|(name, _)| *name == kind) else {
        let names: Vec<_> = kinds().collect();
        return Err(Error::invalid("kind", format!("{kind:?}"), format!("allowed {}", names.join(", "))));
    };
    make(pool)
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

    fn len(&self) -> u32 {
        self.0.len() as u32
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
