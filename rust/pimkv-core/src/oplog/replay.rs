//! Replays a log against a policy: once to check every id, then as often as wanted between clock reads.
//!
//! The checking pass translates the recorded ids into those that this policy hands out, so that the timed
//! passes only call it. The clock is the caller's; the cost of the loop around the policy is that of the
//! same pass over [`Null`].

use super::{NO_BLOCK, OpLog, Operation, Record};
use crate::alloc::Policy;
use crate::error::{Error, Result};
use crate::{BlockId, Owner};

/// Operations of a batch.
pub const BATCH: usize = 256;

/// For what an operation was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Tag {
    /// Takes of an admission, with its plan and its reservation.
    Admit = 0,
    /// Takes of a growth.
    Grow = 1,
    /// Takes of speculation branches.
    Branch = 2,
    /// Other takes: prefixes, copies on write.
    Take = 3,
    /// Gives of a release, with the forgetting of its owner.
    Release = 4,
    /// Other gives: branches, replaced blocks.
    Give = 5,
    /// Compaction.
    Compact = 6,
}

impl Tag {
    /// Names of the tags, by number.
    pub const NAMES: [&str; 7] = ["admit", "grow", "branch", "take", "release", "give", "compact"];
}

/// Where two clock reads go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// Every [`BATCH`] operations, whatever they are.
    Mixed,
    /// Around every run of operations of one tag, of at most [`BATCH`].
    Apart,
}

/// Operations between two clock reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The first operation.
    pub start: usize,
    /// After the last one.
    pub end: usize,
    /// What they are; of a mixed batch, what the first one is.
    pub tag: Tag,
    /// Whether no region is wholly free at any of them.
    pub worst: bool,
}

/// One call of the policy.
#[derive(Clone, Copy, Debug)]
struct Call {
    owner: Owner,
    /// The block given, the block that a take must answer, or a count.
    block: u32,
    operation: Operation,
    tag: Tag,
    worst: bool,
}

/// A log made ready for one policy.
pub struct Replay {
    start: Box<dyn Policy>,
    calls: Vec<Call>,
    /// (usable, held back, answer) of each reservation.
    reservations: Vec<(u32, u32, bool)>,
    takes: u64,
    same: u64,
    bookkeeping: usize,
}

impl Replay {
    /// Replays `log` against `policy` once, checking. The first `warm_up` records only make the state from
    /// which the timed passes start.
    ///
    /// With `strict` the policy must hand out the recorded ids. A log of another pool size is refused before
    /// anything is replayed; a log that the policy cannot follow, with the offset of the record.
    pub fn new(log: &OpLog, policy: Box<dyn Policy>, strict: bool, warm_up: usize) -> Result<Self> {
        let header = log.header();
        if policy.blocks() != header.blocks {
            let what = format!("the log is of a pool of {} blocks", header.blocks);
            return Err(Error::invalid("blocks", policy.blocks(), what));
        }
        if header.blocks_per_region == 0 {
            return Err(Error::BadLog {
                offset: 20,
                what: "blocks_per_region is 0; allowed 1 and up".into(),
            });
        }
        if warm_up > log.records().len() {
            let most = format!("allowed 0 to {}", log.records().len());
            return Err(Error::invalid("warm_up", warm_up, most));
        }
        let mut checker = Checker::new(log, policy, strict);
        for (index, record) in log.records().iter().enumerate() {
            if index == warm_up {
                checker.begin();
            }
            checker.step(record).map_err(|what| Error::BadLog { offset: OpLog::offset(index), what })?;
        }
        if warm_up == log.records().len() {
            checker.begin();
        }
        Ok(checker.finish())
    }

    /// Number of calls of the policy in a timed pass.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// (takes that found a block, those of them whose id was the recorded one), warm-up included.
    #[must_use]
    pub fn agreement(&self) -> (u64, u64) {
        (self.takes, self.same)
    }

    /// The policy's own structures at their largest, in bytes.
    #[must_use]
    pub fn bookkeeping_bytes(&self) -> usize {
        self.bookkeeping
    }

    /// Where the clock is read in a pass.
    #[must_use]
    pub fn cuts(&self, kinds: Kinds) -> Vec<Timing> {
        let mut cuts: Vec<Timing> = Vec::new();
        for (index, call) in self.calls.iter().enumerate() {
            match cuts.last_mut() {
                Some(cut)
                    if cut.end - cut.start < BATCH && (kinds == Kinds::Mixed || cut.tag == call.tag) =>
                {
                    cut.end += 1;
                    cut.worst &= call.worst;
                }
                _ => cuts.push(Timing { start: index, end: index + 1, tag: call.tag, worst: call.worst }),
            }
        }
        cuts
    }

    /// One pass: the time of each cut, in what the clock counts; over [`Null`] if `null`.
    ///
    /// Refused if the policy answers otherwise than in the checking pass.
    pub fn pass(&self, cuts: &[Timing], null: bool, clock: &mut dyn FnMut() -> u64) -> Result<Vec<u64>> {
        let mut policy = if null { Box::new(Null) } else { self.start.boxed() };
        let mut stamps = Vec::with_capacity(cuts.len() + 1);
        let mut wrong = 0;
        stamps.push(clock());
        for cut in cuts {
            wrong += self.run(&mut *policy, cut);
            stamps.push(clock());
        }
        if wrong > 0 && !null {
            return Err(Error::BrokenInvariant(format!(
                "{wrong} answers differ from those of the first replay"
            )));
        }
        Ok(stamps.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect())
    }

    /// Makes the calls of a cut; how many were answered otherwise than expected.
    #[inline(never)]
    fn run(&self, policy: &mut dyn Policy, cut: &Timing) -> u32 {
        let mut wrong = 0;
        for call in &self.calls[cut.start..cut.end] {
            let right = match call.operation {
                Operation::Take => policy.take(call.owner).map_or(NO_BLOCK, |b| b.0) == call.block,
                Operation::TakeAt => policy.take_at(BlockId(call.block)).is_ok(),
                Operation::Give => policy.give(BlockId(call.block)).is_ok(),
                Operation::Forget => {
                    policy.forget(call.owner);
                    true
                }
                Operation::Plan => {
                    policy.plan(call.owner, call.block.into());
                    true
                }
                Operation::Reserve => {
                    let (usable, held_back, answer) = self.reservations[call.block as usize];
                    policy.reserve(call.owner, usable, held_back) == Ok(answer)
                }
                Operation::Draw => policy.feed(&[call.block]).is_ok(),
                Operation::Compact => policy.compact(call.block).is_ok(),
                _ => true,
            };
            wrong += u32::from(!right);
        }
        wrong
    }
}

/// The checking pass.
struct Checker {
    policy: Box<dyn Policy>,
    strict: bool,
    /// The policy follows the plans of the recorded one.
    planned: bool,
    blocks_per_region: u32,
    /// Recorded id -> this policy's, of blocks in use.
    ids: Vec<u32>,
    /// Taken blocks per region, and how many regions have none.
    used: Vec<u32>,
    empty: usize,
    context: Option<Operation>,
    /// Moves of a compaction that the coming records must repeat.
    moves: std::collections::VecDeque<(BlockId, BlockId)>,
    replay: Replay,
}

impl Checker {
    fn new(log: &OpLog, policy: Box<dyn Policy>, strict: bool) -> Self {
        let header = log.header();
        let regions = header.blocks.div_ceil(header.blocks_per_region) as usize;
        let replay = Replay {
            start: policy.boxed(),
            calls: Vec::with_capacity(log.records().len()),
            reservations: Vec::new(),
            takes: 0,
            same: 0,
            bookkeeping: policy.bookkeeping_bytes(),
        };
        Self {
            planned: strict && policy.index().is_some(),
            policy,
            strict,
            blocks_per_region: header.blocks_per_region,
            ids: vec![NO_BLOCK; header.blocks as usize],
            used: vec![0; regions],
            empty: regions,
            context: None,
            moves: std::collections::VecDeque::new(),
            replay,
        }
    }

    /// The timed passes start here.
    fn begin(&mut self) {
        self.replay.start = self.policy.boxed();
        self.replay.calls.clear();
    }

    fn finish(mut self) -> Replay {
        self.measure();
        self.replay
    }

    fn measure(&mut self) {
        self.replay.bookkeeping = self.replay.bookkeeping.max(self.policy.bookkeeping_bytes());
    }

    fn step(&mut self, record: &Record) -> std::result::Result<(), String> {
        if !self.moves.is_empty() && record.operation != Operation::Relocate {
            return Err(format!("{} moves of the compaction before are missing", self.moves.len()));
        }
        let worst = self.empty == 0;
        let owner = record.owner();
        let call = |replay: &mut Replay, operation, block, tag| {
            replay.calls.push(Call { owner, block, operation, tag, worst });
        };
        match record.operation {
            Operation::Take | Operation::TakeAt => {
                let tag = self.take_tag();
                let planned = record.operation == Operation::TakeAt && self.planned;
                let block = self.take(record, planned)?;
                let operation = if planned { Operation::TakeAt } else { Operation::Take };
                call(&mut self.replay, operation, block, tag);
            }
            Operation::Give => {
                let tag = if self.context == Some(Operation::Release) { Tag::Release } else { Tag::Give };
                let block = self.give(record)?;
                call(&mut self.replay, Operation::Give, block, tag);
            }
            Operation::Forget => {
                self.policy.forget(owner);
                call(&mut self.replay, Operation::Forget, 0, Tag::Release);
            }
            Operation::Plan => {
                self.policy.plan(owner, record.count.into());
                call(&mut self.replay, Operation::Plan, record.count, Tag::Admit);
            }
            Operation::Reserve if self.policy.reserves() => {
                let answer = self.policy.reserve(owner, record.count, record.block);
                let answer = answer.map_err(|e| e.to_string())?;
                if answer != record.answer {
                    return Err(format!("the reservation was answered {}, here {answer}", record.answer));
                }
                let index = self.replay.reservations.len() as u32;
                self.replay.reservations.push((record.count, record.block, answer));
                call(&mut self.replay, Operation::Reserve, index, Tag::Admit);
            }
            Operation::Draw if self.policy.draws() => {
                self.policy.feed(&[record.count]).map_err(|e| e.to_string())?;
                let tag = self.take_tag();
                call(&mut self.replay, Operation::Draw, record.count, tag);
            }
            Operation::Compact => {
                self.measure();
                self.moves = self.policy.compact(record.count).map_err(|e| e.to_string())?.into();
                call(&mut self.replay, Operation::Compact, record.count, Tag::Compact);
            }
            Operation::Relocate => self.relocate(record)?,
            // A policy that neither reserves nor draws has no use for these.
            Operation::Reserve | Operation::Draw => {}
            Operation::Admit
            | Operation::Grow
            | Operation::Fork
            | Operation::Release
            | Operation::Speculate
            | Operation::Pin
            | Operation::Write
            | Operation::Trim
            | Operation::LetGo => {
                self.context = Some(record.operation);
                if self.replay.calls.len().is_multiple_of(1024) {
                    self.measure();
                }
            }
        }
        Ok(())
    }

    fn take_tag(&self) -> Tag {
        match self.context {
            Some(Operation::Admit) => Tag::Admit,
            Some(Operation::Grow) => Tag::Grow,
            Some(Operation::Speculate) => Tag::Branch,
            _ => Tag::Take,
        }
    }

    /// The block that this policy hands out for a recorded one.
    fn take(&mut self, record: &Record, planned: bool) -> std::result::Result<u32, String> {
        let taken = match record.block() {
            Some(block) if planned => {
                self.policy.take_at(block).map_err(|e| e.to_string())?;
                Some(block)
            }
            _ => self.policy.take(record.owner()),
        };
        if let Some(fault) = self.policy.fault() {
            return Err(fault.to_string());
        }
        let (recorded, block) = match (record.block(), taken) {
            (None, None) => return Ok(NO_BLOCK),
            (None, Some(block)) => return Err(format!("no block was found; this policy hands out {block}")),
            (Some(block), None) => return Err(format!("block {block} was taken; this policy finds none")),
            (Some(recorded), Some(block)) => (recorded, block),
        };
        let blocks = self.ids.len();
        match self.ids.get_mut(recorded.index()) {
            None => return Err(format!("block {recorded} is not one of the pool's {blocks}")),
            Some(id) if *id != NO_BLOCK => return Err(format!("block {recorded} is taken, but is in use")),
            Some(id) => *id = block.0,
        }
        if self.strict && recorded != block {
            return Err(format!("block {recorded} was taken; the policy hands out {block}"));
        }
        self.replay.takes += 1;
        self.replay.same += u64::from(recorded == block);
        self.count(block, true);
        Ok(block.0)
    }

    fn give(&mut self, record: &Record) -> std::result::Result<u32, String> {
        let block = record.block().and_then(|b| self.ids.get_mut(b.index())).filter(|id| **id != NO_BLOCK);
        let Some(id) = block else {
            return Err(format!("block {} is given back, but is not in use", record.block));
        };
        let block = BlockId(std::mem::replace(id, NO_BLOCK));
        self.policy.give(block).map_err(|e| e.to_string())?;
        self.count(block, false);
        Ok(block.0)
    }

    /// A move of the compaction before, which must be the recorded one; else it only says what for the take
    /// and the give after it are.
    fn relocate(&mut self, record: &Record) -> std::result::Result<(), String> {
        let Some((source, target)) = self.moves.pop_front() else {
            return Ok(());
        };
        if (source.0, target.0) != (record.block, record.count) {
            let (from, to) = (record.block, record.count);
            return Err(format!("block {from} was moved to {to}; the policy moves {source} to {target}"));
        }
        self.ids[source.index()] = NO_BLOCK;
        self.ids[target.index()] = target.0;
        self.count(source, false);
        self.count(target, true);
        Ok(())
    }

    fn count(&mut self, block: BlockId, taken: bool) {
        let used = &mut self.used[(block.0 / self.blocks_per_region) as usize];
        if taken {
            self.empty -= usize::from(*used == 0);
            *used += 1;
        } else {
            *used -= 1;
            self.empty += usize::from(*used == 0);
        }
    }
}

/// No policy at all: what a pass over it takes is the cost of the loop, of the calls and of the clock. It
/// touches no memory, so that all that a policy does is the policy's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Null;

impl Policy for Null {
    fn take(&mut self, _owner: Owner) -> Option<BlockId> {
        Some(BlockId(0))
    }

    fn give(&mut self, _block: BlockId) -> Result<()> {
        Ok(())
    }

    fn take_at(&mut self, _block: BlockId) -> Result<()> {
        Ok(())
    }

    fn reserves(&self) -> bool {
        true
    }

    fn reserve(&mut self, _owner: Owner, _usable: u32, _held_back: u32) -> Result<bool> {
        Ok(true)
    }

    fn feed(&mut self, _indices: &[u32]) -> Result<()> {
        Ok(())
    }

    fn compact(&mut self, _most_used: u32) -> Result<Vec<(BlockId, BlockId)>> {
        Ok(Vec::new())
    }

    fn blocks(&self) -> u32 {
        0
    }

    fn free_blocks(&self) -> u32 {
        0
    }

    fn is_taken(&self, _block: BlockId) -> bool {
        false
    }

    fn bookkeeping_bytes(&self) -> usize {
        size_of::<Self>()
    }

    fn boxed(&self) -> Box<dyn Policy> {
        Box::new(*self)
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }
}
