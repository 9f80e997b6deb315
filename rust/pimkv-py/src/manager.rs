//! `BlockManager`: block tables over a policy.

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods};
use pimkv_core::manager;
use pimkv_core::{BlockId, Error};
use pyo3::prelude::*;

use crate::errors::Result;
use crate::{IntArray, Ints, bounded, seq_id, seq_ids};

/// Owns the blocks of a pool: one block table per sequence, reference counts, one policy.
#[pyclass(module = "pimkv._pimkv")]
pub(crate) struct BlockManager {
    pub(crate) inner: manager::BlockManager,
}

#[pymethods]
impl BlockManager {
    /// An empty pool of `blocks` blocks under the policy `kind`.
    #[new]
    #[pyo3(signature = (kind, blocks, *, block_tokens, blocks_per_region = 1))]
    fn new(kind: &str, blocks: i64, block_tokens: i64, blocks_per_region: i64) -> Result<Self> {
        let blocks = bounded("blocks", blocks, "allowed 1 to 2147483648")?;
        let block_tokens = bounded("block_tokens", block_tokens, "allowed 1 to 4294967295")?;
        let blocks_per_region = bounded("blocks_per_region", blocks_per_region, "allowed 1 to 4294967295")?;
        Ok(Self { inner: manager::BlockManager::new(kind, blocks, block_tokens, blocks_per_region)? })
    }

    /// Blocks that can still be handed out.
    #[getter]
    fn free_blocks(&self) -> u32 {
        self.inner.free_blocks()
    }

    /// Blocks in use, a shared one once.
    #[getter]
    fn live_blocks(&self) -> u32 {
        self.inner.live_blocks()
    }

    /// Blocks handed out since the start.
    #[getter]
    fn blocks_allocated(&self) -> u64 {
        self.inner.blocks_allocated()
    }

    /// Gives a new sequence blocks for `tokens` tokens; False, with nothing changed, if too few are free.
    fn admit(&mut self, seq: i64, tokens: i64) -> Result<bool> {
        let tokens = bounded("tokens", tokens, "allowed 1 and up")?;
        Ok(self.inner.admit(seq_id(seq)?, tokens)?)
    }

    /// Appends `tokens[i]` tokens to `seqs[i]` from `start` on; returns where it found no block, or len(seqs).
    #[pyo3(signature = (seqs, tokens, start = 0))]
    fn grow(&mut self, seqs: Ints<'_>, tokens: Ints<'_>, start: i64) -> Result<usize> {
        let seqs = seq_ids(&seqs)?;
        let tokens = tokens.as_array();
        let tokens = tokens.iter().map(|&n| bounded("tokens", n, "allowed 1 and up"));
        let tokens = tokens.collect::<std::result::Result<Vec<u64>, _>>()?;
        Ok(self.inner.grow(&seqs, &tokens, bounded("start", start, "allowed 0 to len(seqs)")?)?)
    }

    /// Lets go of each sequence's blocks in table order.
    fn release(&mut self, seqs: Ints<'_>) -> Result<()> {
        Ok(self.inner.release(&seq_ids(&seqs)?)?)
    }

    /// Tokens of a sequence.
    fn length(&self, seq: i64) -> Result<u64> {
        Ok(self.inner.table(seq_id(seq)?)?.tokens())
    }

    /// Block ids of a sequence in logical order.
    fn table<'py>(&self, py: Python<'py>, seq: i64) -> Result<IntArray<'py>> {
        let blocks = self.inner.table(seq_id(seq)?)?.blocks();
        Ok(PyArray1::from_iter(py, blocks.iter().map(|b| i64::from(b.0))))
    }

    /// How many tables and pins hold a block.
    fn refcount(&self, block: i64) -> Result<u32> {
        let foreign = Error::ForeignBlock { block, blocks: self.inner.blocks() };
        Ok(self.inner.references(BlockId(u32::try_from(block).map_err(|_| foreign)?))?)
    }

    /// The sequences that have a table, ascending.
    fn sequences<'py>(&self, py: Python<'py>) -> IntArray<'py> {
        PyArray1::from_iter(py, self.inner.sequences().into_iter().map(|s| i64::from(s.0)))
    }

    /// Per sequence: blocks, adjacent pairs, pairs in one region, distinct regions.
    fn placement<'py>(&self, py: Python<'py>, seqs: Ints<'_>) -> Result<Bound<'py, PyArray2<i64>>> {
        let seqs = seq_ids(&seqs)?;
        let mut rows = Vec::with_capacity(seqs.len() * 4);
        for &seq in &seqs {
            let p = self.inner.placement(seq)?;
            rows.extend([p.blocks, p.adjacent, p.same_region, p.regions].map(u64::cast_signed));
        }
        let flat = rows.into_pyarray(py);
        Ok(flat.reshape([seqs.len(), 4]).map_err(|e| Error::BrokenInvariant(e.to_string()))?)
    }

    /// Verifies conservation of blocks and every count; raises `BrokenInvariant`.
    fn check(&self) -> Result<()> {
        Ok(self.inner.check()?)
    }
}
