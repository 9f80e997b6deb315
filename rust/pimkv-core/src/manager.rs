//! Block tables and reference counts: the manager owns blocks and asks a policy for ids.
//!
//! Every block in use has a count of what holds it: tables, prefix pins, a prefix cache, and the branches of
//! an open speculation round. It goes back to the policy when the last one lets go. Running out of blocks is
//! an answer, not an error; a refused call leaves everything as it was.

mod demand;
mod picker;
mod relocation;
mod sharing;
mod speculation;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::{FxHashMap, FxHashSet};

pub use self::demand::{Demand, Page};
use self::picker::Picker;
pub use self::relocation::Relocations;
use self::speculation::Turn;
pub use self::speculation::{Adopt, Round, Speculated};
use crate::alloc;
use crate::error::{Error, Result, ensure};
use crate::gather::{Gather, Purpose};
use crate::oplog::{Header, OpLog, Operation};
use crate::{BlockId, Owner, RegionId, SeqId};

/// The blocks of one sequence in logical order.
#[derive(Clone, Debug, Default)]
pub struct Table {
    blocks: Vec<BlockId>,
    tokens: u64,
    edits: Edits,
    /// A speculation turn that waits for blocks.
    turn: Option<Box<Turn>>,
    /// Blocks at the end of a contiguous span that never join the table.
    scratch: u32,
    /// Tokens that somebody else had written when the table was made.
    inherited: u64,
    /// Tokens that have left at the front.
    trimmed: u64,
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

    /// Tokens held.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Tokens that somebody else had written when the table was made: a prefix's, or a parent's.
    #[must_use]
    pub fn inherited(&self) -> u64 {
        self.inherited
    }

    /// Tokens that have left at the front.
    #[must_use]
    pub fn trimmed(&self) -> u64 {
        self.trimmed
    }
}

impl Edits {
    /// Notes that the table's blocks from `index` on are no longer what they were.
    fn note(&mut self, index: usize) {
        if self.observed {
            *self = Self { stamp: fresh_stamp(), before: self.stamp, first: index, observed: false };
        } else {
            self.first = self.first.min(index);
        }
    }
}

/// What a new sequence asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Admission {
    /// Tokens to hold at once.
    pub tokens: u64,
    /// A pinned prefix whose blocks come first.
    pub prefix: Option<u32>,
    /// Tokens of the span to reserve (policies that reserve).
    pub reserve_tokens: u64,
    /// Blocks at the span's end for speculation (policies that reserve).
    pub scratch_blocks: u32,
}

impl From<u64> for Admission {
    /// So many tokens, nothing shared and nothing reserved.
    fn from(tokens: u64) -> Self {
        Self { tokens, ..Self::default() }
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

/// A pinned prefix: the blocks that it holds itself.
#[derive(Clone, Debug)]
struct Prefix {
    blocks: Vec<BlockId>,
    /// Whether a sequence has been admitted with it, and so has written it.
    written: bool,
}

/// Owns the pool: tables, reference counts, and the policy that picks ids.
#[derive(Clone)]
pub struct BlockManager {
    policy: Picker,
    /// What the policy is called and whether it plans, for the header of a log.
    kind: Box<str>,
    best_fit: bool,
    /// Blocks that tokens take.
    demand: Demand,
    /// Tokens of a block, or of a K page.
    block_tokens: u32,
    blocks_per_region: u32,
    /// References per block; 0 is free.
    references: Vec<u32>,
    tables: FxHashMap<SeqId, Table>,
    prefixes: BTreeMap<u32, Prefix>,
    /// Blocks that a prefix cache holds; only ever asked for one of them.
    held: FxHashSet<BlockId>,
    live: u32,
    allocated: u64,
    cow_copies: u64,
    /// Block copies (source, target) that an engine has yet to perform.
    copies: Vec<(BlockId, BlockId)>,
    /// The planner of relocations, of a policy that has one.
    gather: Option<Box<Gather>>,
    relocations: Relocations,
}

impl BlockManager {
    /// An empty pool under the policy that users call `kind`.
    pub fn new(kind: &str, blocks: u32, block_tokens: u32, blocks_per_region: u32) -> Result<Self> {
        Self::with_pool(kind, alloc::Pool::new(blocks, blocks_per_region), block_tokens)
    }

    /// The same, with every option of the pool and any demand.
    pub fn with_pool(kind: &str, pool: alloc::Pool, demand: impl Into<Demand>) -> Result<Self> {
        let demand = demand.into().validate()?;
        let policy = alloc::policy(kind, pool)?;
        if matches!(demand, Demand::Pages(_)) && !policy.reserves() {
            let what = "pages of K and V apart need a policy that reserves and shares nothing";
            return Err(Error::invalid("kind", format!("{kind:?}"), what));
        }
        let gathers = policy.index().is_some();
        Ok(Self {
            gather: gathers.then(|| Box::new(Gather::new(pool.levers, pool.blocks, pool.blocks_per_region))),
            policy: Picker::new(policy),
            relocations: Relocations::default(),
            kind: kind.into(),
            best_fit: pool.best_fit,
            demand,
            block_tokens: demand.block_tokens(),
            blocks_per_region: pool.blocks_per_region,
            references: vec![0; pool.blocks as usize],
            tables: FxHashMap::default(),
            prefixes: BTreeMap::new(),
            held: FxHashSet::default(),
            live: 0,
            allocated: 0,
            cow_copies: 0,
            copies: Vec::new(),
        })
    }

    /// Blocks in the pool.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.policy.blocks()
    }

    /// Tokens per block, or per K page.
    #[must_use]
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Blocks that tokens take.
    #[must_use]
    pub fn demand(&self) -> Demand {
        self.demand
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

    fn table_mut(&mut self, seq: SeqId) -> Result<&mut Table> {
        self.tables.get_mut(&seq).ok_or(Error::UnknownSequence(seq))
    }

    /// How many tables and pins hold the block.
    pub fn references(&self, block: BlockId) -> Result<u32> {
        let foreign = Error::ForeignBlock { block: block.0.into(), blocks: self.blocks() };
        self.references.get(block.index()).copied().ok_or(foreign)
    }

    /// Blocks that `tokens` tokens fill.
    fn blocks_for(&self, tokens: u64) -> u64 {
        self.demand.blocks_for(tokens)
    }

    fn take(&mut self, owner: Owner) -> Option<BlockId> {
        let block = self.policy.take(owner)?;
        self.hand_out(block);
        Some(block)
    }

    /// Counts a block that the policy has handed out.
    fn hand_out(&mut self, block: BlockId) {
        self.references[block.index()] = 1;
        self.live += 1;
        self.allocated += 1;
    }

    /// Drops the reference of a sequence's table.
    fn drop_from(&mut self, seq: SeqId, block: BlockId) -> Result<()> {
        self.drop_reference(block)?;
        if let Some(gather) = &mut self.gather {
            gather.groups.leave(seq, block, self.references[block.index()]);
        }
        Ok(())
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

    /// Runs a call that may fail halfway because indices were not fed, and undoes it then.
    fn atomically<T>(&mut self, call: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if !self.policy.draws() {
            return call(self);
        }
        let (before, recorded) = (self.clone(), self.policy.recorded());
        let answer = call(self);
        match self.policy.fault() {
            None => answer,
            Some(fault) => {
                let log = self.policy.take_log_at(recorded);
                *self = before;
                self.policy.set_log(log);
                Err(fault)
            }
        }
    }

    /// Records what the policy is asked from here on; refused once blocks have been handed out.
    pub fn record(&mut self) -> Result<()> {
        if self.allocated > 0 {
            let what = "a log starts with a fresh pool";
            return Err(Error::invalid("blocks_allocated", self.allocated, what));
        }
        self.policy.set_log(Some(Box::new(OpLog::new(Header {
            blocks: self.blocks(),
            blocks_per_region: self.blocks_per_region,
            block_tokens: self.block_tokens,
            kind: self.kind.to_string(),
            best_fit: self.best_fit,
        }))));
        Ok(())
    }

    /// What has been recorded, if anything was to be.
    #[must_use]
    pub fn log(&self) -> Option<&OpLog> {
        self.policy.log()
    }

    /// Appends drawn indices, one per coming take (policies that draw).
    pub fn feed(&mut self, indices: &[u32]) -> Result<()> {
        self.policy.feed(indices)
    }

    /// Takes blocks under a prefix's key, held by the prefix until the end; `false`, with nothing
    /// changed, if they are not free.
    pub fn pin_prefix(&mut self, key: u32, blocks: u32) -> Result<bool> {
        self.refuse_if_reserving("pin_prefix")?;
        if self.prefixes.contains_key(&key) {
            return Err(Error::invalid("key", key, "pinned once; it is"));
        }
        if blocks > self.free_blocks() {
            return Ok(false);
        }
        self.atomically(|m| {
            m.policy.mark(Operation::Pin, Owner::prefix(key), None, blocks.into());
            let blocks = (0..blocks).map_while(|_| m.take(Owner::prefix(key))).collect();
            m.prefixes.insert(key, Prefix { blocks, written: false });
            Ok(true)
        })
    }

    /// Number of blocks pinned under a key.
    #[must_use]
    pub fn prefix_blocks(&self, key: u32) -> u32 {
        self.prefixes.get(&key).map_or(0, |prefix| prefix.blocks.len() as u32)
    }

    fn refuse_if_reserving(&self, what: &'static str) -> Result<()> {
        if self.policy.reserves() {
            let kind = format!("{:?}", self.kind);
            return Err(Error::invalid(
                "kind",
                kind,
                format!("{what} shares blocks; what is reserved cannot be"),
            ));
        }
        Ok(())
    }

    /// Gives a new sequence the blocks for its first tokens; `false`, with nothing changed, if they
    /// are not free.
    pub fn admit(&mut self, seq: SeqId, ask: impl Into<Admission>) -> Result<bool> {
        self.admit_sharing(seq, ask.into(), &[])
    }

    /// The same for a sequence whose first blocks are these full ones, which something else holds too.
    pub fn admit_sharing(&mut self, seq: SeqId, ask: Admission, shared: &[BlockId]) -> Result<bool> {
        if self.tables.contains_key(&seq) {
            return Err(Error::DuplicateSequence(seq));
        }
        if ask.tokens == 0 {
            return Err(Error::invalid("tokens", ask.tokens, "allowed 1 and up"));
        }
        let need = self.blocks_for(ask.tokens);
        let mut table = Table { tokens: ask.tokens, ..Table::default() };
        if !shared.is_empty() {
            self.check_shared(ask, shared)?;
            table.blocks.extend_from_slice(shared);
            table.inherited = ask.tokens.min(shared.len() as u64 * u64::from(self.block_tokens));
        }
        if let Some(key) = ask.prefix {
            self.refuse_if_reserving("prefix")?;
            let unknown = || Error::invalid("prefix", key, "a key that is pinned");
            let shared = self.prefixes.get(&key).ok_or_else(unknown)?;
            let blocks = shared.blocks.len() as u64;
            if need < blocks {
                let least = format!("at least the {blocks} blocks of the prefix");
                return Err(Error::invalid("tokens", ask.tokens, least));
            }
            table.blocks.clone_from(&shared.blocks);
            if shared.written {
                table.inherited = ask.tokens.min(blocks * u64::from(self.block_tokens));
            }
        }
        let fits = need - table.blocks.len() as u64 <= u64::from(self.free_blocks());
        if fits || self.policy.reserves() {
            self.policy.mark(Operation::Admit, seq.into(), None, ask.tokens);
        }
        if self.policy.reserves() {
            if !self.reserve(seq, ask, need)? {
                return Ok(false);
            }
            table.scratch = ask.scratch_blocks;
            self.live += table.scratch;
            self.allocated += u64::from(table.scratch);
        } else if !fits {
            return Ok(false);
        }
        self.atomically(|m| {
            for &block in &table.blocks {
                m.references[block.index()] += 1;
                if let Some(gather) = &mut m.gather {
                    gather.groups.share(seq, block);
                }
            }
            if let Some(prefix) = ask.prefix.and_then(|key| m.prefixes.get_mut(&key)) {
                prefix.written = true;
            }
            m.policy.plan(seq.into(), need - table.blocks.len() as u64);
            table.edits.stamp = fresh_stamp();
            m.tables.insert(seq, table);
            m.fill(seq, need)
        })
    }

    fn reserve(&mut self, seq: SeqId, ask: Admission, need: u64) -> Result<bool> {
        let span = self.blocks_for(ask.reserve_tokens);
        if span < need {
            let least = format!("at least tokens = {}", ask.tokens);
            return Err(Error::invalid("reserve_tokens", ask.reserve_tokens, least));
        }
        match u32::try_from(span) {
            Ok(span) => self.policy.reserve(seq.into(), span, ask.scratch_blocks),
            Err(_) => Ok(false),
        }
    }

    /// Takes blocks until the table has `need`; `false` if the pool runs out first. The
    /// policy's planner may relocate blocks for them.
    fn fill(&mut self, seq: SeqId, need: u64) -> Result<bool> {
        for _ in self.table(seq)?.blocks.len() as u64..need {
            let Some(block) = self.claim(seq, Purpose::Table)? else {
                return Ok(false);
            };
            self.append_block(seq, block)?;
        }
        Ok(true)
    }

    /// A block that was taken for the sequence joins its table.
    fn append_block(&mut self, seq: SeqId, block: BlockId) -> Result<()> {
        self.table_mut(seq)?.blocks.push(block);
        if let Some(gather) = &mut self.gather {
            gather.groups.join(seq, block);
        }
        Ok(())
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
        self.atomically(|m| {
            for i in start..seqs.len() {
                if !m.append(seqs[i], tokens[i])? {
                    return Ok(i);
                }
            }
            Ok(seqs.len())
        })
    }

    /// Appends tokens to one sequence; `false` if it needs a block that it does not find.
    fn append(&mut self, seq: SeqId, tokens: u64) -> Result<bool> {
        let block_tokens = u64::from(self.block_tokens);
        let table = self.tables.get_mut(&seq).ok_or(Error::UnknownSequence(seq))?;
        let length = table.tokens + tokens;
        let first = (table.tokens / block_tokens) as usize;
        let shared = table.blocks.get(first).is_some_and(|b| self.references[b.index()] > 1);
        if !shared && self.demand.fits(length, table.blocks.len() as u64) {
            table.tokens = length;
            return Ok(true);
        }
        self.policy.mark(Operation::Grow, seq.into(), None, length);
        if shared && !self.make_private(seq, first)? {
            return Ok(false);
        }
        let filled = self.fill(seq, self.blocks_for(length))?;
        if filled {
            self.table_mut(seq)?.tokens = length;
        }
        Ok(filled)
    }

    /// Copy-on-write of one block of a table; `false` if there is no block to copy to.
    fn make_private(&mut self, seq: SeqId, index: usize) -> Result<bool> {
        let old = self.table(seq)?.blocks[index];
        if self.references[old.index()] == 1 {
            return Ok(true);
        }
        let Some(new) = self.claim(seq, Purpose::Copy)? else {
            return Ok(false);
        };
        self.drop_from(seq, old)?;
        self.cow_copies += 1;
        let source = self.gather.as_ref().map_or(old, |gather| gather.origin(old));
        self.copies.push((source, new));
        let table = self.table_mut(seq)?;
        table.blocks[index] = new;
        table.edits.note(index);
        if let (Some(gather), Some(index)) = (&mut self.gather, self.policy.index()) {
            gather.groups.join(seq, new);
            gather.touch(index, source, new);
        }
        Ok(true)
    }

    /// Makes the block that holds token `position` the sequence's own (copy-on-write); `false` if
    /// there is no block to copy to.
    pub fn write(&mut self, seq: SeqId, position: u64) -> Result<bool> {
        let tokens = self.table(seq)?.tokens;
        if position >= tokens {
            return Err(Error::invalid("position", position, format!("allowed 0 to {}", tokens - 1)));
        }
        let index = (position / u64::from(self.block_tokens)) as usize;
        self.atomically(|m| {
            m.policy.mark(Operation::Write, seq.into(), None, position);
            m.make_private(seq, index)
        })
    }

    /// Gives `child` the parent's blocks, each held once more; the first to write one copies it.
    pub fn fork(&mut self, parent: SeqId, child: SeqId) -> Result<()> {
        self.refuse_if_reserving("fork")?;
        let table = self.table(parent)?;
        if self.tables.contains_key(&child) {
            return Err(Error::DuplicateSequence(child));
        }
        if self.is_growing(table) {
            // Two sequences would write the blocks that the growth has already taken.
            return Err(Error::invalid(
                "parent",
                parent,
                "a sequence without a growth that waits for blocks",
            ));
        }
        let (blocks, tokens) = (table.blocks.clone(), table.tokens);
        self.policy.mark(Operation::Fork, parent.into(), None, child.0.into());
        for &block in &blocks {
            self.references[block.index()] += 1;
            if let Some(gather) = &mut self.gather {
                gather.groups.share(child, block);
            }
        }
        let edits = Edits { stamp: fresh_stamp(), ..Edits::default() };
        let table = Table { blocks, tokens, edits, inherited: tokens, ..Table::default() };
        self.tables.insert(child, table);
        Ok(())
    }

    /// Lets blocks go at the front of sequences of which only the last `window` tokens are looked at:
    /// those that hold none of these. Returns their number.
    pub fn trim(&mut self, seqs: &[SeqId], window: u64) -> Result<usize> {
        self.refuse_if_reserving("trim")?;
        if window == 0 {
            return Err(Error::invalid("window", window, "allowed 1 and up"));
        }
        let mut distinct = FxHashSet::default();
        for &seq in seqs {
            let table = self.table(seq)?;
            if !distinct.insert(seq) {
                return Err(Error::UnknownSequence(seq));
            }
            if self.is_growing(table) {
                return Err(Error::invalid("seqs", seq, "sequences without a growth that waits for blocks"));
            }
        }
        let block_tokens = u64::from(self.block_tokens);
        let mut dropped = 0;
        for &seq in seqs {
            let table = self.table_mut(seq)?;
            let blocks = (table.tokens.saturating_sub(window) / block_tokens) as usize;
            if blocks == 0 {
                continue;
            }
            self.policy.mark(Operation::Trim, seq.into(), None, blocks as u64);
            let table = self.table_mut(seq)?;
            table.tokens -= blocks as u64 * block_tokens;
            table.trimmed += blocks as u64 * block_tokens;
            table.edits.note(0);
            let front: Vec<_> = table.blocks.drain(..blocks).collect();
            for block in front {
                self.drop_from(seq, block)?;
            }
            dropped += blocks;
        }
        Ok(dropped)
    }

    /// Whether a growth or a speculation turn of the table waits for blocks.
    fn is_growing(&self, table: &Table) -> bool {
        table.turn.is_some() || table.blocks.len() as u64 > self.blocks_for(table.tokens)
    }

    /// The block copies (source, target) recorded since the last call.
    pub fn take_copies(&mut self) -> Vec<(BlockId, BlockId)> {
        if let Some(gather) = &mut self.gather {
            gather.begin_set();
        }
        std::mem::take(&mut self.copies)
    }

    /// How many block copies have been recorded since [`Self::take_copies`] was last called.
    #[must_use]
    pub fn pending_copies(&self) -> usize {
        self.copies.len()
    }

    /// Blocks copied on write so far.
    #[must_use]
    pub fn cow_copies(&self) -> u64 {
        self.cow_copies
    }

    /// Lets go of each sequence in turn: branches of an open speculation turn first, then its blocks
    /// in table order; then the policy forgets it.
    pub fn release(&mut self, seqs: &[SeqId]) -> Result<()> {
        self.release_ordered(seqs, None)
    }

    /// As [`Self::release`], but each table's blocks in the order of its permutation in `orders` (one
    /// after the other, each as long as its table).
    pub fn release_ordered(&mut self, seqs: &[SeqId], orders: Option<&[usize]>) -> Result<()> {
        let mut distinct = FxHashSet::default();
        let mut total = 0;
        for &seq in seqs {
            let blocks = self.table(seq)?.blocks.len();
            if !distinct.insert(seq) {
                return Err(Error::UnknownSequence(seq));
            }
            if let Some(order) = orders.and_then(|o| o.get(total..total + blocks)) {
                let mut sorted = order.to_vec();
                sorted.sort_unstable();
                if !sorted.iter().copied().eq(0..blocks) {
                    return Err(Error::invalid(
                        "order",
                        seq,
                        format!("a permutation of 0 to {blocks} - 1 each"),
                    ));
                }
            }
            total += blocks;
        }
        if let Some(orders) = orders.filter(|o| o.len() != total) {
            return Err(Error::invalid("order", orders.len(), format!("one entry per block, {total}")));
        }
        let mut orders = orders;
        for &seq in seqs {
            let table = self.tables.remove(&seq).ok_or(Error::UnknownSequence(seq))?;
            self.policy.mark(Operation::Release, seq.into(), None, table.blocks.len() as u64);
            for block in table.turn.into_iter().flat_map(|turn| turn.into_branches()) {
                self.drop_reference(block)?;
            }
            if let Some((order, rest)) = orders.map(|o| o.split_at(table.blocks.len())) {
                orders = Some(rest);
                for &index in order {
                    self.drop_from(seq, table.blocks[index])?;
                }
            } else {
                for block in table.blocks {
                    self.drop_from(seq, block)?;
                }
            }
            self.live -= table.scratch;
            self.policy.forget(seq.into());
        }
        Ok(())
    }

    /// Empties regions of at most `most_used` blocks, block by block, and returns the number of moves;
    /// their copies are recorded (the published negative result).
    pub fn compact(&mut self, most_used: u32) -> Result<usize> {
        let moves = self.policy.compact(most_used)?;
        let target: FxHashMap<_, _> = moves.iter().copied().collect();
        for &(old, new) in &moves {
            self.references[new.index()] = std::mem::take(&mut self.references[old.index()]);
        }
        // A plain scan over all that holds blocks: this is off by default and never fast.
        for table in self.tables.values_mut() {
            for index in 0..table.blocks.len() {
                if let Some(&new) = target.get(&table.blocks[index]) {
                    table.blocks[index] = new;
                    table.edits.note(index);
                }
            }
            table.turn.iter_mut().for_each(|turn| turn.relocate(&target));
        }
        for block in self.prefixes.values_mut().flat_map(|prefix| &mut prefix.blocks) {
            *block = target.get(block).copied().unwrap_or(*block);
        }
        self.held = self.held.iter().map(|block| target.get(block).copied().unwrap_or(*block)).collect();
        self.copies.extend(&moves);
        Ok(moves.len())
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
        let edits = &mut self.table_mut(seq)?.edits;
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
        let branches = self.tables.values().filter_map(|t| t.turn.as_deref()).flat_map(Turn::branches);
        let tables = self.tables.values().flat_map(|t| &t.blocks);
        let pins = self.prefixes.values().flat_map(|p| &p.blocks).chain(&self.held);
        for block in tables.chain(pins).chain(branches) {
            held[block.index()] += 1;
        }
        for (index, (&held, &counted)) in held.iter().zip(&self.references).enumerate() {
            let block = BlockId(index as u32);
            ensure(held == counted, || format!("block {block} is held {held} times, counted {counted}"))?;
            ensure((counted > 0) == self.policy.is_taken(block), || {
                format!("block {block} has {counted} references but the policy disagrees")
            })?;
        }
        if let Some(gather) = &self.gather {
            gather.check(&self.tables, &self.references)?;
        }
        let scratch = self.tables.values().map(|t| t.scratch as usize).sum::<usize>();
        let live = self.references.iter().filter(|&&count| count > 0).count() + scratch;
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
