//! The published round of speculative decoding: branches of fresh blocks, one adopted, the rest given back.

use rustc_hash::FxHashMap;

use super::BlockManager;
use crate::error::{Error, Result};
use crate::gather::Purpose;
use crate::oplog::Operation;
use crate::{BlockId, Owner, SeqId};

/// How the chosen branch joins the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopt {
    /// Its blocks replace the partial tail block and join the table.
    Splice,
    /// The sequence grows its own table and the tokens are copied into it.
    CopyBack,
}

/// The shape of a round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Branches.
    pub width: u32,
    /// Tokens that each branch drafts, beside the one that is always accepted.
    pub depth: u32,
    /// How the chosen branch joins.
    pub adopt: Adopt,
    /// Branch blocks are taken under the scratch key and not under the sequence's own.
    pub separate: bool,
}

/// What a call of [`BlockManager::speculate`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Speculated {
    /// Index of the sequence that found no block, or the number of sequences.
    pub done: usize,
    /// Tokens appended per sequence of the call; 0 where none were.
    pub advanced: Vec<u64>,
    /// Turns that had no blocks for branches and decoded plainly.
    pub stalls: u64,
    /// Tokens copied into branches and back.
    pub copied_tokens: u64,
}

/// A sequence's turn that still has to grow its own table.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    advance: u64,
    /// Held until the growth is done; none in a stall.
    branches: Vec<Vec<BlockId>>,
}

impl Turn {
    pub(super) fn branches(&self) -> impl Iterator<Item = &BlockId> {
        self.branches.iter().flatten()
    }

    pub(super) fn relocate(&mut self, target: &FxHashMap<BlockId, BlockId>) {
        for block in self.branches.iter_mut().flatten() {
            *block = target.get(block).copied().unwrap_or(*block);
        }
    }

    pub(super) fn into_branches(self) -> impl Iterator<Item = BlockId> {
        self.branches.into_iter().flatten()
    }
}

impl BlockManager {
    /// Plays one round for each sequence from `start` on, in order: with fewer than
    /// `width * ceil((r + depth + 1) / block_tokens)` blocks free (r tokens in the partial tail
    /// block) a plain token, else branches of which `picks[i]` is adopted with `advances[i]` tokens.
    ///
    /// Stops at a sequence that finds no block, as `grow` does; a call that starts there resumes.
    pub fn speculate(
        &mut self,
        seqs: &[SeqId],
        advances: &[u64],
        picks: &[u32],
        round: &Round,
        start: usize,
    ) -> Result<Speculated> {
        self.refuse_if_reserving("speculate")?;
        self.validate(seqs, advances, picks, round, start)?;
        self.atomically(|m| {
            let mut outcome = Speculated { advanced: vec![0; seqs.len()], ..Speculated::default() };
            for i in start..seqs.len() {
                let Some(tokens) = m.turn(seqs[i], advances[i], picks[i], round, &mut outcome)? else {
                    outcome.done = i;
                    return Ok(outcome);
                };
                outcome.advanced[i] = tokens;
            }
            outcome.done = seqs.len();
            Ok(outcome)
        })
    }

    fn validate(
        &self,
        seqs: &[SeqId],
        advances: &[u64],
        picks: &[u32],
        round: &Round,
        start: usize,
    ) -> Result<()> {
        if round.width == 0 {
            return Err(Error::invalid("width", round.width, "allowed 1 and up"));
        }
        for (name, given) in [("advances", advances.len()), ("picks", picks.len())] {
            if given != seqs.len() {
                return Err(Error::invalid(name, given, format!("one per sequence, {}", seqs.len())));
            }
        }
        if start > seqs.len() {
            return Err(Error::invalid("start", start, format!("allowed 0 to {}", seqs.len())));
        }
        for i in start..seqs.len() {
            let table = self.table(seqs[i])?;
            if round.adopt == Adopt::Splice && table.turn.is_none() && self.is_growing(table) {
                return Err(Error::invalid(
                    "seqs",
                    seqs[i],
                    "splice needs a table without a growth that waits",
                ));
            }
            if !(1..=u64::from(round.depth) + 1).contains(&advances[i]) {
                let most = format!("allowed 1 to depth + 1 = {}", u64::from(round.depth) + 1);
                return Err(Error::invalid("advances", advances[i], most));
            }
            if picks[i] >= round.width {
                return Err(Error::invalid("picks", picks[i], format!("allowed 0 to {}", round.width - 1)));
            }
        }
        Ok(())
    }

    /// One sequence's turn: the tokens appended, or `None` if it found no block.
    fn turn(
        &mut self,
        seq: SeqId,
        advance: u64,
        pick: u32,
        round: &Round,
        outcome: &mut Speculated,
    ) -> Result<Option<u64>> {
        if self.table(seq)?.turn.is_none() {
            let tail = self.table(seq)?.tokens % u64::from(self.block_tokens);
            let per_branch = self.blocks_for(tail + u64::from(round.depth) + 1);
            let mut branches = Vec::new();
            if u64::from(self.free_blocks()) < u64::from(round.width).saturating_mul(per_branch) {
                outcome.stalls += 1;
            } else {
                self.policy.mark(Operation::Speculate, seq.into(), None, round.width.into());
                for _ in 0..round.width {
                    let mut branch = Vec::new();
                    for _ in 0..per_branch {
                        let taken = if round.separate {
                            self.take(Owner::SCRATCH)
                        } else {
                            self.claim(seq, Purpose::Branch)?
                        };
                        // Enough are free: only a draw that was not fed can be missing, and undoes the call.
                        let Some(block) = taken else { return Ok(None) };
                        branch.push(block);
                    }
                    branches.push(branch);
                }
                outcome.copied_tokens += u64::from(round.width) * tail;
                if round.adopt == Adopt::Splice {
                    self.splice(seq, advance, pick as usize, branches)?;
                    return Ok(Some(advance));
                }
            }
            let advance = if branches.is_empty() { 1 } else { advance };
            self.table_mut(seq)?.turn = Some(Box::new(Turn { advance, branches }));
        }
        self.finish_turn(seq, outcome)
    }

    /// Grows the table of a waiting turn, then gives its branches back in order.
    fn finish_turn(&mut self, seq: SeqId, outcome: &mut Speculated) -> Result<Option<u64>> {
        let Some(turn) = self.table_mut(seq)?.turn.take() else {
            return Ok(Some(0));
        };
        let advance = turn.advance;
        if !self.append(seq, advance)? {
            self.table_mut(seq)?.turn = Some(turn);
            return Ok(None);
        }
        if !turn.branches.is_empty() {
            outcome.copied_tokens += advance;
        }
        for block in turn.into_branches() {
            self.drop_reference(block)?;
        }
        Ok(Some(advance))
    }

    /// Puts the chosen branch in place of the partial tail block and gives the rest back.
    fn splice(
        &mut self,
        seq: SeqId,
        advance: u64,
        pick: usize,
        mut branches: Vec<Vec<BlockId>>,
    ) -> Result<()> {
        let tail = self.table(seq)?.tokens % u64::from(self.block_tokens);
        if tail > 0
            && let Some(old) = self.table_mut(seq)?.blocks.pop()
        {
            self.drop_from(seq, old)?;
            self.cow_copies += 1;
        }
        let rest = branches[pick].split_off(self.blocks_for(tail + advance) as usize);
        let chosen = std::mem::take(&mut branches[pick]);
        let table = self.table_mut(seq)?;
        if tail > 0 {
            table.edits.note(table.blocks.len());
        }
        table.tokens += advance;
        for block in chosen {
            self.append_block(seq, block)?;
        }
        for block in rest.into_iter().chain(branches.into_iter().flatten()) {
            self.drop_reference(block)?;
        }
        Ok(())
    }
}
