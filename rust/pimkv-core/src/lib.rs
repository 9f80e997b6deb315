//! Row-aware paged KV-cache allocation and the DRAM model that scores it: the vocabulary, and the
//! map of the modules.
//!
//! Data flows one way: a [`manager::BlockManager`] owns block tables and asks an [`alloc::Policy`]
//! for block ids; a [`scorer::Scorer`] reads the tables, places their bytes with a
//! [`dram::AddressMap`] and counts all-bank commands with the [`grouper`]; where requests own whole row groups
//! of a channel, a [`row_groups::RowGroupScorer`] counts them from the lengths.
//!
//! Nothing here knows Python, does I/O or draws a random number; all figures are exact integers.
#![forbid(unsafe_code)]

use std::fmt;

pub mod alloc;
pub mod controller;
pub mod dram;
mod error;
pub mod gather;
pub mod grouper;
mod lane;
pub mod manager;
pub mod oplog;
pub mod reading;
pub mod row_groups;
pub mod scorer;
pub mod timing;

pub use error::{Error, Result};
pub use lane::Timed;

/// A block of the KV pool; its number is its place in linear memory, in units of the block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// A region: the blocks that share one row index in every bank of every channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u32);

/// A sequence of the serving engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId(pub u32);

/// Whom a policy keeps affinity for: a sequence, or a key such as a prefix or the scratch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u64);

impl Owner {
    /// The key under which speculation branches are taken when they are kept apart.
    pub const SCRATCH: Self = Self(1 << 41);

    /// The key of a shared prefix.
    #[must_use]
    pub fn prefix(key: u32) -> Self {
        Self((1 << 40) + u64::from(key))
    }
}

impl From<SeqId> for Owner {
    fn from(seq: SeqId) -> Self {
        Self(u64::from(seq.0))
    }
}

impl BlockId {
    /// The id as an index.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

macro_rules! display_as_number {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
display_as_number!(BlockId, RegionId, SeqId, Owner);
