//! `Pool`: an allocation policy by itself.

use fixedbitset::FixedBitSet;
use numpy::IntoPyArray;
use pimkv_core::alloc::{self, Policy};
use pimkv_core::{BlockId, Error, Owner};
use pyo3::prelude::*;

use crate::errors::Result;
use crate::ints::{Ints, draws, int64s};
use crate::{IntArray, bounded, heaps};

/// A pool of blocks under one allocation policy.
#[pyclass(module = "pimkv._pimkv")]
pub(crate) struct Pool {
    policy: Box<dyn Policy>,
    /// The blocks of the `give` that is being checked; none in between.
    giving: FixedBitSet,
}

fn owner(owner: i64) -> Result<Owner> {
    Ok(Owner(bounded("owner", owner, "allowed 0 and up")?))
}

#[pymethods]
impl Pool {
    /// Makes the policy `kind` over `blocks` free blocks.
    #[new]
    #[pyo3(signature = (kind, blocks, *, blocks_per_region = 1, region_impl = "indexed"))]
    fn new(kind: &str, blocks: i64, blocks_per_region: i64, region_impl: &str) -> Result<Self> {
        let blocks = bounded("blocks", blocks, "allowed 1 to 2147483648")?;
        let blocks_per_region = bounded("blocks_per_region", blocks_per_region, "allowed 1 to 4294967295")?;
        let mut pool = alloc::Pool::new(blocks, blocks_per_region);
        pool.heaps = heaps(region_impl)?;
        Ok(Self { policy: alloc::policy(kind, pool)?, giving: FixedBitSet::with_capacity(blocks as usize) })
    }

    /// The names of all policies.
    #[staticmethod]
    fn kinds() -> Vec<&'static str> {
        alloc::kinds().collect()
    }

    /// Hands up to `n` blocks to `owner`, fewer when the pool runs out.
    fn take<'py>(&mut self, py: Python<'py>, owner: i64, n: i64) -> Result<IntArray<'py>> {
        let (owner, n) = (self::owner(owner)?, bounded::<u64>("n", n, "allowed 0 and up")?);
        // Only a policy that draws can fail halfway.
        let before = self.policy.draws().then(|| self.policy.boxed());
        let ids: Vec<i64> = (0..n).map_while(|_| self.policy.take(owner)).map(|b| b.0.into()).collect();
        if let (Some(fault), Some(before)) = (self.policy.fault(), before) {
            self.policy = before;
            return Err(fault.into());
        }
        Ok(ids.into_pyarray(py))
    }

    /// Takes the blocks back in this order; if one cannot be, none is.
    fn give(&mut self, ids: Ints<'_>) -> Result<()> {
        let pool = self.policy.blocks();
        let ids = int64s("ids", &ids)?;
        let mut blocks = Vec::with_capacity(ids.as_array().len());
        let mut refused = Ok(());
        for &id in ids.as_array() {
            let Some(block) = u32::try_from(id).ok().filter(|&b| b < pool).map(BlockId) else {
                refused = Err(Error::ForeignBlock { block: id, blocks: pool });
                break;
            };
            if !self.policy.is_taken(block) || self.giving.put(block.index()) {
                refused = Err(Error::DoubleFree(block));
                break;
            }
            blocks.push(block);
        }
        for block in &blocks {
            self.giving.remove(block.index());
        }
        refused?;
        for block in blocks {
            self.policy.give(block)?;
        }
        Ok(())
    }

    /// Drops what the policy remembers of `owner`.
    fn forget(&mut self, owner: i64) -> Result<()> {
        self.policy.forget(self::owner(owner)?);
        Ok(())
    }

    /// Sets a span of `n` blocks aside for the owner (`contiguous` only); False if none is free.
    fn reserve(&mut self, owner: i64, n: i64) -> Result<bool> {
        Ok(self.policy.reserve(self::owner(owner)?, bounded("n", n, "allowed 1 to 4294967295")?, 0)?)
    }

    /// Appends drawn indices, one per coming take (`random` only).
    fn feed(&mut self, indices: Ints<'_>) -> Result<()> {
        Ok(self.policy.feed(&draws(&indices)?)?)
    }

    /// Blocks that can still be taken.
    #[getter]
    fn free_blocks(&self) -> u32 {
        self.policy.free_blocks()
    }

    /// Memory of the policy's own structures, in bytes.
    #[getter]
    fn bookkeeping_bytes(&self) -> usize {
        self.policy.bookkeeping_bytes()
    }

    /// Verifies the policy's structures; raises `BrokenInvariant`.
    fn check(&self) -> Result<()> {
        Ok(self.policy.check()?)
    }
}
