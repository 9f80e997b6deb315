//! Relocation: carries out what the planner of a policy has planned, and counts it.

use super::BlockManager;
use crate::error::{Error, Result};
use crate::gather::{Move, Purpose};
use crate::oplog::Operation;
use crate::{BlockId, Owner, SeqId};

/// Blocks moved so far, and what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relocations {
    /// Moved so that a growing sequence needs no further region.
    pub growth: u64,
    /// Moved by repair.
    pub repair: u64,
    /// Claims that had to go to one more region than the sequence's blocks need.
    pub splits: u64,
    /// (sequence, region) pairs that repair removed.
    pub pairs_removed: u64,
}

impl BlockManager {
    /// What has been relocated so far.
    #[must_use]
    pub fn relocations(&self) -> Relocations {
        self.relocations
    }

    /// A block for a sequence; the planner of the policy, if it has one, chooses where and what to move.
    pub(super) fn claim(&mut self, seq: SeqId, purpose: Purpose) -> Result<Option<BlockId>> {
        let Some((gather, index)) = self.gather.as_deref().zip(self.policy.index()) else {
            return Ok(self.take(seq.into()));
        };
        let Some(claim) = gather.claim(index, seq, purpose) else {
            return Ok(None);
        };
        self.relocate(&claim.moves)?;
        self.relocations.growth += claim.moves.len() as u64;
        self.relocations.splits += u64::from(claim.split && purpose != Purpose::Branch);
        let Some((gather, index)) = self.gather.as_deref().zip(self.policy.index_mut()) else {
            return Ok(None);
        };
        index.set_current(seq.into(), claim.region);
        let chosen = match purpose {
            Purpose::Copy => gather.targets(index, claim.region).next(),
            Purpose::Table | Purpose::Branch => index.free_ids(claim.region).next(),
        };
        // Where all that is free is part of the set, a copy on write comes after it in order.
        let Some(block) = chosen.or_else(|| index.free_ids(claim.region).next()) else {
            return Ok(None);
        };
        self.policy.take_at(seq.into(), block)?;
        self.hand_out(block);
        Ok(Some(block))
    }

    /// Moves at most `budget` blocks between two steps so that sequences lie in fewer regions; the number
    /// of moves.
    pub fn repair(&mut self, budget: u32) -> Result<u32> {
        let refused = || Error::invalid("kind", "this policy", "only pim-gather repairs");
        let seqs = self.gather.as_mut().ok_or_else(refused)?.next_scattered();
        let mut left = budget;
        loop {
            let (gather, index) = self.gather.as_deref().zip(self.policy.index()).ok_or_else(refused)?;
            let Some(repair) = gather.repair(index, &seqs, left) else {
                self.relocations.repair += u64::from(budget - left);
                return Ok(budget - left);
            };
            self.relocate(&repair.moves)?;
            self.relocations.pairs_removed += u64::from(repair.gain);
            left -= repair.moves.len() as u32;
        }
    }

    /// Makes the moves: tables, counts, policy and groups follow, and the copies are recorded.
    fn relocate(&mut self, moves: &[Move]) -> Result<()> {
        for &Move { seq, from, to } in moves {
            let table = self.tables.get_mut(&seq).ok_or(Error::UnknownSequence(seq))?;
            let Some(place) = table.blocks.iter().rposition(|&b| b == from) else {
                return Err(Error::BrokenInvariant(format!("sequence {seq} does not hold block {from}")));
            };
            self.policy.mark(Operation::Relocate, seq.into(), Some(from), to.0.into());
            self.policy.take_at(seq.into(), to)?;
            self.policy.give(from)?;
            table.blocks[place] = to;
            table.edits.note(place);
            self.references[to.index()] = std::mem::take(&mut self.references[from.index()]);
            self.copies.push((from, to));
            let (Some(gather), Some(index)) = (&mut self.gather, self.policy.index_mut()) else { continue };
            gather.groups.leave(seq, from, 0);
            gather.groups.join(seq, to);
            gather.touch(index, from, to);
            let (owner, source) = (Owner::from(seq), index.region_of(from));
            if index.current(owner) == Some(source) {
                index.set_current(owner, index.region_of(to));
            }
        }
        Ok(())
    }
}
