//! `neupims`: whole row groups of one channel per request, taken from the front of that channel's queue.
//!
//! A block is a row group: one row index in all banks of one channel. The pool's regions are the channels:
//! channel `c` owns the ids `c * rows .. (c + 1) * rows`.
//!
//! What the source (`NeuPIMs`, ASPLOS 2024, public simulator) states: free rows of a channel are a queue, popped
//! at the front and pushed at the back; a request lives on one channel for good and takes rows as its K and
//! V pages fill; new requests go, greedily, to the channel with the least estimated attention time. It neither
//! evicts nor says what happens when a channel runs dry. Our minimal model: a request is promised what its
//! final length takes, on the channel with the most row groups that are not promised (the lowest on ties; what
//! a channel has promised is what its requests will read), and claims it row group by row group; one that no
//! channel can promise anything waits.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::{Policy, Pool, Taken};
use crate::error::{Error, Result, ensure};
use crate::{BlockId, Owner};

/// Makes the policy.
pub(super) fn make(pool: Pool) -> Result<Box<dyn Policy>> {
    Ok(Box::new(Neupims::new(pool.blocks, pool.blocks_per_region)?))
}

/// A queue of free row groups per channel, and what of them is promised to whom.
#[derive(Clone, Debug)]
struct Neupims {
    channels: Vec<Channel>,
    /// Row groups of a channel.
    rows: u32,
    promises: FxHashMap<Owner, Promise>,
    taken: Taken,
}

#[derive(Clone, Debug)]
struct Channel {
    free: VecDeque<BlockId>,
    /// Free row groups that nobody has been promised.
    unpromised: u32,
}

/// What an owner may still claim of its channel, and what is only kept free for it.
#[derive(Clone, Copy, Debug)]
struct Promise {
    channel: usize,
    left: u32,
    held_back: u32,
}

impl Neupims {
    /// `blocks` free row groups in channels of `rows`.
    fn new(blocks: u32, rows: u32) -> Result<Self> {
        if !blocks.is_multiple_of(rows) {
            let whole = format!("a multiple of blocks_per_region, {rows}: the row groups of a channel");
            return Err(Error::invalid("blocks", blocks, whole));
        }
        let channel =
            |c| Channel { free: (c * rows..(c + 1) * rows).map(BlockId).collect(), unpromised: rows };
        Ok(Self {
            channels: (0..blocks / rows).map(channel).collect(),
            rows,
            promises: FxHashMap::default(),
            taken: Taken::new(blocks),
        })
    }
}

impl Policy for Neupims {
    fn take(&mut self, owner: Owner) -> Option<BlockId> {
        let promise = self.promises.get_mut(&owner).filter(|promise| promise.left > 0)?;
        let block = self.channels[promise.channel].free.pop_front()?;
        promise.left -= 1;
        self.taken.take(block);
        Some(block)
    }

    fn give(&mut self, block: BlockId) -> Result<()> {
        self.taken.give(block)?;
        let channel = &mut self.channels[(block.0 / self.rows) as usize];
        channel.free.push_back(block);
        channel.unpromised += 1;
        Ok(())
    }

    fn forget(&mut self, owner: Owner) {
        if let Some(Promise { channel, left, held_back }) = self.promises.remove(&owner) {
            self.channels[channel].unpromised += left + held_back;
        }
    }

    fn reserves(&self) -> bool {
        true
    }

    fn reserve(&mut self, owner: Owner, usable: u32, held_back: u32) -> Result<bool> {
        if usable == 0 && held_back == 0 {
            return Err(Error::invalid("n", 0, "allowed 1 and up"));
        }
        if self.promises.contains_key(&owner) {
            return Err(Error::invalid("owner", owner, "one promise at a time; it holds one"));
        }
        let Some(wanted) = usable.checked_add(held_back) else {
            return Ok(false);
        };
        // Of equals `rev` leaves the lowest channel to be the last, which is the one that `max_by_key` keeps.
        let roomiest = self.channels.iter_mut().enumerate().rev().max_by_key(|(_, c)| c.unpromised);
        let Some((index, channel)) = roomiest.filter(|(_, c)| c.unpromised >= wanted) else {
            return Ok(false);
        };
        channel.unpromised -= wanted;
        self.promises.insert(owner, Promise { channel: index, left: usable, held_back });
        Ok(true)
    }

    fn blocks(&self) -> u32 {
        self.taken.len()
    }

    fn free_blocks(&self) -> u32 {
        self.channels.iter().map(|channel| channel.unpromised).sum()
    }

    fn is_taken(&self, block: BlockId) -> bool {
        self.taken.contains(block)
    }

    fn bookkeeping_bytes(&self) -> usize {
        let queue = |channel: &Channel| size_of::<Channel>() + channel.free.capacity() * size_of::<BlockId>();
        self.channels.iter().map(queue).sum::<usize>()
            + self.promises.capacity() * size_of::<(Owner, Promise)>()
            + self.taken.bytes()
    }

    fn boxed(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn check(&self) -> Result<()> {
        self.taken.check_free(self.channels.iter().flat_map(|channel| channel.free.iter().copied()))?;
        let mut promised = vec![0_u64; self.channels.len()];
        for promise in self.promises.values() {
            promised[promise.channel] += u64::from(promise.left) + u64::from(promise.held_back);
        }
        for (index, (channel, promised)) in self.channels.iter().zip(promised).enumerate() {
            let foreign = channel.free.iter().find(|block| (block.0 / self.rows) as usize != index);
            ensure(foreign.is_none(), || format!("channel {index} lists a foreign row group: {foreign:?}"))?;
            ensure(u64::from(channel.unpromised) + promised == channel.free.len() as u64, || {
                let (free, unpromised) = (channel.free.len(), channel.unpromised);
                format!("channel {index}: {free} free, {unpromised} unpromised and {promised} promised")
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_stays_in_the_channel_that_promised_it_most() -> Result<()> {
        let mut policy = Neupims::new(12, 4)?;
        let (one, two, three, four) = (Owner(1), Owner(2), Owner(3), Owner(4));
        // Of equals the lowest channel; then those that nothing is promised of.
        assert!(policy.reserve(one, 2, 1)? && policy.reserve(two, 3, 0)? && policy.reserve(three, 4, 0)?);
        let mut take = |owner| policy.take(owner).map(|block| block.0);
        assert_eq!([take(one), take(two), take(one), take(three)], [Some(0), Some(4), Some(1), Some(8)]);
        // What is held back for an owner is nobody's to take, and no promise reaches over two channels.
        assert_eq!(take(one), None);
        assert_eq!(take(four), None);
        assert!(!policy.reserve(four, 2, 0)?);
        assert_eq!(policy.free_blocks(), 2);
        // Freed row groups wait behind those that are there.
        policy.give(BlockId(0))?;
        policy.forget(one);
        assert!(policy.reserve(four, 3, 0)?);
        let ids: Vec<_> = (0..4).map_while(|_| policy.take(four)).map(|block| block.0).collect();
        assert_eq!(ids, [2, 3, 0]);
        policy.check()
    }

    #[test]
    fn what_cannot_be_is_refused_and_changes_nothing() -> Result<()> {
        assert!(Neupims::new(9, 4).is_err());
        let mut policy = Neupims::new(8, 4)?;
        assert!(policy.reserve(Owner(1), 2, 0)?);
        assert!(policy.reserve(Owner(1), 1, 0).is_err());
        assert!(policy.reserve(Owner(2), 0, 0).is_err());
        assert!(!policy.reserve(Owner(2), u32::MAX, u32::MAX)?);
        assert_eq!(policy.give(BlockId(0)), Err(Error::DoubleFree(BlockId(0))));
        assert_eq!(policy.free_blocks(), 6);
        policy.check()
    }
}
