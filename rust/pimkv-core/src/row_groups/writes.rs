//! What requests write into their pages: a token's K goes to one bank, its V to a burst of every dimension.

use rustc_hash::FxHashMap;

use super::page::Shape;
use crate::SeqId;
use crate::scorer::Written;

/// Tokens of each request that are written, and what that took.
#[derive(Debug, Default)]
pub(super) struct Writes {
    seen: FxHashMap<SeqId, u64>,
    totals: Written,
}

impl Writes {
    pub(super) fn totals(&self) -> Written {
        self.totals
    }

    pub(super) fn forget(&mut self, seq: SeqId) {
        self.seen.remove(&seq);
    }

    /// Counts what a request of so many tokens has written since it was seen last.
    pub(super) fn add(&mut self, shape: &Shape, seq: SeqId, tokens: u64) {
        let from = self.seen.insert(seq, tokens).unwrap_or(0).min(tokens);
        self.totals.tokens += tokens - from;
        for sheet in shape.sheets() {
            let mut token = from;
            while token < tokens {
                let first = token % sheet.tokens;
                let end = (first + tokens - token).min(sheet.tokens);
                let (bursts, activations) = sheet.written(first, end);
                self.totals.bursts += bursts;
                self.totals.activations += activations;
                token += end - first;
            }
        }
    }
}
