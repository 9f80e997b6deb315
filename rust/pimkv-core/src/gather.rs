//! The relocation planner of `pim-gather`: who holds how much of which region, and what to move.
//!
//! Objective: the number of distinct (sequence, region) pairs, each of which costs one activation per channel
//! and decode step. Target shape: full regions and at most one tail per sequence.
//!
//! Nothing is moved here: plans are made from tables, reference counts and the index of regions, the block
//! manager carries them out and reports every block that a table gains or loses. Deliberate limits: blocks of
//! prefixes and of speculation branches, and groups with a shared block, stay where they are.

mod groups;
mod repair;

use rustc_hash::FxHashMap;

use self::groups::Groups;
use crate::alloc::RegionIndex;
use crate::error::Result;
use crate::manager::Table;
use crate::{BlockId, Owner, RegionId, SeqId};

/// What growth may do beside what `pim-aware` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levers {
    /// Take free ids of any region that holds blocks of the sequence before an empty region.
    pub own_first: bool,
    /// Move groups so that a growing sequence needs no further region.
    pub relocate_tail: bool,
}

/// What a claimed block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It joins the sequence's table.
    Table,
    /// It replaces a shared block of the table and is written by a copy.
    Copy,
    /// It is a speculation branch: most go back at once, so nothing moves for it.
    Branch,
}

/// A block of a sequence's table that goes elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) seq: SeqId,
    pub(crate) from: BlockId,
    pub(crate) to: BlockId,
}

/// Where a claim is served, once the moves are made.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) moves: Vec<Move>,
    pub(crate) region: RegionId,
    /// Whether the sequence goes to one more region although one of its regions is not its alone.
    pub(crate) split: bool,
}

/// What a repair of one sequence takes and gives.
#[derive(Debug)]
pub(crate) struct Repair {
    pub(crate) moves: Vec<Move>,
    /// Pairs removed less pairs added; positive.
    pub(crate) gain: u32,
}

/// What the planner knows.
#[derive(Clone, Debug)]
pub(crate) struct Gather {
    levers: Levers,
    pub(crate) groups: Groups,
    /// Blocks that are a source or a target of a copy of the present set, by region.
    touched: FxHashMap<RegionId, Vec<BlockId>>,
    /// Targets of the present set and their sources.
    origins: FxHashMap<BlockId, BlockId>,
    /// Where the next repair begins to look.
    cursor: SeqId,
}

impl Gather {
    pub(crate) fn new(levers: Levers, blocks: u32, blocks_per_region: u32) -> Self {
        Self {
            levers,
            groups: Groups::new(blocks, blocks_per_region),
            touched: FxHashMap::default(),
            origins: FxHashMap::default(),
            cursor: SeqId(0),
        }
    }

    /// The copies so far have been handed over: what comes is a new set.
    pub(crate) fn begin_set(&mut self) {
        self.touched.clear();
        self.origins.clear();
    }

    /// Where the content of a block is before the copies of the present set.
    pub(crate) fn origin(&self, block: BlockId) -> BlockId {
        self.origins.get(&block).copied().unwrap_or(block)
    }

    /// Notes a copy of the present set.
    pub(crate) fn touch(&mut self, index: &RegionIndex, from: BlockId, to: BlockId) {
        for block in [from, to] {
            self.touched.entry(index.region_of(block)).or_default().push(block);
        }
        self.origins.insert(to, from);
    }

    fn is_touched(&self, index: &RegionIndex, block: BlockId) -> bool {
        self.touched.get(&index.region_of(block)).is_some_and(|blocks| blocks.contains(&block))
    }

    /// Free ids of a region that no copy of the present set reads or writes.
    pub(crate) fn targets<'a>(
        &'a self,
        index: &'a RegionIndex,
        region: RegionId,
    ) -> impl Iterator<Item = BlockId> + 'a {
        index.free_ids(region).filter(move |&b| !self.is_touched(index, b))
    }

    fn usable(&self, index: &RegionIndex, region: RegionId) -> u32 {
        if self.touched.contains_key(&region) {
            self.targets(index, region).count() as u32
        } else {
            index.room(region)
        }
    }

    /// Whether the group that a sequence has in a region may be moved in the present set.
    fn is_movable(&self, index: &RegionIndex, seq: SeqId, region: RegionId) -> bool {
        let Some(group) = self.groups.group(seq, region) else { return false };
        group.shared == 0
            && group.own < index.blocks_per_region()
            && (!self.touched.contains_key(&region)
                || self.groups.blocks(seq, region).all(|b| !self.is_touched(index, b)))
    }

    /// The movable groups of a sequence, the smallest first: (size, region).
    fn fragments(&self, index: &RegionIndex, seq: SeqId) -> Vec<(u32, RegionId)> {
        let all = self.groups.fragments(seq).iter();
        let sized = all.filter_map(|&r| Some((self.groups.group(seq, r)?.own, r)));
        let mut fragments: Vec<_> = sized.filter(|&(_, r)| self.is_movable(index, seq, r)).collect();
        fragments.sort_unstable();
        fragments
    }

    /// Moves of a whole group to the lowest free ids of another region.
    fn shift(&self, index: &RegionIndex, seq: SeqId, from: RegionId, to: RegionId) -> Vec<Move> {
        let pairs = self.groups.blocks(seq, from).zip(self.targets(index, to));
        pairs.map(|(from, to)| Move { seq, from, to }).collect()
    }

    /// Where a claim of a sequence is served; `None` if the pool is full.
    pub(crate) fn claim(&self, index: &RegionIndex, seq: SeqId, purpose: Purpose) -> Option<Claim> {
        // The target of a copy on write must not be part of another copy.
        let room = |r| if purpose == Purpose::Copy { self.usable(index, r) } else { index.room(r) };
        let current = index.current(Owner::from(seq)).filter(|&r| room(r) > 0);
        let owns = |r| self.groups.group(seq, r).is_some_and(|group| group.own > 0);
        if self.levers.own_first {
            let own = current.filter(|&r| owns(r));
            let own = own.or_else(|| self.groups.largest(seq, |group, r| group.own > 0 && room(r) > 0));
            if let Some(region) = own {
                return Some(Claim { moves: Vec::new(), region, split: false });
            }
        }
        let crowded = self.groups.fragments(seq).iter().any(|&r| owns(r));
        let stay = |region| Claim { moves: Vec::new(), region, split: crowded && !owns(region) };
        if let Some(region) = current {
            return Some(stay(region));
        }
        if let Some(region) = index.roomiest(index.blocks_per_region()).find(|&r| room(r) > 0) {
            return Some(stay(region));
        }
        if crowded && self.levers.relocate_tail && purpose != Purpose::Branch {
            let claim = self.move_tail(index, seq, purpose).or_else(|| match purpose {
                Purpose::Table => self.move_foreign(index, seq).or_else(|| self.empty_region(index)),
                // What these free is the source of a copy.
                Purpose::Copy | Purpose::Branch => None,
            });
            if claim.is_some() {
                return claim;
            }
        }
        let roomiest = index.roomiest(1).find(|&r| room(r) > 0);
        roomiest.or_else(|| index.roomiest(1).next()).map(stay)
    }

    /// The smallest of the sequence's groups goes to the roomiest region that holds it and one more.
    fn move_tail(&self, index: &RegionIndex, seq: SeqId, purpose: Purpose) -> Option<Claim> {
        let &(size, from) = self.fragments(index, seq).first()?;
        let needed = size + u32::from(purpose == Purpose::Copy);
        let mut roomy = index.roomiest(size + 1);
        let region = roomy.find(|&r| r != from && self.usable(index, r) >= needed)?;
        Some(Claim { moves: self.shift(index, seq, from, region), region, split: false })
    }

    /// The smallest group that shares a full region with the sequence goes elsewhere: to a region that holds
    /// more of its sequence, else where it fits best.
    fn move_foreign(&self, index: &RegionIndex, seq: SeqId) -> Option<Claim> {
        let owns = |r| self.groups.group(seq, r).is_some_and(|group| group.own > 0);
        let crowded = self.groups.fragments(seq).iter().filter(|&&r| owns(r) && index.room(r) == 0);
        let foreign = crowded.flat_map(|&r| self.groups.of_region(r).iter().map(move |g| (g.own, r, g.seq)));
        let (size, from, other) =
            foreign.filter(|&(_, r, s)| s != seq && self.is_movable(index, s, r)).min()?;
        let to = self.home(index, other, from, size).or_else(|| {
            let mut tight = index.tightest(size);
            tight.find(|&r| r != from && self.usable(index, r) >= size)
        })?;
        Some(Claim { moves: self.shift(index, other, from, to), region: from, split: false })
    }

    /// Another region with blocks of the sequence that can take so many more.
    fn home(&self, index: &RegionIndex, seq: SeqId, from: RegionId, size: u32) -> Option<RegionId> {
        self.groups.largest(seq, |group, r| group.shared == 0 && r != from && self.usable(index, r) >= size)
    }

    /// All groups of the roomiest region go elsewhere, the largest first, where they fit best.
    fn empty_region(&self, index: &RegionIndex) -> Option<Claim> {
        let region = index.roomiest(1).next()?;
        let mut groups: Vec<_> = self.groups.of_region(region).iter().map(|g| (g.own, g.seq)).collect();
        groups.sort_unstable_by_key(|&(own, seq)| (std::cmp::Reverse(own), seq));
        let movable = groups.iter().all(|&(_, s)| self.is_movable(index, s, region));
        let used = index.blocks_per_region() - index.room(region);
        if !movable || groups.iter().map(|&(own, _)| own).sum::<u32>() != used {
            return None;
        }
        let mut moves = Vec::new();
        let mut given: FxHashMap<RegionId, u32> = FxHashMap::default();
        for (size, seq) in groups {
            let left =
                |r: RegionId| self.usable(index, r).saturating_sub(given.get(&r).copied().unwrap_or(0));
            let fits = |r: RegionId| r != region && left(r) >= size;
            let home = self.groups.largest(seq, |group, r| group.shared == 0 && fits(r));
            let to = home.or_else(|| index.tightest(size).find(|&r| fits(r)))?;
            let skip = given.entry(to).or_default();
            let targets = self.targets(index, to).skip(*skip as usize);
            moves.extend(self.groups.blocks(seq, region).zip(targets).map(|(from, to)| Move {
                seq,
                from,
                to,
            }));
            *skip += size;
        }
        Some(Claim { moves, region, split: true })
    }

    /// Verifies what is known of the groups against the tables.
    pub(crate) fn check(&self, tables: &FxHashMap<SeqId, Table>, references: &[u32]) -> Result<()> {
        self.groups.check(tables, references)
    }
}
