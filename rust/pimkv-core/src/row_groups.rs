//! Scoring requests that own whole row groups of one channel: what reading one takes depends on its length alone.
//!
//! A row group is one row index in all banks that a command acts on. A K page keeps each token in one bank,
//! its elements along the row; a V page keeps each element's dimension in one bank, the tokens along the
//! row. A step takes as long as its busiest channel, over all requests that lie there.

mod page;
mod writes;

use rustc_hash::FxHashMap;

pub use self::page::Shape;
use self::page::Sheet;
use self::writes::Writes;
use crate::SeqId;
use crate::controller::RefreshClock;
use crate::error::{Error, Result};
use crate::grouper::{Tally, chunks};
use crate::lane::{Feeding, Queue, Timed};
use crate::manager::{BlockManager, Demand, Page, Table};
use crate::scorer::Written;

/// What the published formula charges for a command, in integer picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Prices {
    /// To an open row.
    pub hit_ps: u64,
    /// That opens its row first.
    pub miss_ps: u64,
}

/// One pass, over the K or the V pages of a request.
#[derive(Debug)]
struct Pass {
    sheet: Sheet,
    /// Column commands of each row visit of a full page.
    full: Vec<u32>,
    /// The queue after 0, 1, 2, ... full pages.
    states: Vec<Queue>,
}

/// Scores the requests of a block manager with pages on confined channels.
#[derive(Debug)]
pub struct RowGroupScorer {
    shape: Shape,
    feeding: Feeding,
    prices: Prices,
    passes: [Pass; 2],
    refresh: Option<RefreshClock>,
    /// By length. Only ever looked up.
    lengths: FxHashMap<u64, [Tally; 2]>,
    /// Cycles are those of the busiest channel of each step.
    totals: [Tally; 2],
    /// Cycles of all requests, whatever their channels.
    all_cycles: u64,
    formula_ps: u64,
    writes: Option<Writes>,
}

impl RowGroupScorer {
    /// A scorer of pages of that shape. Each of the `timed.per_command` pseudo-channels that make a channel
    /// counts a command. An activation serves ceil(c / `mac_stride`) of the c commands of a row visit.
    pub fn new(shape: Shape, timed: Timed, mac_stride: u32, prices: Prices) -> Result<Self> {
        shape.validate()?;
        timed.validate()?;
        if mac_stride == 0 {
            return Err(Error::invalid("mac_stride", mac_stride, "allowed 1 and up"));
        }
        let pass =
            |sheet: Sheet| Pass { full: sheet.visits(sheet.tokens), sheet, states: vec![Queue::default()] };
        // A controller that refreshes has a timing with refresh figures.
        let refresh = if timed.controller.refreshes() {
            RefreshClock::new(timed.controller.timing()).ok()
        } else {
            None
        };
        Ok(Self {
            passes: shape.sheets().map(pass),
            shape,
            feeding: Feeding { timed, stride: mac_stride },
            prices,
            refresh,
            lengths: FxHashMap::default(),
            totals: Default::default(),
            all_cycles: 0,
            formula_ps: 0,
            writes: None,
        })
    }

    /// A K page and a V page, as the manager hands them out.
    #[must_use]
    pub fn pages(&self) -> [Page; 2] {
        self.shape.pages()
    }

    /// Counts writes from here on.
    pub fn count_writes(&mut self) {
        self.writes = Some(Writes::default());
    }

    /// What has been written so far; nothing unless writes are counted.
    #[must_use]
    pub fn write_totals(&self) -> Written {
        self.writes.as_ref().map_or_else(Written::default, Writes::totals)
    }

    /// Scores each request as its table stands and adds it to the totals; the batch is one step.
    ///
    /// One tally per request, over both passes, with the cycles that it takes alone.
    pub fn observe(&mut self, manager: &BlockManager, seqs: &[SeqId]) -> Result<Vec<Tally>> {
        self.fits(manager, seqs)?;
        let mut tallies = Vec::with_capacity(seqs.len());
        // Of each channel the cycles of each pass, and the formula's time.
        let mut busy = vec![([0; 2], 0); self.shape.channels as usize];
        for &seq in seqs {
            let table = manager.table(seq)?;
            let of_passes = self.of_length(table.tokens());
            let (cycles, time_ps) = &mut busy[self.channel(table)];
            let mut tally = Tally::default();
            for ((pass, total), cycles) in of_passes.into_iter().zip(&mut self.totals).zip(cycles) {
                *cycles += pass.cycles;
                self.all_cycles += pass.cycles;
                // Every pseudo-channel of a channel counts a command, but all take it at once.
                let (hits, misses) = (pass.hits, pass.commands - pass.hits);
                let time = hits * self.prices.hit_ps + misses * self.prices.miss_ps;
                *time_ps += time / u64::from(self.feeding.timed.per_command);
                *total += Tally { cycles: 0, ..pass };
                tally += pass;
            }
            tallies.push(tally);
            self.write(table, seq);
        }
        // Of equals the lowest channel.
        let busiest =
            busy.iter().map(|(cycles, _)| *cycles).rev().max_by_key(|[k, v]| k + v).unwrap_or_default();
        for (total, cycles) in self.totals.iter_mut().zip(busiest) {
            total.cycles += cycles;
        }
        self.formula_ps += busy.iter().map(|(_, time)| *time).max().unwrap_or(0);
        if let Some(clock) = &mut self.refresh {
            clock.advance(busiest.iter().sum());
        }
        Ok(tallies)
    }

    /// Counts what requests have written that leave without being observed again.
    pub fn settle(&mut self, manager: &BlockManager, seqs: &[SeqId]) -> Result<()> {
        self.fits(manager, seqs)?;
        for &seq in seqs {
            self.write(manager.table(seq)?, seq);
        }
        Ok(())
    }

    /// Drops what is kept of a request: how far it has written.
    pub fn forget(&mut self, seq: SeqId) {
        if let Some(writes) = &mut self.writes {
            writes.forget(seq);
        }
    }

    /// Sum over everything observed so far; the cycles are those of the busiest channel of each step.
    #[must_use]
    pub fn totals(&self) -> Tally {
        let [mut sum, v] = self.totals;
        sum += v;
        sum
    }

    /// The totals of the K and of the V pass; their cycles are each pass's share on the busiest channel.
    #[must_use]
    pub fn pass_totals(&self) -> &[Tally] {
        &self.totals
    }

    /// Cycles of refresh on top of the totals' so far.
    #[must_use]
    pub fn refresh_cycles(&self) -> u64 {
        self.refresh.as_ref().map_or(0, RefreshClock::charged)
    }

    /// The totals if all channels were equally busy: pages have the fewest row visits wherever they lie.
    #[must_use]
    pub fn limit_totals(&self) -> Tally {
        Tally { cycles: self.all_cycles.div_ceil(u64::from(self.shape.channels)), ..self.totals() }
    }

    /// The published formula's time of the busiest channel of each step, summed, ps.
    #[must_use]
    pub fn formula_ps(&self) -> u64 {
        self.formula_ps
    }

    fn fits(&self, manager: &BlockManager, seqs: &[SeqId]) -> Result<()> {
        let pool = u64::from(self.shape.channels) * u64::from(self.shape.rows);
        if u64::from(manager.blocks()) != pool {
            let allowed = format!("the scorer's channels have {pool} row groups");
            return Err(Error::invalid("blocks", manager.blocks(), allowed));
        }
        let demand = Demand::Pages(self.shape.pages());
        if manager.demand() != demand {
            let given = format!("{:?}", manager.demand());
            return Err(Error::invalid("pages", given, format!("the scorer's are {demand:?}")));
        }
        seqs.iter().try_for_each(|&seq| manager.table(seq).map(|_| ()))
    }

    /// The channel that a request lies in: that of its first row group, and so of all.
    fn channel(&self, table: &Table) -> usize {
        table.blocks().first().map_or(0, |block| (block.0 / self.shape.rows) as usize)
    }

    /// What each pass over a request of so many tokens takes.
    fn of_length(&mut self, tokens: u64) -> [Tally; 2] {
        let Self { shape, feeding, passes, lengths, .. } = self;
        *lengths.entry(tokens).or_insert_with(|| {
            passes.each_mut().map(|pass| {
                let mut tally = pass.read(feeding, tokens);
                tally.commands *= u64::from(feeding.timed.repeat) * u64::from(feeding.timed.per_command);
                tally.hits = tally.commands - tally.hits * u64::from(feeding.timed.per_command);
                tally.bursts = tokens * shape.token_bursts();
                tally
            })
        })
    }

    fn write(&mut self, table: &Table, seq: SeqId) {
        if let Some(writes) = &mut self.writes {
            writes.add(&self.shape, seq, table.tokens());
        }
    }
}

impl Pass {
    /// Column commands, misses (as `hits`), activations and cycles of reading so many tokens in one queue.
    fn read(&mut self, feeding: &Feeding, tokens: u64) -> Tally {
        let pages = (tokens / self.sheet.tokens) as usize;
        let visits = self.full.len();
        while self.states.len() <= pages {
            let page = self.states.len() - 1;
            let mut queue = self.states[page].clone();
            feed(&mut queue, feeding, page * visits, &self.full);
            self.states.push(queue);
        }
        let rest = self.sheet.visits(tokens % self.sheet.tokens);
        let mut queue = self.states[pages].clone();
        feed(&mut queue, feeding, pages * visits, &rest);
        let done = queue.finish(feeding);
        let sum = |visits: &[u32], of: fn(u64, u32) -> u64| -> u64 {
            visits.iter().map(|&commands| of(commands.into(), feeding.stride)).sum()
        };
        let total = |of| pages as u64 * sum(&self.full, of) + sum(&rest, of);
        Tally {
            commands: total(|commands, _| commands),
            hits: total(chunks),
            cycles: done.cycles,
            visits: done.activations,
            ..Tally::default()
        }
    }
}

/// Feeds the column commands of row visits, each to a row of its own from `first` on.
fn feed(queue: &mut Queue, feeding: &Feeding, first: usize, visits: &[u32]) {
    let issued = feeding.timed.controller.feed().commands();
    for (row, &columns) in (first as u32..).zip(visits) {
        for _ in 0..columns {
            queue.feed(feeding, row, issued);
        }
    }
}
