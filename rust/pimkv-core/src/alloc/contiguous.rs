//! `contiguous`: one span per owner, first fit at the lowest address; spans merge when they are freed.
//!
//! An owner reserves its span once and takes its ids in order. A block given back is free at once;
//! what the owner never took is freed when it is forgotten.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{Policy, Pool, Taken};
use crate::error::{Error, Result, ensure};
use crate::{BlockId, Owner};

/// Makes the policy.
pub(super) fn make(pool: Pool) -> Result<Box<dyn Policy>> {
    Ok(Box::new(Contiguous::new(pool.blocks)))
}

/// First-fit spans.
#[derive(Clone, Debug)]
struct Contiguous {
    /// Free extents by first id: never empty, never adjacent.
    extents: BTreeMap<u32, u32>,
    /// What owners have reserved and not yet taken.
    spans: FxHashMap<Owner, Span>,
    free: u32,
    taken: Taken,
}

/// The ids `next..usable` are the owner's to take, `usable..end` are held back for it.
#[derive(Clone, Copy, Debug)]
struct Span {
    next: u32,
    usable: u32,
    end: u32,
}

impl Contiguous {
    /// A pool of `blocks` free blocks.
    fn new(blocks: u32) -> Self {
        Self {
            extents: BTreeMap::from([(0, blocks)]),
            spans: FxHashMap::default(),
            free: blocks,
            taken: Taken::new(blocks),
        }
    }

    fn release(&mut self, mut start: u32, mut length: u32) {
        if length == 0 {
            return;
        }
        self.free += length;
        if let Some((&before, &n)) = self.extents.range(..start).next_back()
            && before + n == start
        {
            self.extents.remove(&before);
            (start, length) = (before, n + length);
        }
        if let Some(n) = self.extents.remove(&(start + length)) {
            length += n;
        }
        self.extents.insert(start, length);
    }
}

impl Policy for Contiguous {
    fn take(&mut self, owner: Owner) -> Option<BlockId> {
        let span = self.spans.get_mut(&owner).filter(|span| span.next < span.usable)?;
        let block = BlockId(span.next);
        span.next += 1;
        self.taken.take(block);
        Some(block)
    }

    fn give(&mut self, block: BlockId) -> Result<()> {
        self.taken.give(block)?;
        self.release(block.0, 1);
        Ok(())
    }

    fn forget(&mut self, owner: Owner) {
        if let Some(Span { next, end, .. }) = self.spans.remove(&owner) {
            self.release(next, end - next);
        }
    }

    fn reserves(&self) -> bool {
        true
    }

    fn reserve(&mut self, owner: Owner, usable: u32, held_back: u32) -> Result<bool> {
        if usable == 0 && held_back == 0 {
            return Err(Error::invalid("n", 0, "allowed 1 and up"));
        }
        if self.spans.contains_key(&owner) {
            return Err(Error::invalid("owner", owner, "one span at a time; it holds one"));
        }
        let Some(blocks) = usable.checked_add(held_back).filter(|&n| n <= self.blocks()) else {
            return Ok(false);
        };
        let Some((&start, &length)) = self.extents.iter().find(|&(_, &n)| n >= blocks) else {
            return Ok(false);
        };
        self.extents.remove(&start);
        if length > blocks {
            self.extents.insert(start + blocks, length - blocks);
        }
        self.free -= blocks;
        self.spans.insert(owner, Span { next: start, usable: start + usable, end: start + blocks });
        Ok(true)
    }

    fn blocks(&self) -> u32 {
        self.taken.len()
    }

    fn free_blocks(&self) -> u32 {
        self.free
    }

    fn is_taken(&self, block: BlockId) -> bool {
        self.taken.contains(block)
    }

    fn bookkeeping_bytes(&self) -> usize {
        self.extents.len() * 2 * size_of::<u32>()
            + self.spans.capacity() * size_of::<(Owner, Span)>()
            + self.taken.bytes()
    }

    fn boxed(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn check(&self) -> Result<()> {
        let mut end = None;
        for (&start, &length) in &self.extents {
            ensure(length > 0 && end.is_none_or(|e| start > e), || {
                format!("extent at {start} is empty, overlaps or should have merged")
            })?;
            end = Some(start + length);
        }
        ensure(self.extents.values().sum::<u32>() == self.free, || "free count is off".into())?;
        let spans = self.spans.values().map(|span| (span.next, span.end));
        let extents = self.extents.iter().map(|(&start, &length)| (start, start + length));
        self.taken.check_free(extents.chain(spans).flat_map(|(start, end)| (start..end).map(BlockId)))
    }
}
