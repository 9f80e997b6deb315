//! `pim-gather`: by itself it is `pim-aware`; what it gathers is planned from the manager's tables.

use super::{Policy, Pool, RegionIndex};
use crate::error::Result;

/// Makes the index that the planner stands on.
pub(super) fn make(pool: Pool) -> Result<Box<dyn Policy>> {
    Ok(Box::new(RegionIndex::new(pool.blocks, pool.blocks_per_region)?))
}
