//! Do the policies hand out the blocks that the published rules name? Each one against a plain model, on
//! pools small enough to run dry, with every structure verified after each call.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use pimkv_core::alloc::{self, Paged, Policy, RegionHeaps};
use pimkv_core::{BlockId, Error, Owner};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::FileFailurePersistence::WithSource;

/// The rules of a policy, as slow and as plain as they can be written down.
trait Model {
    fn take(&mut self, owner: u64) -> Option<u32>;
    fn give(&mut self, block: u32);
    fn forget(&mut self, owner: u64);
    fn free(&self) -> BTreeSet<u32>;
}

/// A stack filled with 0..n: the block freed last goes first.
struct Stack(Vec<u32>);

impl Model for Stack {
    fn take(&mut self, _owner: u64) -> Option<u32> {
        self.0.pop()
    }

    fn give(&mut self, block: u32) {
        self.0.push(block);
    }

    fn forget(&mut self, _owner: u64) {}

    fn free(&self) -> BTreeSet<u32> {
        self.0.iter().copied().collect()
    }
}

/// Region r is the ids from `r * size` up to the next region; an owner has at most one current region.
struct Regions {
    size: u32,
    count: u32,
    free: BTreeSet<u32>,
    current: BTreeMap<u64, u32>,
}

impl Regions {
    fn new(blocks: u32, size: u32) -> Self {
        Self { size, count: blocks / size, free: (0..blocks).collect(), current: BTreeMap::new() }
    }

    fn free_of(&self, region: u32) -> Vec<u32> {
        self.free.iter().copied().filter(|block| block / self.size == region).collect()
    }
}

impl Model for Regions {
    fn take(&mut self, owner: u64) -> Option<u32> {
        let room = |region: u32| self.free_of(region).len();
        let most = (0..self.count).map(room).max()?;
        let current = self.current.get(&owner).copied().filter(|&region| room(region) > 0);
        let wholly_free = || (0..self.count).find(|&region| room(region) == self.size as usize);
        let roomiest = || (0..self.count).find(|&region| room(region) == most && most > 0);
        let region = current.or_else(wholly_free).or_else(roomiest)?;
        let lowest = self.free_of(region)[0];
        self.current.insert(owner, region);
        self.free.remove(&lowest);
        Some(lowest)
    }

    fn give(&mut self, block: u32) {
        self.free.insert(block);
    }

    fn forget(&mut self, owner: u64) {
        self.current.remove(&owner);
    }

    fn free(&self) -> BTreeSet<u32> {
        self.free.clone()
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Takes up to so many blocks, fewer when the pool runs dry.
    Take(u64, u32),
    /// Gives back some blocks in use, whoever took them; the owners keep their affinity.
    Give(Vec<Index>),
    /// What the manager does when a sequence leaves: its blocks in the order it took them, then the owner.
    Release(u64),
    Forget(u64),
    /// A block that is free already.
    GiveFree(Index),
    /// A block so far beyond the pool.
    GiveForeign(u32),
}

const OWNERS: u64 = 5;

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => (0..OWNERS, 1..12_u32).prop_map(|(owner, blocks)| Op::Take(owner, blocks)),
        3 => vec(any::<Index>(), 1..10).prop_map(Op::Give),
        2 => (0..OWNERS).prop_map(Op::Release),
        1 => (0..OWNERS).prop_map(Op::Forget),
        1 => any::<Index>().prop_map(Op::GiveFree),
        1 => prop_oneof![0..3_u32, Just(u32::MAX)].prop_map(Op::GiveForeign),
    ];
    vec(op, 1..80)
}

/// (blocks, blocks per region): pools of 8 to 64 blocks, down to a single region and to regions of one block.
fn pools() -> impl Strategy<Value = (u32, u32)> {
    (1..=12_u32).prop_flat_map(|size| (8_u32.div_ceil(size)..=64 / size).prop_map(move |n| (n * size, size)))
}

fn drive<P: Policy + Debug>(mut policy: P, mut model: impl Model, ops: &[Op]) -> Result<(), TestCaseError> {
    let blocks = policy.blocks();
    let mut held: Vec<(u64, u32)> = Vec::new();
    for op in ops {
        match op {
            &Op::Take(owner, n) => {
                for _ in 0..n {
                    let before = model.free().is_empty().then(|| format!("{policy:?}"));
                    let block = policy.take(Owner(owner));
                    prop_assert_eq!(block, model.take(owner).map(BlockId));
                    held.extend(block.map(|block| (owner, block.0)));
                    if let Some(before) = before {
                        prop_assert_eq!(before, format!("{policy:?}"), "a take from a dry pool left a trace");
                    }
                    policy.check()?;
                }
            }
            Op::Give(picks) => {
                for pick in picks {
                    if !held.is_empty() {
                        let (_, block) = held.remove(pick.index(held.len()));
                        prop_assert_eq!(policy.give(BlockId(block)), Ok(()));
                        model.give(block);
                        policy.check()?;
                    }
                }
            }
            &Op::Release(owner) => {
                for (_, block) in held.extract_if(.., |(holder, _)| *holder == owner) {
                    prop_assert_eq!(policy.give(BlockId(block)), Ok(()));
                    model.give(block);
                }
                policy.forget(Owner(owner));
                model.forget(owner);
            }
            &Op::Forget(owner) => {
                policy.forget(Owner(owner));
                model.forget(owner);
            }
            Op::GiveFree(pick) => {
                let free: Vec<u32> = model.free().into_iter().collect();
                if !free.is_empty() {
                    let block = BlockId(*pick.get(&free));
                    let before = format!("{policy:?}");
                    prop_assert_eq!(policy.give(block), Err(Error::DoubleFree(block)));
                    prop_assert_eq!(before, format!("{policy:?}"));
                }
            }
            &Op::GiveForeign(beyond) => {
                let block = blocks.saturating_add(beyond);
                let before = format!("{policy:?}");
                let refusal = Error::ForeignBlock { block: block.into(), blocks };
                prop_assert_eq!(policy.give(BlockId(block)), Err(refusal));
                prop_assert_eq!(before, format!("{policy:?}"));
            }
        }
        policy.check()?;
        let free = model.free();
        prop_assert_eq!(policy.free_blocks() as usize, free.len());
        prop_assert_eq!(policy.blocks(), blocks);
        for block in 0..blocks {
            prop_assert_eq!(policy.is_taken(BlockId(block)), !free.contains(&block), "block {}", block);
        }
    }
    // Whatever happened, the pool can be emptied, and then filled up again.
    while let Some(block) = model.take(OWNERS) {
        prop_assert_eq!(policy.take(Owner(OWNERS)), Some(BlockId(block)));
    }
    prop_assert_eq!(policy.take(Owner(OWNERS)), None);
    for block in 0..blocks {
        prop_assert_eq!(policy.give(BlockId(block)), Ok(()));
    }
    prop_assert_eq!(policy.free_blocks(), blocks);
    policy.check()?;
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_failure_persistence(WithSource("regressions")))]

    #[test]
    fn lifo_is_a_stack(blocks in 8..=64_u32, ops in ops()) {
        drive(Paged::new(blocks), Stack((0..blocks).collect()), &ops)?;
    }

    #[test]
    fn region_heaps_follow_the_published_rule((blocks, size) in pools(), ops in ops()) {
        drive(RegionHeaps::new(blocks, size)?, Regions::new(blocks, size), &ops)?;
    }

    /// Stale entries must not pile up: the structures stay as large as the pool and its owners ask for.
    #[test]
    fn bookkeeping_does_not_grow_with_churn(
        (blocks, size) in pools(),
        rounds in vec((0..OWNERS, 1..64_u32), 1..200),
    ) {
        for kind in alloc::kinds() {
            // One that reserves or draws hands out nothing here; a pool that cannot be is tested elsewhere.
            let Ok(mut policy) = alloc::policy(kind, alloc::Pool::new(blocks, size)) else { continue };
            let allowed = policy.bookkeeping_bytes() + 64 * OWNERS as usize;
            for &(owner, n) in &rounds {
                let taken: Vec<_> = (0..n).map_while(|_| policy.take(Owner(owner))).collect();
                for block in taken {
                    policy.give(block)?;
                }
                let bytes = policy.bookkeeping_bytes();
                prop_assert!(bytes <= allowed, "{} has {} bytes", kind, bytes);
            }
        }
    }
}

#[test]
fn a_fresh_paged_pool_descends_and_a_fresh_region_pool_ascends() {
    let take_all = |mut policy: Box<dyn Policy>, owner: fn(u32) -> u64| -> Vec<u32> {
        (0..8).map_while(|i| policy.take(Owner(owner(i)))).map(|block| block.0).collect()
    };
    let pool = |kind| alloc::policy(kind, alloc::Pool::new(8, 4)).expect("a valid pool");
    assert_eq!(take_all(pool("paged"), |_| 0), [7, 6, 5, 4, 3, 2, 1, 0]);
    assert_eq!(take_all(pool("pim-aware"), |_| 0), [0, 1, 2, 3, 4, 5, 6, 7]);
    // Two owners in turn: a region each.
    assert_eq!(take_all(pool("pim-aware"), |i| u64::from(i % 2)), [0, 4, 1, 5, 2, 6, 3, 7]);
}

#[test]
fn an_emptied_current_region_stays_current_and_may_go_to_another_owner() -> Result<(), Error> {
    let mut policy = RegionHeaps::new(8, 4)?;
    let (one, other) = (Owner(1), Owner(2));
    assert_eq!(policy.take(one), Some(BlockId(0)));
    policy.give(BlockId(0))?;
    // Region 0 is wholly free again: it is still the first owner's, and it is the lowest for the other.
    assert_eq!(policy.take(other), Some(BlockId(0)));
    assert_eq!(policy.take(one), Some(BlockId(1)));
    // Forgotten, the first owner has the same claim as any newcomer: the wholly free region.
    policy.forget(one);
    assert_eq!(policy.take(one), Some(BlockId(4)));
    policy.check()
}

#[test]
fn a_pool_that_cannot_be_is_refused() {
    let refusal =
        |kind, blocks, size| alloc::policy(kind, alloc::Pool::new(blocks, size)).err().map(|e| e.to_string());
    for (kind, blocks, size, names) in [
        ("paged", 0, 1, "blocks = 0"),
        ("paged", alloc::MAX_BLOCKS + 1, 1, "blocks = 2147483649"),
        ("paged", 8, 0, "blocks_per_region = 0"),
        ("pim-aware", 9, 4, "blocks = 9"),
        ("pim-aware", 4, 8, "blocks = 4"),
        ("patton", 24, 8, "blocks = 24"),
        (
            "lifo",
            8,
            4,
            &format!("kind = \"lifo\": allowed {}", alloc::kinds().collect::<Vec<_>>().join(", ")),
        ),
    ] {
        let message = refusal(kind, blocks, size).expect("refused");
        assert!(message.starts_with(names), "{message}");
    }
    assert!(RegionHeaps::new(8, 0).is_err());
}

#[test]
fn a_pool_without_blocks_refuses_in_words() {
    for refused in
        [Paged::new(0).give(BlockId(0)), RegionHeaps::new(0, 8).and_then(|mut p| p.give(BlockId(0)))]
    {
        assert!(refused.expect_err("refused").to_string().contains("block 0"));
    }
}
