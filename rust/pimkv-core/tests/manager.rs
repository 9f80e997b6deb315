//! Does the manager keep its books? Random traffic on pools that run dry, against a plain model: the same
//! tables at every step, every block accounted for, and refused calls that leave no trace.

use std::collections::BTreeMap;

use pimkv_core::alloc::{self, Policy};
use pimkv_core::manager::{Adopt, BlockManager, Placement, Round};
use pimkv_core::{BlockId, Error, Owner, SeqId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence::WithSource;

const SEQUENCES: u32 = 6;
const STRANGER: SeqId = SeqId(99);
const MAX_TOKENS: u64 = 1 << 40;

/// All that a manager shows.
#[derive(Debug, PartialEq)]
struct State {
    free: u32,
    live: u32,
    allocated: u64,
    references: Vec<u32>,
    tables: Vec<(SeqId, Vec<BlockId>, u64, Placement)>,
}

impl State {
    fn of(manager: &BlockManager) -> Result<Self, Error> {
        let table = |seq| {
            let table = manager.table(seq)?;
            Ok((seq, table.blocks().to_vec(), table.tokens(), manager.placement(seq)?))
        };
        Ok(Self {
            free: manager.free_blocks(),
            live: manager.live_blocks(),
            allocated: manager.blocks_allocated(),
            references: (0..manager.blocks())
                .map(|block| manager.references(BlockId(block)))
                .collect::<Result<_, Error>>()?,
            tables: manager.sequences().into_iter().map(table).collect::<Result<_, Error>>()?,
        })
    }
}

/// The manager's rules over the same policy: (blocks, tokens) per sequence.
struct Model {
    policy: Box<dyn Policy>,
    block_tokens: u64,
    blocks_per_region: u32,
    allocated: u64,
    tables: BTreeMap<SeqId, (Vec<BlockId>, u64)>,
}

impl Model {
    fn admit(&mut self, seq: SeqId, tokens: u64) -> bool {
        if tokens.div_ceil(self.block_tokens) > u64::from(self.policy.free_blocks()) {
            return false;
        }
        self.policy.plan(Owner::from(seq), tokens.div_ceil(self.block_tokens));
        self.tables.insert(seq, (Vec::new(), 0));
        self.grow(seq, tokens)
    }

    fn grow(&mut self, seq: SeqId, tokens: u64) -> bool {
        let (blocks, length) = self.tables.get_mut(&seq).expect("a sequence of the model");
        while (blocks.len() as u64) * self.block_tokens < *length + tokens {
            let Some(block) = self.policy.take(Owner::from(seq)) else { return false };
            self.allocated += 1;
            blocks.push(block);
        }
        *length += tokens;
        true
    }

    fn release(&mut self, seq: SeqId) -> Result<(), Error> {
        for block in self.tables.remove(&seq).expect("a sequence of the model").0 {
            self.policy.give(block)?;
        }
        self.policy.forget(Owner::from(seq));
        Ok(())
    }

    fn state(&self) -> State {
        let blocks = self.policy.blocks();
        let mut references = vec![0; blocks as usize];
        for block in self.tables.values().flat_map(|(blocks, _)| blocks) {
            references[block.index()] += 1;
        }
        let live = references.iter().sum();
        let table = |(&seq, (blocks, tokens)): (&SeqId, &(Vec<BlockId>, u64))| {
            (seq, blocks.clone(), *tokens, self.placement(blocks))
        };
        State {
            free: self.policy.free_blocks(),
            live,
            allocated: self.allocated,
            references,
            tables: self.tables.iter().map(table).collect(),
        }
    }

    fn placement(&self, blocks: &[BlockId]) -> Placement {
        let mut placement = Placement { blocks: blocks.len() as u64, ..Placement::default() };
        let mut seen = Vec::new();
        for (i, block) in blocks.iter().enumerate() {
            let region = block.0 / self.blocks_per_region;
            if i > 0 {
                placement.adjacent += u64::from(blocks[i - 1].0 + 1 == block.0);
                placement.same_region += u64::from(blocks[i - 1].0 / self.blocks_per_region == region);
            }
            if !seen.contains(&region) {
                seen.push(region);
            }
        }
        placement.regions = seen.len() as u64;
        placement
    }
}

#[derive(Clone, Debug)]
enum Op {
    Admit(SeqId, u64),
    /// A batch in order, where a sequence may stand twice; `resume` says whether to come back when it stops.
    Grow {
        batch: Vec<(SeqId, u64)>,
        resume: bool,
    },
    Release(Vec<SeqId>),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let seq = || (0..SEQUENCES).prop_map(SeqId);
    let growth = prop_oneof![12 => 1..4_u64, 4 => 4..40_u64, 1 => Just(MAX_TOKENS)];
    let op = prop_oneof![
        3 => (seq(), 1..60_u64).prop_map(|(seq, tokens)| Op::Admit(seq, tokens)),
        1 => (seq(), any::<u64>()).prop_map(|(seq, tokens)| Op::Admit(seq, tokens.max(1))),
        6 => (vec((seq(), growth), 1..9), any::<bool>())
            .prop_map(|(batch, resume)| Op::Grow { batch, resume }),
        2 => vec(seq(), 1..4).prop_map(Op::Release),
    ];
    vec(op, 1..60)
}

/// Every policy that takes without being given more than a pool, and whose ids are its own choice.
fn kinds() -> Vec<&'static str> {
    let plain = |kind: &&str| {
        let policy = alloc::policy(kind, alloc::Pool::new(64, 1)).expect("a pool");
        !policy.reserves() && !policy.draws() && policy.index().is_none()
    };
    alloc::kinds().filter(plain).collect()
}

/// (kind, blocks, tokens per block, blocks per region); the smallest pool from a size on that the policy can have.
fn pools() -> impl Strategy<Value = (&'static str, u32, u32, u32)> {
    let size = 1..=8_u32;
    let sized = size.prop_flat_map(|size| (8_u32.div_ceil(size)..=64 / size, Just(size)));
    (prop::sample::select(kinds()), sized, 1..=8_u32).prop_map(|(kind, (regions, size), tokens)| {
        let can_be = |&n: &u32| alloc::policy(kind, alloc::Pool::new(n * size, size)).is_ok();
        (kind, (regions..=regions + 64).find(can_be).expect("a pool of some size") * size, tokens, size)
    })
}

/// Manager and model side by side.
struct Pair {
    manager: BlockManager,
    model: Model,
    /// What an empty pool can hand out.
    usable: u32,
}

impl Pair {
    fn agree(&self) -> Result<(), TestCaseError> {
        self.manager.check()?;
        let state = State::of(&self.manager)?;
        prop_assert_eq!(state.free + state.live, self.usable, "conservation");
        prop_assert_eq!(state, self.model.state());
        Ok(())
    }

    fn grow(&mut self, batch: &[(SeqId, u64)], resume: bool) -> Result<(), TestCaseError> {
        let (seqs, tokens): (Vec<_>, Vec<_>) = batch.iter().copied().unzip();
        let mut start = 0;
        loop {
            let stopped = self.manager.grow(&seqs, &tokens, start)?;
            let short = (start..seqs.len()).find(|&i| !self.model.grow(seqs[i], tokens[i]));
            prop_assert_eq!(stopped, short.unwrap_or(seqs.len()));
            self.agree()?;
            if stopped == seqs.len() || !resume {
                return Ok(());
            }
            // The pool is dry, so trying again changes nothing.
            prop_assert_eq!(self.manager.grow(&seqs, &tokens, stopped)?, stopped);
            self.agree()?;
            // Preempt someone who is not waiting, and resume; what stands before the start may be gone.
            let waiting = &seqs[stopped..];
            let Some(&victim) = self.model.tables.keys().find(|seq| !waiting.contains(seq)) else {
                return Ok(());
            };
            self.manager.release(&[victim])?;
            self.model.release(victim)?;
            start = stopped;
        }
    }

    /// Makes every call that has to be refused, and sees that none leaves a trace.
    fn refuse(&mut self) -> Result<(), TestCaseError> {
        let before = State::of(&self.manager)?;
        let manager = &mut self.manager;
        let blocks = manager.blocks();
        let unknown = Err(Error::UnknownSequence(STRANGER));
        prop_assert_eq!(manager.table(STRANGER).map(|_| ()), unknown.clone());
        prop_assert_eq!(manager.placement(STRANGER).map(|_| ()), unknown.clone());
        prop_assert_eq!(manager.release(&[STRANGER]), unknown.clone());
        prop_assert_eq!(manager.grow(&[STRANGER], &[1], 0).map(|_| ()), unknown.clone());
        prop_assert!(manager.admit(STRANGER, 0).is_err());
        prop_assert!(!manager.admit(STRANGER, u64::MAX)?);
        prop_assert!(manager.grow(&[], &[1], 0).is_err());
        prop_assert!(manager.grow(&[], &[], 1).is_err());
        let foreign = Err(Error::ForeignBlock { block: blocks.into(), blocks });
        prop_assert_eq!(manager.references(BlockId(blocks)), foreign);
        for &(seq, ..) in &before.tables {
            prop_assert_eq!(manager.admit(seq, 1), Err(Error::DuplicateSequence(seq)));
            prop_assert_eq!(manager.release(&[seq, STRANGER]), unknown.clone());
            prop_assert_eq!(manager.release(&[seq, seq]), Err(Error::UnknownSequence(seq)));
            prop_assert_eq!(manager.grow(&[seq, STRANGER], &[1, 1], 0).map(|_| ()), unknown.clone());
            for bad in [0, MAX_TOKENS + 1, u64::MAX] {
                prop_assert!(manager.grow(&[seq, seq], &[1, bad], 0).is_err());
            }
            prop_assert!(manager.grow(&[seq, seq], &[1], 0).is_err());
            prop_assert!(manager.grow(&[seq], &[1], 2).is_err());
            // Nothing is left to do, or it lies before the start: no refusal and no change.
            prop_assert_eq!(manager.grow(&[seq, STRANGER], &[1, 0], 2), Ok(2));
        }
        prop_assert_eq!(manager.grow(&[], &[], 0), Ok(0));
        prop_assert_eq!(manager.release(&[]), Ok(()));
        prop_assert_eq!(before, State::of(&self.manager)?);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_failure_persistence(WithSource("regressions")))]

    #[test]
    fn the_books_are_kept((kind, blocks, block_tokens, blocks_per_region) in pools(), ops in ops()) {
        let manager = BlockManager::new(kind, blocks, block_tokens, blocks_per_region)?;
        let mut pair = Pair {
            usable: manager.free_blocks(),
            manager,
            model: Model {
                policy: alloc::policy(kind, alloc::Pool::new(blocks, blocks_per_region))?,
                block_tokens: block_tokens.into(),
                blocks_per_region,
                allocated: 0,
                tables: BTreeMap::new(),
            },
        };
        for op in ops {
            match op {
                Op::Admit(seq, tokens) => {
                    if !pair.model.tables.contains_key(&seq) {
                        prop_assert_eq!(pair.manager.admit(seq, tokens), Ok(pair.model.admit(seq, tokens)));
                    }
                }
                Op::Grow { mut batch, resume } => {
                    batch.retain(|(seq, _)| pair.model.tables.contains_key(seq));
                    pair.grow(&batch, resume)?;
                }
                Op::Release(mut seqs) => {
                    let mut seen = Vec::new();
                    seqs.retain(|seq| {
                        let fresh = !seen.contains(seq);
                        seen.push(*seq);
                        fresh && pair.model.tables.contains_key(seq)
                    });
                    pair.manager.release(&seqs)?;
                    for seq in seqs {
                        pair.model.release(seq)?;
                    }
                }
            }
            pair.agree()?;
            pair.refuse()?;
        }
        let everyone = pair.manager.sequences();
        pair.manager.release(&everyone)?;
        pair.manager.check()?;
        prop_assert_eq!(pair.manager.free_blocks(), pair.usable);
    }
}

#[test]
fn a_short_grow_keeps_its_blocks_and_resumes() -> Result<(), Error> {
    let mut manager = BlockManager::new("pim-aware", 8, 4, 4)?;
    let (one, two) = (SeqId(1), SeqId(2));
    assert!(manager.admit(one, 4)? && manager.admit(two, 20)?);
    // One block for `one`; `two` asks for six more and gets the last one.
    assert_eq!(manager.grow(&[one, two], &[1, 24], 0)?, 1);
    assert_eq!((manager.table(one)?.tokens(), manager.table(two)?.tokens()), (5, 20));
    assert_eq!((manager.table(two)?.blocks().len(), manager.free_blocks()), (6, 0));
    // It may use what it got, without asking anew.
    assert_eq!(manager.grow(&[two], &[4], 0)?, 1);
    manager.release(&[one])?;
    assert_eq!(manager.grow(&[one, two], &[1, 8], 1)?, 2);
    assert_eq!((manager.table(two)?.tokens(), manager.free_blocks()), (32, 0));
    manager.check()
}

#[test]
fn a_manager_that_cannot_be_is_refused() {
    for (kind, blocks, block_tokens, blocks_per_region) in [
        ("paged", 8, 0, 1),
        ("paged", 0, 4, 1),
        ("pim-aware", 9, 4, 4),
        ("paged", 8, 4, 0),
        ("page", 8, 4, 1),
    ] {
        assert!(BlockManager::new(kind, blocks, block_tokens, blocks_per_region).is_err());
    }
}

#[test]
fn a_spliced_round_whose_draws_were_not_fed_is_refused_and_undone() -> Result<(), Error> {
    let mut manager = BlockManager::new("random", 8, 4, 1)?;
    manager.feed(&[0])?;
    assert!(manager.admit(SeqId(0), 2)?);
    let round = Round { width: 2, depth: 3, adopt: Adopt::Splice, separate: false };
    for pick in [0, 1] {
        assert!(manager.speculate(&[SeqId(0)], &[1], &[pick], &round, 0).is_err());
        assert_eq!((manager.live_blocks(), manager.table(SeqId(0))?.tokens()), (1, 2));
        manager.check()?;
    }
    Ok(())
}
