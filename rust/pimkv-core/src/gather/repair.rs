//! Repair: the moves between two steps that remove the most pairs per copy.

use std::cmp::Reverse;

use super::{Gather, Move, Repair};
use crate::alloc::RegionIndex;
use crate::{RegionId, SeqId};

/// Sequences that one repair looks at.
const LOOKED_AT: usize = 64;

impl Gather {
    /// The sequences that one repair looks at: the next few with more pairs than they need, so that a step
    /// costs the same however many there are.
    pub(crate) fn next_scattered(&mut self) -> Vec<SeqId> {
        let seqs = self.groups.scattered(self.cursor, LOOKED_AT);
        self.cursor = seqs.last().map_or(SeqId(0), |seq| SeqId(seq.0.wrapping_add(1)));
        seqs
    }

    /// The best repair of at most `budget` copies: most pairs per copy, then most pairs, then the earliest of
    /// the sequences; `None` if none removes a pair.
    pub(crate) fn repair(&self, index: &RegionIndex, seqs: &[SeqId], budget: u32) -> Option<Repair> {
        let mut best: Option<Repair> = None;
        for &seq in seqs.iter().filter(|&&seq| self.groups.excess(seq) > 0) {
            for repair in [self.fill_own(index, seq), self.merge(index, seq, budget)].into_iter().flatten() {
                if repair.moves.len() as u32 <= budget && best.as_ref().is_none_or(|b| repair.beats(b)) {
                    best = Some(repair);
                }
            }
        }
        best
    }

    /// The smallest group that fits into the free ids of the sequence's other regions goes there: into one
    /// of them if one holds it, else spread over them, the largest groups first.
    fn fill_own(&self, index: &RegionIndex, seq: SeqId) -> Option<Repair> {
        let all = self.groups.fragments(seq).iter().filter_map(|&r| Some((self.groups.group(seq, r)?, r)));
        let mut homes: Vec<_> =
            all.filter(|(g, _)| g.shared == 0).map(|(g, r)| (Reverse(g.own), r)).collect();
        homes.sort_unstable();
        let homes: Vec<_> = homes.into_iter().map(|(_, r)| r).collect();
        let usable: Vec<_> = homes.iter().map(|&r| self.usable(index, r)).collect();
        let fragments = self.fragments(index, seq);
        let (from, to): (_, Vec<RegionId>) = fragments.into_iter().find_map(|(size, from)| {
            let others = || homes.iter().zip(&usable).filter(|(r, _)| **r != from);
            if let Some((&one, _)) = others().find(|(_, n)| **n >= size) {
                return Some((from, vec![one]));
            }
            let all: u32 = others().map(|(_, n)| n).sum();
            (all >= size).then(|| (from, others().map(|(&r, _)| r).collect()))
        })?;
        let targets = to.iter().flat_map(|&r| self.targets(index, r));
        let pairs = self.groups.blocks(seq, from).zip(targets);
        Some(Repair { moves: pairs.map(|(from, to)| Move { seq, from, to }).collect(), gain: 1 })
    }

    /// The sequence's smallest groups, two or more, go into the roomiest region that holds them.
    fn merge(&self, index: &RegionIndex, seq: SeqId, budget: u32) -> Option<Repair> {
        let fragments = self.fragments(index, seq);
        let mut best: Option<(u32, u32, RegionId)> = None;
        let mut size = 0;
        for (gain, (own, _)) in (0..).zip(&fragments) {
            size += own;
            if gain == 0 {
                continue;
            }
            if size > budget.min(index.blocks_per_region()) {
                break;
            }
            let mut roomy = index.roomiest(size);
            let Some(to) =
                roomy.find(|&r| self.usable(index, r) >= size && self.groups.group(seq, r).is_none())
            else {
                break;
            };
            let better =
                best.is_none_or(|(g, s, _)| u64::from(gain) * u64::from(s) > u64::from(g) * u64::from(size));
            if better {
                best = Some((gain, size, to));
            }
        }
        let (gain, _, to) = best?;
        let sources = fragments[..=gain as usize].iter().flat_map(|&(_, r)| self.groups.blocks(seq, r));
        let moves = sources.zip(self.targets(index, to)).map(|(from, to)| Move { seq, from, to }).collect();
        Some(Repair { moves, gain })
    }
}

impl Repair {
    fn beats(&self, other: &Self) -> bool {
        let (mine, theirs) = (self.moves.len() as u64, other.moves.len() as u64);
        let (gain, other_gain) = (u64::from(self.gain), u64::from(other.gain));
        gain * theirs > other_gain * mine || (gain * theirs == other_gain * mine && gain > other_gain)
    }
}
