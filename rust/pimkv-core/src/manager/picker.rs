//! The manager's policy, cloneable, and the log of what it is asked.
//!
//! What is not logged goes through to the policy. Without a log an operation costs one test more.

use crate::alloc::Policy;
use crate::error::Result;
use crate::oplog::{OpLog, Operation};
use crate::{BlockId, Owner};

pub(super) struct Picker {
    policy: Box<dyn Policy>,
    log: Option<Box<OpLog>>,
}

impl Clone for Picker {
    /// The log stays with the original: a run has one.
    fn clone(&self) -> Self {
        Self { policy: self.policy.boxed(), log: None }
    }
}

impl std::ops::Deref for Picker {
    type Target = dyn Policy;

    fn deref(&self) -> &Self::Target {
        &*self.policy
    }
}

impl std::ops::DerefMut for Picker {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.policy
    }
}

impl Picker {
    pub(super) fn new(policy: Box<dyn Policy>) -> Self {
        Self { policy, log: None }
    }

    pub(super) fn log(&self) -> Option<&OpLog> {
        self.log.as_deref()
    }

    pub(super) fn set_log(&mut self, log: Option<Box<OpLog>>) {
        self.log = log;
    }

    /// How many operations the log holds.
    pub(super) fn recorded(&self) -> usize {
        self.log().map_or(0, |log| log.records().len())
    }

    /// Takes the log out, without what came after its first `length` operations.
    pub(super) fn take_log_at(&mut self, length: usize) -> Option<Box<OpLog>> {
        let mut log = self.log.take()?;
        log.truncate(length);
        Some(log)
    }

    /// Notes for what the coming operations are.
    pub(super) fn mark(&mut self, operation: Operation, owner: Owner, block: Option<BlockId>, count: u64) {
        if let Some(log) = &mut self.log {
            log.push(operation, owner, block, count);
        }
    }

    pub(super) fn take(&mut self, owner: Owner) -> Option<BlockId> {
        let block = self.policy.take(owner);
        self.mark(Operation::Take, owner, block, 0);
        block
    }

    /// Takes a block that was planned for the owner.
    pub(super) fn take_at(&mut self, owner: Owner, block: BlockId) -> Result<()> {
        self.policy.take_at(block)?;
        self.mark(Operation::TakeAt, owner, Some(block), 0);
        Ok(())
    }

    pub(super) fn give(&mut self, block: BlockId) -> Result<()> {
        self.policy.give(block)?;
        self.mark(Operation::Give, Owner(0), Some(block), 0);
        Ok(())
    }

    pub(super) fn forget(&mut self, owner: Owner) {
        self.policy.forget(owner);
        self.mark(Operation::Forget, owner, None, 0);
    }

    pub(super) fn plan(&mut self, owner: Owner, blocks: u64) {
        self.policy.plan(owner, blocks);
        self.mark(Operation::Plan, owner, None, blocks);
    }

    pub(super) fn reserve(&mut self, owner: Owner, usable: u32, held_back: u32) -> Result<bool> {
        let answer = self.policy.reserve(owner, usable, held_back)?;
        if let Some(log) = &mut self.log {
            log.push_reserve(owner, usable, held_back, answer);
        }
        Ok(answer)
    }

    pub(super) fn feed(&mut self, indices: &[u32]) -> Result<()> {
        self.policy.feed(indices)?;
        for &index in indices {
            self.mark(Operation::Draw, Owner(0), None, index.into());
        }
        Ok(())
    }

    pub(super) fn compact(&mut self, most_used: u32) -> Result<Vec<(BlockId, BlockId)>> {
        let moves = self.policy.compact(most_used)?;
        self.mark(Operation::Compact, Owner(0), None, most_used.into());
        for &(source, target) in &moves {
            self.mark(Operation::Relocate, Owner(0), Some(source), target.0.into());
        }
        Ok(moves)
    }
}
