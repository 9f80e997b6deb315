//! `BlockManager`: block tables over a policy.

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods};
use pimkv_core::alloc::Pool;
use pimkv_core::gather::Levers;
use pimkv_core::manager::{self, Admission, Adopt, Demand, Page, Round};
use pimkv_core::{BlockId, Error};
use pyo3::prelude::*;

use crate::errors::Result;
use crate::ints::{Ints, counts, draws, int64s, seq_ids};
use crate::oplog::OpLog;
use crate::{IntArray, bounded, heaps, seq_id};

/// Owns the blocks of a pool: one block table per sequence, reference counts, one policy.
#[pyclass(module = "pimkv._pimkv")]
pub(crate) struct BlockManager {
    pub(crate) inner: manager::BlockManager,
}

fn prefix_key(key: i64) -> std::result::Result<u32, Error> {
    bounded("prefix", key, "allowed 0 to 4294967295")
}

/// What tokens take: blocks of `block_tokens`, or pages.
fn demand(block_tokens: u32, pages: Option<[(i64, i64); 2]>) -> std::result::Result<Demand, Error> {
    let Some(pages) = pages else {
        return Ok(Demand::Blocks(block_tokens));
    };
    let size = |value| bounded("pages", value, "1 to 4294967295 tokens and blocks each");
    let page = |(tokens, blocks)| Ok::<_, Error>(Page { tokens: size(tokens)?, blocks: size(blocks)? });
    let [k, v] = pages;
    let demand = Demand::Pages([page(k)?, page(v)?]);
    if demand.block_tokens() != block_tokens {
        let of_k = format!("those of a K page, {}", demand.block_tokens());
        return Err(Error::invalid("block_tokens", block_tokens, of_k));
    }
    Ok(demand)
}

/// A two-dimensional array of `rows` rows.
fn reshaped(py: Python<'_>, flat: Vec<i64>, rows: usize, columns: usize) -> Result<Bound<'_, PyArray2<i64>>> {
    let array = flat.into_pyarray(py).reshape([rows, columns]);
    Ok(array.map_err(|e| Error::BrokenInvariant(e.to_string()))?)
}

impl BlockManager {
    fn block_id(&self, block: i64) -> std::result::Result<BlockId, Error> {
        let foreign = Error::ForeignBlock { block, blocks: self.inner.blocks() };
        u32::try_from(block).map(BlockId).map_err(|_| foreign)
    }

    fn block_ids(&self, name: &'static str, blocks: &Ints<'_>) -> std::result::Result<Vec<BlockId>, Error> {
        int64s(name, blocks)?.as_array().iter().map(|&block| self.block_id(block)).collect()
    }
}

#[pymethods]
impl BlockManager {
    /// An empty pool of `blocks` blocks under the policy `kind`. `pages`: (tokens, blocks) of a K page and of
    /// a V page, where those have tables of their own (`neupims`); `block_tokens` is then that of a K page.
    #[new]
    #[pyo3(signature = (kind, blocks, *, block_tokens, blocks_per_region = 1, best_fit = false, region_impl = "indexed", own_first = false, relocate_tail = false, pages = None))]
    #[allow(clippy::fn_params_excessive_bools, clippy::too_many_arguments)]
    fn new(
        kind: &str,
        blocks: i64,
        block_tokens: i64,
        blocks_per_region: i64,
        best_fit: bool,
        region_impl: &str,
        own_first: bool,
        relocate_tail: bool,
        pages: Option<[(i64, i64); 2]>,
    ) -> Result<Self> {
        let blocks = bounded("blocks", blocks, "allowed 1 to 2147483648")?;
        let block_tokens = bounded("block_tokens", block_tokens, "allowed 1 to 4294967295")?;
        let demand = demand(block_tokens, pages)?;
        let blocks_per_region = bounded("blocks_per_region", blocks_per_region, "allowed 1 to 4294967295")?;
        let heaps = heaps(region_impl)?;
        let pool =
            Pool { blocks, blocks_per_region, best_fit, heaps, levers: Levers { own_first, relocate_tail } };
        Ok(Self { inner: manager::BlockManager::with_pool(kind, pool, demand)? })
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

    /// Blocks copied on write so far.
    #[getter]
    fn cow_copies(&self) -> u64 {
        self.inner.cow_copies()
    }

    /// (moves of growth, moves of repair, splits, pairs that repair removed) so far (`pim-gather` only).
    #[getter]
    fn relocations(&self) -> (u64, u64, u64, u64) {
        let r = self.inner.relocations();
        (r.growth, r.repair, r.splits, r.pairs_removed)
    }

    /// Moves at most `budget` blocks so that sequences lie in fewer regions; returns the number of moves
    /// (`pim-gather` only).
    fn repair(&mut self, budget: i64) -> Result<u32> {
        Ok(self.inner.repair(bounded("budget", budget, "allowed 0 to 4294967295")?)?)
    }

    /// Records from here on what the policy is asked; refused once blocks have been handed out.
    fn record(&mut self) -> Result<()> {
        Ok(self.inner.record()?)
    }

    /// What has been recorded so far, None if nothing was to be.
    fn oplog(&self) -> Option<OpLog> {
        self.inner.log().cloned().map(OpLog::of)
    }

    /// Gives a new sequence blocks for `tokens` tokens; False, with nothing changed, if too few are free.
    #[pyo3(signature = (seq, tokens, *, prefix = None, reserve_tokens = 0, scratch_blocks = 0, shared = None))]
    fn admit(
        &mut self,
        seq: i64,
        tokens: i64,
        prefix: Option<i64>,
        reserve_tokens: i64,
        scratch_blocks: i64,
        shared: Option<Ints<'_>>,
    ) -> Result<bool> {
        let ask = Admission {
            tokens: bounded("tokens", tokens, "allowed 1 and up")?,
            prefix: prefix.map(prefix_key).transpose()?,
            reserve_tokens: bounded("reserve_tokens", reserve_tokens, "allowed 0 and up")?,
            scratch_blocks: bounded("scratch_blocks", scratch_blocks, "allowed 0 to 4294967295")?,
        };
        let shared = shared.map(|blocks| self.block_ids("shared", &blocks)).transpose()?.unwrap_or_default();
        Ok(self.inner.admit_sharing(seq_id(seq)?, ask, &shared)?)
    }

    /// Takes a reference more on the blocks at these places of a table, for a prefix cache.
    fn hold(&mut self, seq: i64, places: Ints<'_>) -> Result<()> {
        Ok(self.inner.hold(seq_id(seq)?, &counts("places", &places, "allowed 0 to blocks - 1")?)?)
    }

    /// Drops that reference on blocks that are held, in this order.
    fn let_go(&mut self, blocks: Ints<'_>) -> Result<()> {
        let blocks = self.block_ids("blocks", &blocks)?;
        Ok(self.inner.let_go(&blocks)?)
    }

    /// Takes blocks under a prefix's key, held until the end; False, with nothing changed, if too few are free.
    fn pin_prefix(&mut self, key: i64, blocks: i64) -> Result<bool> {
        Ok(self.inner.pin_prefix(prefix_key(key)?, bounded("blocks", blocks, "allowed 0 to 4294967295")?)?)
    }

    /// Number of blocks pinned under a key.
    fn prefix_blocks(&self, key: i64) -> Result<u32> {
        Ok(self.inner.prefix_blocks(prefix_key(key)?))
    }

    /// Gives `child` the parent's blocks; the first of them to write a block copies it.
    fn fork(&mut self, parent: i64, child: i64) -> Result<()> {
        Ok(self.inner.fork(seq_id(parent)?, seq_id(child)?)?)
    }

    /// Makes the block of token `position` the sequence's own; False if there is no block to copy to.
    fn write(&mut self, seq: i64, position: i64) -> Result<bool> {
        Ok(self.inner.write(seq_id(seq)?, bounded("position", position, "allowed 0 to length - 1")?)?)
    }

    /// Empties regions of at most `most_used` blocks, block by block; returns the number of moves (`pim-aware` only).
    fn compact(&mut self, most_used: i64) -> Result<usize> {
        Ok(self.inner.compact(bounded("most_used", most_used, "allowed 0 to 4294967295")?)?)
    }

    /// Lets blocks go at the front that hold none of the last `window` tokens; returns their number.
    fn trim(&mut self, seqs: Ints<'_>, window: i64) -> Result<usize> {
        Ok(self.inner.trim(&seq_ids(&seqs)?, bounded("window", window, "allowed 1 and up")?)?)
    }

    /// Tokens that somebody else had written when the table was made.
    fn inherited(&self, seq: i64) -> Result<u64> {
        Ok(self.inner.table(seq_id(seq)?)?.inherited())
    }

    /// Tokens that have left at the front.
    fn trimmed(&self, seq: i64) -> Result<u64> {
        Ok(self.inner.table(seq_id(seq)?)?.trimmed())
    }

    /// Number of block copies recorded since the last call of `copies`.
    fn pending_copies(&self) -> usize {
        self.inner.pending_copies()
    }

    /// Block copies (source, target) recorded since the last call.
    fn copies<'py>(&mut self, py: Python<'py>) -> Result<Bound<'py, PyArray2<i64>>> {
        let copies = self.inner.take_copies();
        let flat: Vec<i64> = copies.iter().flat_map(|(src, dst)| [src.0.into(), dst.0.into()]).collect();
        reshaped(py, flat, copies.len(), 2)
    }

    /// Appends drawn indices, one per coming take (`random` only).
    fn feed(&mut self, indices: Ints<'_>) -> Result<()> {
        Ok(self.inner.feed(&draws(&indices)?)?)
    }

    /// One speculation round per sequence; returns (done, advanced, stalls, copied tokens).
    #[pyo3(signature = (seqs, advances, picks, *, width, depth, adopt, separate, start = 0))]
    #[allow(clippy::too_many_arguments)]
    fn speculate<'py>(
        &mut self,
        py: Python<'py>,
        seqs: Ints<'_>,
        advances: Ints<'_>,
        picks: Ints<'_>,
        width: i64,
        depth: i64,
        adopt: &str,
        separate: bool,
        start: i64,
    ) -> Result<(usize, IntArray<'py>, u64, u64)> {
        let round = Round {
            width: bounded("width", width, "allowed 1 to 4294967295")?,
            depth: bounded("depth", depth, "allowed 0 to 4294967295")?,
            adopt: match adopt {
                "splice" => Adopt::Splice,
                "copyback" => Adopt::CopyBack,
                _ => {
                    return Err(
                        Error::invalid("adopt", format!("{adopt:?}"), "allowed splice, copyback").into()
                    );
                }
            },
            separate,
        };
        let start = bounded("start", start, "allowed 0 to len(seqs)")?;
        // What was done before `start` is not looked at: its sequences may be gone.
        let advances = counts("advances", &advances, "allowed 1 to depth + 1")?;
        let picks = counts("picks", &picks, "allowed 0 to width - 1")?;
        let done = self.inner.speculate(&seq_ids(&seqs)?, &advances, &picks, &round, start)?;
        let appended = PyArray1::from_iter(py, done.advanced.iter().map(|n| n.cast_signed()));
        Ok((done.done, appended, done.stalls, done.copied_tokens))
    }

    /// Appends `tokens[i]` tokens to `seqs[i]` from `start` on; returns where it found no block, or len(seqs).
    #[pyo3(signature = (seqs, tokens, start = 0))]
    fn grow(&mut self, seqs: Ints<'_>, tokens: Ints<'_>, start: i64) -> Result<usize> {
        let seqs = seq_ids(&seqs)?;
        let tokens = counts("tokens", &tokens, "allowed 1 and up")?;
        Ok(self.inner.grow(&seqs, &tokens, bounded("start", start, "allowed 0 to len(seqs)")?)?)
    }

    /// Lets go of each sequence's blocks in table order, or in that of its permutation.
    #[pyo3(signature = (seqs, order = None))]
    fn release(&mut self, seqs: Ints<'_>, order: Option<Ints<'_>>) -> Result<()> {
        let order = order.map(|o| counts("order", &o, "allowed 0 to blocks - 1")).transpose()?;
        Ok(self.inner.release_ordered(&seq_ids(&seqs)?, order.as_deref())?)
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
        Ok(self.inner.references(self.block_id(block)?)?)
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
        reshaped(py, rows, seqs.len(), 4)
    }

    /// Verifies conservation of blocks and every count; raises `BrokenInvariant`.
    fn check(&self) -> Result<()> {
        Ok(self.inner.check()?)
    }
}
