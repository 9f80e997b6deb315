//! Incremental scoring of many sequences: every decode step of every sequence, exactly.
//!
//! Each sequence keeps the readers' states after its last token and at the start of its last
//! block, so an appended token costs O(1) and a changed last block re-scores that block alone.

use rustc_hash::FxHashMap;

use crate::controller::RefreshClock;
use crate::dram::AddressMap;
use crate::error::{Error, Result};
use crate::grouper::{Grouping, Tally};
use crate::lane::Timed;
use crate::manager::{BlockManager, Table};
use crate::reading::{Layout, Reader, State};
use crate::{BlockId, SeqId};

/// The order in which a sequence's blocks are read; attention does not mind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Traversal {
    /// Logical order.
    #[default]
    Token,
    /// Ascending ids, which is row order, but the unit of the last block after the others, and in it the
    /// last block, which may be partial, at the end: no row is visited twice.
    Row,
}

/// A sequence: its states now, and at the start of its last block, one per pass.
#[derive(Debug, Default)]
struct Scored {
    /// Stamp of the table when it was scored.
    stamp: u64,
    now: Vec<State>,
    block_start: Vec<State>,
    /// Blocks of the table when it was scored.
    blocks: usize,
}

impl Scored {
    fn tokens(&self) -> u64 {
        self.now.first().map_or(0, |state| state.tokens)
    }

    fn block_start_tokens(&self) -> u64 {
        self.block_start.first().map_or(0, |state| state.tokens)
    }
}

/// Scores block tables on one address map.
#[derive(Debug)]
pub struct Scorer {
    /// One per pass.
    readers: Vec<Reader>,
    layout: Layout,
    traversal: Traversal,
    /// Blocks of which every part lies within the device.
    fit: u64,
    refresh: Option<RefreshClock>,
    sequences: FxHashMap<SeqId, Scored>,
    totals: Vec<Tally>,
    limit: Limit,
    writes: Option<Writes>,
}

/// What has been written over the pins.
#[derive(Debug, Default)]
struct Writes {
    /// Reader and part of each kind of stored bytes.
    stored: Vec<(usize, usize)>,
    /// Tokens of each sequence that are written, those before its front included.
    seen: FxHashMap<SeqId, u64>,
    totals: Written,
}

/// Tokens, bursts and row activations of writes, over all channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Tokens written.
    pub tokens: u64,
    /// Bursts they took.
    pub bursts: u64,
    /// Rows opened, a bank of a channel each, per call, block and kind of stored bytes.
    pub activations: u64,
}

/// The placement limit: what a sequence takes that lies in blocks 0, 1, 2, ..., by its length.
#[derive(Debug, Default)]
struct Limit {
    states: Vec<State>,
    /// Of the first token, of the first two, ...
    tallies: Vec<Tally>,
    totals: Tally,
}

impl Scorer {
    /// A scorer for blocks of `block_bytes` whose tokens lie `token_bytes` apart, read in one pass and
    /// not timed.
    pub fn new(
        map: &AddressMap,
        block_bytes: u64,
        token_bytes: u64,
        grouping: impl Into<Grouping>,
    ) -> Result<Self> {
        let burst = u64::from(map.geometry().burst_bytes);
        if token_bytes == 0 || !token_bytes.is_multiple_of(burst) {
            let allowed = format!("a multiple of the burst, {burst}");
            return Err(Error::invalid("token_bytes", token_bytes, allowed));
        }
        let layout = Layout::plain(block_bytes, token_bytes)?;
        Self::with_layout(map, layout, Traversal::Token, grouping, None)
    }

    /// A scorer for any layout; with `timed`, cycles and row visits too.
    pub fn with_layout(
        map: &AddressMap,
        layout: Layout,
        traversal: Traversal,
        grouping: impl Into<Grouping>,
        timed: Option<&Timed>,
    ) -> Result<Self> {
        let (readers, fit) = Reader::of_layout(map, &layout, grouping.into(), timed)?;
        let refreshing = timed.map(|t| &t.controller).filter(|c| c.refreshes());
        // A controller that refreshes has a timing with refresh figures.
        let refresh = refreshing.and_then(|c| RefreshClock::new(c.timing()).ok());
        let limit = Limit { states: fresh(&readers), ..Limit::default() };
        let totals = vec![Tally::default(); readers.len()];
        Ok(Self {
            readers,
            layout,
            traversal,
            fit,
            refresh,
            sequences: FxHashMap::default(),
            totals,
            limit,
            writes: None,
        })
    }

    /// Counts writes from here on.
    pub fn count_writes(&mut self) {
        self.writes = Some(Writes { stored: Reader::stored(&self.readers), ..Writes::default() });
    }

    /// What has been written so far; nothing unless writes are counted.
    #[must_use]
    pub fn write_totals(&self) -> Written {
        self.writes.as_ref().map_or_else(Written::default, |w| w.totals)
    }

    /// Counts what sequences have written that leave without being observed again.
    pub fn settle(&mut self, manager: &BlockManager, seqs: &[SeqId]) -> Result<()> {
        self.fits(manager)?;
        for &seq in seqs {
            manager.table(seq)?;
        }
        for &seq in seqs {
            self.write(manager.table(seq)?, seq);
        }
        Ok(())
    }

    fn write(&mut self, table: &Table, seq: SeqId) {
        let Some(writes) = &mut self.writes else {
            return;
        };
        let block_tokens = u64::from(self.layout.block_tokens);
        let (front, end) = (table.trimmed(), table.trimmed() + table.tokens());
        let from = writes.seen.insert(seq, end).unwrap_or_else(|| table.inherited());
        let mut token = from.clamp(front, end);
        writes.totals.tokens += end - token;
        while token < end {
            let (index, offset) = ((token - front) / block_tokens, (token - front) % block_tokens);
            let last = (offset + end - token).min(block_tokens);
            let block = table.blocks()[index as usize];
            for &(reader, part) in &writes.stored {
                let (activations, bursts) = self.readers[reader].writes(block, offset, last, part);
                writes.totals.activations += activations;
                writes.totals.bursts += bursts;
            }
            token += last - offset;
        }
    }

    /// Scores each sequence as its table stands and adds it to the totals; the batch is one step of
    /// the refresh clock. One tally per sequence, over all passes.
    pub fn observe(&mut self, manager: &mut BlockManager, seqs: &[SeqId]) -> Result<Vec<Tally>> {
        self.fits(manager)?;
        if let Some(&unknown) = seqs.iter().find(|s| manager.table(**s).is_err()) {
            return Err(Error::UnknownSequence(unknown));
        }
        let mut tallies = Vec::with_capacity(seqs.len());
        let mut cycles = 0;
        for &seq in seqs {
            self.score(manager, seq)?;
            let mut tally = Tally::default();
            let states = self.sequences.get(&seq).map_or(&[][..], |scored| &scored.now);
            for ((reader, state), total) in self.readers.iter().zip(states).zip(&mut self.totals) {
                let pass = reader.tally(state);
                *total += pass;
                tally += pass;
            }
            cycles += tally.cycles;
            tallies.push(tally);
            self.limit.add(&self.readers, &self.layout, manager.table(seq)?.tokens());
            self.write(manager.table(seq)?, seq);
        }
        if let Some(clock) = &mut self.refresh {
            clock.advance(cycles);
        }
        Ok(tallies)
    }

    /// Sum over everything observed so far.
    #[must_use]
    pub fn totals(&self) -> Tally {
        let mut sum = Tally::default();
        for &pass in &self.totals {
            sum += pass;
        }
        sum
    }

    /// The totals of each pass.
    #[must_use]
    pub fn pass_totals(&self) -> &[Tally] {
        &self.totals
    }

    /// Cycles of refresh on top of the totals' so far.
    #[must_use]
    pub fn refresh_cycles(&self) -> u64 {
        self.refresh.as_ref().map_or(0, RefreshClock::charged)
    }

    /// The totals if every sequence had the fewest row visits: if it lay contiguously.
    #[must_use]
    pub fn limit_totals(&self) -> Tally {
        self.limit.totals
    }

    /// Drops the state of a sequence; it is scored afresh if it comes back.
    pub fn forget(&mut self, seq: SeqId) {
        self.sequences.remove(&seq);
        if let Some(writes) = &mut self.writes {
            writes.seen.remove(&seq);
        }
    }

    fn fits(&self, manager: &BlockManager) -> Result<()> {
        if u64::from(manager.blocks()) > self.fit {
            let allowed = format!("at most {} blocks fit the DRAM", self.fit);
            return Err(Error::invalid("blocks", manager.blocks(), allowed));
        }
        if manager.block_tokens() != self.layout.block_tokens {
            let allowed = format!("the scorer's blocks have {}", self.layout.block_tokens);
            return Err(Error::invalid("block_tokens", manager.block_tokens(), allowed));
        }
        Ok(())
    }

    /// Brings the states of a sequence up to its table.
    fn score(&mut self, manager: &mut BlockManager, seq: SeqId) -> Result<()> {
        let block_tokens = u64::from(self.layout.block_tokens);
        let scored = self.sequences.entry(seq).or_default();
        let (intact, stamp) = manager.intact_since(seq, scored.stamp)?;
        let table = manager.table(seq)?;
        let first = self.layout.first_token(table.tokens());
        let mut intact = (intact as u64).saturating_mul(block_tokens).min(table.tokens());
        if first > 0 || (self.traversal == Traversal::Row && scored.blocks != table.blocks().len()) {
            // The front has moved, or a block has joined those that are read in order of their ids.
            intact = 0;
        }
        scored.blocks = table.blocks().len();
        if scored.stamp == 0 || intact < scored.tokens() {
            if scored.stamp != 0 && intact > 0 && scored.block_start_tokens() <= intact {
                for (now, start) in scored.now.iter_mut().zip(&scored.block_start) {
                    now.copy_from(start);
                }
            } else {
                scored.now = fresh(&self.readers);
                scored.block_start = fresh(&self.readers);
                if self.traversal == Traversal::Row {
                    read_rows(&self.readers, &mut scored.now, table, first, &self.layout);
                } else {
                    scored.now.iter_mut().for_each(|state| state.tokens = first);
                }
            }
        }
        scored.stamp = stamp;
        for token in scored.tokens()..table.tokens() {
            let (block, offset) = (token / block_tokens, token % block_tokens);
            if offset == 0 {
                for (start, now) in scored.block_start.iter_mut().zip(&scored.now) {
                    start.copy_from(now);
                }
            }
            let block = table.blocks()[block as usize];
            for (reader, state) in self.readers.iter().zip(&mut scored.now) {
                reader.push(state, block, offset);
            }
        }
        Ok(())
    }
}

impl Layout {
    /// The first token that is read of so many.
    fn first_token(&self, tokens: u64) -> u64 {
        if self.window_tokens == 0 { 0 } else { tokens.saturating_sub(self.window_tokens) }
    }
}

/// Closed banks, nothing read, for each pass.
fn fresh(readers: &[Reader]) -> Vec<State> {
    readers.iter().map(Reader::start).collect()
}

/// Reads all blocks but the last from `first` on, row by row.
fn read_rows(readers: &[Reader], states: &mut [State], table: &Table, first: u64, layout: &Layout) {
    let block_tokens = u64::from(layout.block_tokens);
    let whole = table.tokens().saturating_sub(1) / block_tokens;
    let unit = |block: BlockId| block.0 / layout.blocks_per_unit;
    let last = table.blocks().get(whole as usize).map(|&block| unit(block));
    let mut order: Vec<(bool, BlockId, u64)> = (first / block_tokens..whole)
        .map(|i| (table.blocks()[i as usize], i))
        .map(|(block, i)| (Some(unit(block)) == last, block, i))
        .collect();
    order.sort_unstable();
    for (_, block, index) in order {
        for offset in first.saturating_sub(index * block_tokens)..block_tokens {
            for (reader, state) in readers.iter().zip(&mut *states) {
                reader.push(state, block, offset);
            }
        }
    }
    for state in states {
        state.tokens = first.max(whole * block_tokens);
    }
}

impl Limit {
    /// Adds a sequence of so many tokens.
    fn add(&mut self, readers: &[Reader], layout: &Layout, tokens: u64) {
        let block_tokens = u64::from(layout.block_tokens);
        let tokens = tokens - layout.first_token(tokens);
        while (self.tallies.len() as u64) < tokens {
            let token = self.tallies.len() as u64;
            let mut tally = Tally::default();
            for (reader, state) in readers.iter().zip(&mut self.states) {
                reader.push(state, BlockId((token / block_tokens) as u32), token % block_tokens);
                tally += reader.tally(state);
            }
            self.tallies.push(tally);
        }
        if let Some(last) = (tokens as usize).checked_sub(1) {
            self.totals += self.tallies[last];
        }
    }
}
