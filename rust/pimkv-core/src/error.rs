//! The one error enum of the core.

use crate::{BlockId, SeqId};

/// Why a call was refused. The state is as it was before the call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A block was given back that is already free, or twice in one call.
    #[error("block {0} is already free: it can be given back only once")]
    DoubleFree(BlockId),
    /// A block id that the pool does not have.
    #[error("block {block} is not one of the pool's: allowed 0 <= block < {blocks}")]
    ForeignBlock {
        /// The id as it was passed.
        block: i64,
        /// Number of blocks in the pool.
        blocks: u32,
    },
    /// A sequence without a block table.
    #[error("sequence {0} has no block table here")]
    UnknownSequence(SeqId),
    /// A sequence that already has a block table.
    #[error("sequence {0} already has a block table")]
    DuplicateSequence(SeqId),
    /// An argument outside its range.
    #[error("{name} = {value}: {allowed}")]
    InvalidArgument {
        /// The argument's name.
        name: &'static str,
        /// Its value as text.
        value: String,
        /// What it may be.
        allowed: String,
    },
    /// An operation log that is damaged, foreign or not to be replayed here.
    #[error("operation log, offset {offset}: {what}")]
    BadLog {
        /// Byte of the log at which it shows.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// `check` found the state inconsistent: a defect of this crate.
    #[error("broken invariant: {0}")]
    BrokenInvariant(String),
}

impl Error {
    /// An [`Error::InvalidArgument`].
    pub fn invalid(name: &'static str, value: impl std::fmt::Display, allowed: impl Into<String>) -> Self {
        Self::InvalidArgument { name, value: value.to_string(), allowed: allowed.into() }
    }
}

/// `Result` with the core's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// `Ok` if `condition`, else a [`Error::BrokenInvariant`] that says `what`.
pub(crate) fn ensure(condition: bool, what: impl FnOnce() -> String) -> Result<()> {
    if condition { Ok(()) } else { Err(Error::BrokenInvariant(what())) }
}
