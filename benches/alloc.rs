//! Cost of an allocator operation: takes and gives on a pool that stays around 80 % full.
//!
//! The mix: 64 sequences, and at each step one of them, at random, takes a block. When more than 80 % of the
//! pool is in use, a random sequence leaves (all its blocks are given back in table order, and it is
//! forgotten) and starts anew from nothing. A step is thus one take and, on average, one give: two
//! operations. `replay_loop` is the same loop over a policy that only counts; subtract it.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pimkv_core::alloc::{Paged, Policy, RegionHeaps};
use pimkv_core::{BlockId, Owner, Result};

const SEQUENCES: u64 = 64;
const BLOCKS_PER_REGION: u32 = 8;

/// Which sequence is next: drawn beforehand, and repeated for ever.
fn draws() -> Vec<u8> {
    let mut state = 1_u32;
    let mut draw = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (u64::from(state >> 16) % SEQUENCES) as u8
    };
    (0..1 << 16).map(|_| draw()).collect()
}

/// The traffic, and what each sequence holds.
struct Traffic<P> {
    policy: P,
    tables: Vec<Vec<BlockId>>,
    draws: Vec<u8>,
    next: usize,
    fewest_free: u32,
}

impl<P: Policy> Traffic<P> {
    /// Runs in: until the pool has been filled twice over.
    fn new(policy: P) -> Self {
        let blocks = policy.blocks();
        // A sequence lives until it is drawn, so its table may get long: make room for most of what comes.
        let room = blocks as usize / SEQUENCES as usize * 4;
        let tables = (0..SEQUENCES).map(|_| Vec::with_capacity(room)).collect();
        let mut traffic = Self { policy, tables, draws: draws(), next: 0, fewest_free: blocks / 5 };
        for _ in 0..2 * blocks {
            traffic.step();
        }
        traffic
    }

    fn draw(&mut self) -> usize {
        let drawn = self.draws[self.next % self.draws.len()];
        self.next += 1;
        drawn.into()
    }

    fn step(&mut self) {
        let seq = self.draw();
        let block = self.policy.take(Owner(seq as u64)).expect("a fifth of the pool is free");
        self.tables[seq].push(block);
        if self.policy.free_blocks() < self.fewest_free {
            let seq = self.draw();
            for block in self.tables[seq].drain(..) {
                self.policy.give(block).expect("a block in use");
            }
            self.policy.forget(Owner(seq as u64));
        }
    }
}

/// No policy at all: the cost of the loop around one.
struct Count {
    blocks: u32,
    free: u32,
}

impl Policy for Count {
    fn take(&mut self, owner: Owner) -> Option<BlockId> {
        self.free -= 1;
        black_box(owner);
        Some(BlockId(self.free))
    }

    fn give(&mut self, block: BlockId) -> Result<()> {
        self.free += 1;
        black_box(block);
        Ok(())
    }

    fn blocks(&self) -> u32 {
        self.blocks
    }

    fn free_blocks(&self) -> u32 {
        self.free
    }

    fn is_taken(&self, _block: BlockId) -> bool {
        false
    }

    fn bookkeeping_bytes(&self) -> usize {
        size_of::<Self>()
    }

    fn boxed(&self) -> Box<dyn Policy> {
        Box::new(Self { ..*self })
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }
}

fn steady(c: &mut Criterion) {
    let mut group = c.benchmark_group("take_give");
    group.throughput(Throughput::Elements(2));
    for (pool, blocks) in [("4K", 4 << 10), ("64K", 64 << 10), ("1M", 1 << 20)] {
        let mut traffic = Traffic::new(Count { blocks, free: blocks });
        group.bench_function(BenchmarkId::new("replay_loop", pool), |b| b.iter(|| traffic.step()));
        let mut traffic = Traffic::new(Paged::new(blocks));
        group.bench_function(BenchmarkId::new("lifo", pool), |b| b.iter(|| traffic.step()));
        traffic.policy.check().expect("a sound pool");
        let regions = RegionHeaps::new(blocks, BLOCKS_PER_REGION).expect("whole regions");
        let mut traffic = Traffic::new(regions);
        group.bench_function(BenchmarkId::new("region_heaps", pool), |b| b.iter(|| traffic.step()));
        traffic.policy.check().expect("a sound pool");
    }
    group.finish();
}

criterion_group!(benches, steady);
criterion_main!(benches);
