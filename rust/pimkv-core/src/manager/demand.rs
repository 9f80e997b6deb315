//! How many blocks tokens take: one kind of block for K and V together, or pages of each.

use crate::error::{Error, Result};

/// A page: the tokens it holds and the blocks it is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Tokens.
    pub tokens: u32,
    /// Blocks.
    pub blocks: u32,
}

/// What a sequence asks of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// A block for so many tokens, K and V alike.
    Blocks(u32),
    /// Pages of K and pages of V. A table holds their blocks in the order of the claims; a claim for both
    /// takes those of K first.
    Pages([Page; 2]),
}

impl From<u32> for Demand {
    /// Blocks of so many tokens.
    fn from(block_tokens: u32) -> Self {
        Self::Blocks(block_tokens)
    }
}

impl Demand {
    /// Refuses blocks and pages of nothing.
    pub(super) fn validate(self) -> Result<Self> {
        match self {
            Self::Blocks(0) => Err(Error::invalid("block_tokens", 0, "allowed 1 and up")),
            Self::Pages(pages) if pages.iter().any(|page| page.tokens == 0 || page.blocks == 0) => {
                let given = pages.map(|page| format!("({}, {})", page.tokens, page.blocks)).join(", ");
                Err(Error::invalid("pages", given, "(tokens, blocks) of a K and of a V page, 1 and up each"))
            }
            demand => Ok(demand),
        }
    }

    /// Blocks that `tokens` tokens take.
    #[must_use]
    pub fn blocks_for(self, tokens: u64) -> u64 {
        match self {
            Self::Blocks(held) => tokens.div_ceil(u64::from(held)),
            Self::Pages(pages) => pages
                .iter()
                .map(|page| tokens.div_ceil(u64::from(page.tokens)).saturating_mul(page.blocks.into()))
                .fold(0, u64::saturating_add),
        }
    }

    /// Whether so many blocks hold `tokens` tokens.
    pub(super) fn fits(self, tokens: u64, blocks: u64) -> bool {
        match self {
            // A product and not a quotient: growth asks this for every token.
            Self::Blocks(held) => tokens <= blocks * u64::from(held),
            Self::Pages(_) => self.blocks_for(tokens) <= blocks,
        }
    }

    /// Tokens of a block, or of a K page.
    #[must_use]
    pub fn block_tokens(self) -> u32 {
        match self {
            Self::Blocks(held) => held,
            Self::Pages([k, _]) => k.tokens,
        }
    }
}
