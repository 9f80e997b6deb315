//! Block tables and reference counts: the manager owns blocks and asks a policy for ids.
//!
//! Every block in use has a count of the tables (and prefix pins) that hold it; it goes back to the
//! policy when the last one lets go. Running out of blocks is an answer, not an error.

use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::alloc::{self, Policy};
use crate::error::{Error, Result, ensure};
use crate::{BlockId, Owner, RegionId, SeqId};

/// The blocks of one sequence in logical order.
#[derive(Clone, Debug, Default)]
pub struct Table {
    blocks: Vec<BlockId>,
    tokens: u64,
    edits: Edits,
}

/// Which leading blocks of a table stand as a scorer last saw them; appending is no edit.
///
/// The first edit after an observation opens a new stamp, later ones join it: whoever saw the stamp
/// before knows the first changed block, whoever saw an older one must start over.
#[derive(Clone, Copy, Debug, Default)]
struct Edits {
    stamp: u64,
    before: u64,
    first: usize,
    observed: bool,
}

/// A stamp that no table of any manager has had: a scorer that goes from one manager to another must not
/// take the one's sequence 7 for the other's. Stamps are only ever compared for equality.
fn fresh_stamp() -> u64 {
    static STAMPS: AtomicU64 = AtomicU64::new(1);
    STAMPS.fetch_add(1, Ordering::Relaxed)
}

impl Table {
    /// The blocks, in logical order.
    #[must_use]
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Tokens written.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens
    }
}

/// Where a sequence's blocks lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Blocks of the table.
    pub blocks: u64,
    /// Consecutive logical blocks whose ids differ by +1.
    pub adjacent: u64,
    /// Consecutive logical blocks in the same region.
    pub same_region: u64,
    /// Distinct regions.
    pub regions: u64,
}

/// Owns the pool: tables, reference counts, and the policy that picks ids.
pub struct BlockManager {
    policy: Box<dyn Policy>,
    block_tokens: u32,
    blocks_per_region: u32,
    /// References per block; 0 is free.
    references: Vec<u32>,
    tables: FxHashMap<SeqId, Table>,
    live: u32,
    allocated: u64,
}

impl BlockManager {
    /// An empty pool under the policy that users call `kind`.
    pub fn new(kind: &str, blocks: u32, block_tokens: u32, blocks_per_region: u32) -> Result<Self> {
        if block_tokens == 0 {
            return Err(Error::invalid("block_tokens", block_tokens, "allowed 1 and up"));
        }
        Ok(Self {
            policy: alloc::policy(kind, blocks, blocks_per_region)?,
            block_tokens,
            blocks_per_region,
            references: vec![0; blocks as usize],
            tables: FxHashMap::default(),
            live: 0,
            allocated: 0,
        })
    }

    /// Blocks in the pool.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.policy.blocks()
    }

    /// Tokens per block.
    #[must_use]
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Blocks that can still be handed out.
    #[must_use]
    pub fn free_blocks(&self) -> u32 {
        self.policy.free_blocks()
    }

    /// Blocks in use, a shared one once.
    #[must_use]
    pub fn live_blocks(&self) -> u32 {
        self.live
    }

    /// Blocks handed out since the start.
    #[must_use]
    pub fn blocks_allocated(&self) -> u64 {
        self.allocated
    }

    /// The sequences that have a table, ascending.
    #[must_use]
    pub fn sequences(&self) -> Vec<SeqId> {
        let mut seqs: Vec<_> = self.tables.keys().copied().collect();
        seqs.sort_unstable();
        seqs
    }

    /// A sequence's table.
    pub fn table(&self, seq: SeqId) -> Result<&Table> {
        self.tables.get(&seq).ok_or(Error::UnknownSequence(seq))
    }

    /// How many tables and pins hold the block.
    pub fn references(&self, block: BlockId) -> Result<u32> {
        let foreign = Error::ForeignBlock { block: block.0.into(), blocks: self.blocks() };
        self.references.get(block.index()).copied().ok_or(foreign)
    }

    /// Blocks that `tokens` tokens fill.
    fn blocks_for(&self, tokens: u64) -> u64 {
        tokens.div_ceil(u64::from(self.block_tokens))
    }

    fn take(&mut self, owner: Owner) -> Option<BlockId> {
        let block = self.policy.take(owner)?;
        self.references[block.index()] = 1;
        self.live += 1;
        self.allocated += 1;
        Some(block)
    }

    /// Drops one reference; the last one gives the block back.
    fn drop_reference(&mut self, block: BlockId) -> Result<()> {
        let count = &mut self.references[block.index()];
        *count -= 1;
        if *count == 0 {
            self.policy.give(block)?;
            self.live -= 1;
        }
        Ok(())
    }

    /// Gives a new sequence the blocks for its first `tokens` tokens; `false`, with nothing changed,
    /// if they are not free.
    pub fn admit(&mut self, seq: SeqId, tokens: u64) -> Result<bool> {
        if self.tables.contains_key(&seq) {
            return Err(Error::DuplicateSequence(seq));
        }
        if tokens == 0 {
            return Err(Error::invalid("tokens", tokens, "allowed 1 and up"));
        }
        let need = self.blocks_for(tokens);
        if need > u64::from(self.free_blocks()) {
            return Ok(false);
        }
        let mut table = Table { tokens, ..Table::default() };
        table.blocks.reserve(need as usize + 1);
        self.fill(&mut table, seq.into(), need);
        table.edits.stamp = fresh_stamp();
        self.tables.insert(seq, table);
        Ok(true)
    }

    /// Takes blocks until the table has `need`; `false` if the pool runs out first.
    fn fill(&mut self, table: &mut Table, owner: Owner, need: u64) -> bool {
        while (table.blocks.len() as u64) < need {
            match self.take(owner) {
                Some(block) => table.blocks.push(block),
                None => return false,
            }
        }
        true
    }

    /// Appends `tokens[i]` tokens to `seqs[i]`, from `start` on and in order. Stops at the first
    /// sequence that finds no block and returns its index; blocks that it did get stay with it, and
    /// a call that starts there resumes. Returns `seqs.len()` when all have grown.
    pub fn grow(&mut self, seqs: &[SeqId], tokens: &[u64], start: usize) -> Result<usize> {
        if seqs.len() != tokens.len() {
            return Err(Error::invalid("tokens", tokens.len(), format!("one per sequence, {}", seqs.len())));
        }
        if start > seqs.len() {
            return Err(Error::invalid("start", start, format!("allowed 0 to {}", seqs.len())));
        }
        for (&seq, &n) in seqs.iter().zip(tokens).skip(start) {
            self.table(seq)?;
            if n == 0 || n > MAX_TOKENS {
                return Err(Error::invalid("tokens", n, format!("allowed 1 to {MAX_TOKENS}")));
            }
        }
        for i in start..seqs.len() {
            if !self.append(seqs[i], tokens[i])? {
                return Ok(i);
            }
        }
        Ok(seqs.len())
    }

    fn append(&mut self, seq: SeqId, tokens: u64) -> Result<bool> {
        let block_tokens = u64::from(self.block_tokens);
        let table = self.tables.get_mut(&seq).ok_or(Error::UnknownSequence(seq))?;
        let length = table.tokens + tokens;
        if length <= table.blocks.len() as u64 * block_tokens {
            table.tokens = length;
            return Ok(true);
        }
        let mut table = std::mem::take(table);
        let filled = self.fill(&mut table, seq.into(), self.blocks_for(length));
        if filled {
            table.tokens = length;
        }
        self.tables.insert(seq, table);
        Ok(filled)
    }

    /// Lets go of each sequence in turn: its blocks lose a reference in table order, then the
    /// policy forgets it.
    pub fn release(&mut self, seqs: &[SeqId]) -> Result<()> {
        let mut distinct = FxHashSet::default();
        for &seq in seqs {
            self.table(seq)?;
            if !distinct.insert(seq) {
                return Err(Error::UnknownSequence(seq));
            }
        }
        for &seq in seqs {
            let table = self.tables.remove(&seq).ok_or(Error::UnknownSequence(seq))?;
            for block in table.blocks {
                self.drop_reference(block)?;
            }
            self.policy.forget(seq.into());
        }
        Ok(())
    }

    /// Where the sequence's blocks lie.
    pub fn placement(&self, seq: SeqId) -> Result<Placement> {
        let blocks = self.table(seq)?.blocks();
        let region = |block: &BlockId| RegionId(block.0 / self.blocks_per_region);
        let pairs = || blocks.windows(2);
        let mut regions: Vec<_> = blocks.iter().map(region).collect();
        regions.sort_unstable();
        regions.dedup();
        Ok(Placement {
            blocks: blocks.len() as u64,
            adjacent: pairs().filter(|p| u64::from(p[1].0) == u64::from(p[0].0) + 1).count() as u64,
            same_region: pairs().filter(|p| region(&p[0]) == region(&p[1])).count() as u64,
            regions: regions.len() as u64,
        })
    }

    /// Leading blocks that are as they were when the table's stamp was `seen`, and its stamp now,
    /// which a scorer is taken to have seen from here on.
    pub(crate) fn intact_since(&mut self, seq: SeqId, seen: u64) -> Result<(usize, u64)> {
        let edits = &mut self.tables.get_mut(&seq).ok_or(Error::UnknownSequence(seq))?.edits;
        edits.observed = true;
        let intact = match seen {
            0 => 0,
            _ if seen == edits.stamp => usize::MAX,
            _ if seen == edits.before => edits.first,
            _ => 0,
        };
        Ok((intact, edits.stamp))
    }

    /// Verifies conservation: each block is free or held as often as its count says.
    pub fn check(&self) -> Result<()> {
        self.policy.check()?;
        let mut held = vec![0_u32; self.references.len()];
        for block in self.tables.values().flat_map(|t| &t.blocks) {
            held[block.index()] += 1;
        }
        for (index, (&held, &counted)) in held.iter().zip(&self.references).enumerate() {
            let block = BlockId(index as u32);
            ensure(held == counted, || format!("block {block} is held {held} times, counted {counted}"))?;
            ensure((counted > 0) == self.policy.is_taken(block), || {
                format!("block {block} has {counted} references but the policy disagrees")
            })?;
        }
        let live = self.references.iter().filter(|&&count| count > 0).count();
        ensure(live == self.live as usize, || format!("{live} blocks live, counted {}", self.live))?;
        for (seq, table) in &self.tables {
            ensure(self.blocks_for(table.tokens) <= table.blocks.len() as u64, || {
                format!("sequence {seq} has more tokens than its blocks hold")
            })?;
        }
        Ok(())
    }
}

/// Most tokens one call may append to a sequence.
const MAX_TOKENS: u64 = 1 << 40;
