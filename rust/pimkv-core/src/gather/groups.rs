//! Groups: the blocks that one sequence holds in one region, counted as tables change.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use crate::error::{Result, ensure};
use crate::manager::Table;
use crate::{BlockId, RegionId, SeqId};

/// What a sequence holds of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) seq: SeqId,
    /// Blocks of its table that nothing else holds.
    pub(crate) own: u32,
    /// Blocks of its table that others hold too: they pin the group.
    pub(crate) shared: u32,
}

impl Group {
    fn size(self) -> u32 {
        self.own + self.shared
    }

    /// Its blocks if they could be moved: none are in a group that is pinned.
    fn loose(self) -> u32 {
        if self.shared == 0 { self.own } else { 0 }
    }
}

/// Where a sequence's blocks are.
#[derive(Clone, Debug, Default)]
struct Spread {
    /// Regions with blocks of it.
    pairs: u32,
    /// Those of them where it shares no block with others, and its blocks there.
    loose_pairs: u32,
    loose_blocks: u32,
    /// The regions with blocks of it that it does not fill, in no particular order.
    fragments: Vec<RegionId>,
}

/// All groups, by region and by sequence.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    blocks_per_region: u32,
    regions: Vec<Vec<Group>>,
    /// The table that alone holds a block, if one does.
    alone: Vec<Option<SeqId>>,
    spreads: FxHashMap<SeqId, Spread>,
    /// Sequences with more pairs than their number of blocks needs.
    scattered: BTreeSet<SeqId>,
    /// The tables that hold a block which is shared or pinned.
    sharers: FxHashMap<BlockId, Vec<SeqId>>,
}

impl Groups {
    pub(super) fn new(blocks: u32, blocks_per_region: u32) -> Self {
        Self {
            blocks_per_region,
            regions: vec![Vec::new(); (blocks / blocks_per_region) as usize],
            alone: vec![None; blocks as usize],
            spreads: FxHashMap::default(),
            scattered: BTreeSet::new(),
            sharers: FxHashMap::default(),
        }
    }

    fn region_of(&self, block: BlockId) -> RegionId {
        RegionId(block.0 / self.blocks_per_region)
    }

    pub(super) fn of_region(&self, region: RegionId) -> &[Group] {
        &self.regions[region.0 as usize]
    }

    pub(super) fn group(&self, seq: SeqId, region: RegionId) -> Option<Group> {
        self.of_region(region).iter().find(|g| g.seq == seq).copied()
    }

    /// The blocks of a region that the sequence alone holds, ascending.
    pub(super) fn blocks(&self, seq: SeqId, region: RegionId) -> impl Iterator<Item = BlockId> {
        let first = region.0 * self.blocks_per_region;
        let ids = (first..first + self.blocks_per_region).map(BlockId);
        ids.filter(move |b| self.alone[b.index()] == Some(seq))
    }

    /// Regions that the sequence has blocks in and does not fill.
    pub(super) fn fragments(&self, seq: SeqId) -> &[RegionId] {
        self.spreads.get(&seq).map_or(&[], |s| &s.fragments)
    }

    /// Of the sequence's regions that suit, the one with most blocks of it, the lowest number on ties.
    pub(super) fn largest(&self, seq: SeqId, suits: impl Fn(Group, RegionId) -> bool) -> Option<RegionId> {
        let groups = self.fragments(seq).iter().filter_map(|&r| Some((self.group(seq, r)?, r)));
        let best =
            groups.filter(|&(g, r)| suits(g, r)).max_by_key(|&(g, r)| (g.size(), std::cmp::Reverse(r)));
        best.map(|(_, region)| region)
    }

    /// So many sequences with more pairs than they need, or all: ascending from `first` on, then from the start.
    pub(super) fn scattered(&self, first: SeqId, most: usize) -> Vec<SeqId> {
        self.scattered.range(first..).chain(self.scattered.range(..first)).take(most).copied().collect()
    }

    /// (sequence, region) pairs of a sequence beyond those that its blocks need. Pinned groups are left out:
    /// they cannot be helped.
    pub(super) fn excess(&self, seq: SeqId) -> u32 {
        let needed = |s: &Spread| s.loose_blocks.div_ceil(self.blocks_per_region);
        self.spreads.get(&seq).map_or(0, |s| s.loose_pairs - needed(s))
    }

    /// A block that nothing else holds joins the sequence's table.
    pub(crate) fn join(&mut self, seq: SeqId, block: BlockId) {
        self.alone[block.index()] = Some(seq);
        self.change(seq, block, 1, 0);
    }

    /// A block that something else holds joins the table too.
    pub(crate) fn share(&mut self, seq: SeqId, block: BlockId) {
        self.pin(block);
        self.sharers.entry(block).or_default().push(seq);
        self.change(seq, block, 0, 1);
    }

    /// Something else than the table that alone holds the block, if one does, is about to hold it too.
    pub(crate) fn pin(&mut self, block: BlockId) {
        if let Some(sole) = self.alone[block.index()].take() {
            self.change(sole, block, -1, 1);
            self.sharers.insert(block, vec![sole]);
        }
    }

    /// What is no table has let the block go; `left` references stay.
    pub(crate) fn unpin(&mut self, block: BlockId, left: u32) {
        if left == 1
            && let Some(&sole) = self.sharers.get(&block).and_then(|sharers| sharers.first())
        {
            self.sharers.remove(&block);
            self.alone[block.index()] = Some(sole);
            self.change(sole, block, 1, -1);
        }
    }

    /// A block leaves the table; `left` references stay.
    pub(crate) fn leave(&mut self, seq: SeqId, block: BlockId, left: u32) {
        let Some(sharers) = self.sharers.get_mut(&block) else {
            self.alone[block.index()] = None;
            self.change(seq, block, -1, 0);
            return;
        };
        sharers.retain(|&s| s != seq);
        let sole = (left == 1).then(|| sharers.first().copied()).flatten();
        if left == 0 || sole.is_some() || sharers.is_empty() {
            self.sharers.remove(&block);
        }
        self.change(seq, block, 0, -1);
        if let Some(sole) = sole {
            self.alone[block.index()] = Some(sole);
            self.change(sole, block, 1, -1);
        }
    }

    fn change(&mut self, seq: SeqId, block: BlockId, own: i32, shared: i32) {
        let region = self.region_of(block);
        let groups = &mut self.regions[region.0 as usize];
        let at = groups.iter().position(|g| g.seq == seq).unwrap_or_else(|| {
            groups.push(Group { seq, own: 0, shared: 0 });
            groups.len() - 1
        });
        let before = groups[at];
        // A count below zero would show as an enormous one: `check` says so.
        groups[at].own = before.own.wrapping_add_signed(own);
        groups[at].shared = before.shared.wrapping_add_signed(shared);
        let after = groups[at];
        if after.size() == 0 {
            groups.swap_remove(at);
        }
        let spread = self.spreads.entry(seq).or_default();
        let is_pair = |blocks: u32| u32::from(blocks > 0);
        spread.pairs = spread.pairs + is_pair(after.size()) - is_pair(before.size());
        spread.loose_pairs = spread.loose_pairs + is_pair(after.loose()) - is_pair(before.loose());
        spread.loose_blocks = spread.loose_blocks + after.loose() - before.loose();
        let is_fragment = |group: Group| (1..self.blocks_per_region).contains(&group.size());
        match (is_fragment(before), is_fragment(after)) {
            (false, true) => spread.fragments.push(region),
            (true, false) => spread.fragments.retain(|&r| r != region),
            _ => {}
        }
        if spread.pairs == 0 {
            self.spreads.remove(&seq);
        }
        if self.excess(seq) > 0 {
            self.scattered.insert(seq);
        } else {
            self.scattered.remove(&seq);
        }
    }

    /// Verifies every count against the tables.
    pub(super) fn check(&self, tables: &FxHashMap<SeqId, Table>, references: &[u32]) -> Result<()> {
        let mut fresh = Self::new(self.regions.len() as u32 * self.blocks_per_region, self.blocks_per_region);
        let mut tables: Vec<_> = tables.iter().map(|(&seq, table)| (seq, table)).collect();
        tables.sort_unstable_by_key(|&(seq, _)| seq);
        for (seq, table) in tables {
            for &block in table.blocks() {
                match references[block.index()] {
                    1 => fresh.join(seq, block),
                    _ => fresh.change(seq, block, 0, 1),
                }
            }
        }
        for (region, (counted, known)) in fresh.regions.iter().zip(&self.regions).enumerate() {
            let mut known = known.clone();
            known.sort_unstable_by_key(|g| g.seq);
            ensure(*counted == known, || {
                format!("groups of region {region} are {counted:?}, known {known:?}")
            })?;
        }
        for (seq, spread) in &fresh.spreads {
            let mut counted = spread.fragments.clone();
            counted.sort_unstable();
            let mut known = self.fragments(*seq).to_vec();
            known.sort_unstable();
            ensure(counted == known, || {
                format!("fragments of sequence {seq} are {counted:?}, known {known:?}")
            })?;
            let counts = |s: &Spread| (s.pairs, s.loose_pairs, s.loose_blocks);
            ensure(self.spreads.get(seq).map(counts) == Some(counts(spread)), || {
                format!("what is counted of sequence {seq} is off")
            })?;
        }
        ensure(fresh.spreads.len() == self.spreads.len(), || "a sequence without blocks has groups".into())?;
        ensure(fresh.alone == self.alone, || "whose blocks are whose alone is off".into())?;
        ensure(fresh.scattered == self.scattered, || "the list of scattered sequences is off".into())
    }
}
