//! Cost of gathering: growth and repair per block grown, beside `pim-aware` on the same traffic.
//!
//! The mix: sequences that fill the pool up to a few blocks, and at each step one of them, at random, grows by
//! one block. When less than the given share of the pool is free, a random sequence leaves and starts anew.
//! `grow` has an empty region or a slot for most claims; `crowded` never has an empty region, so that claims
//! relocate. `396 of 1M`: one sequence fills all but 396 of a million regions, so that what differs from `396` is
//! the number of regions and nothing else. With repair, every 8th block grown is followed by one with the default budget of 32 blocks.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pimkv_core::SeqId;
use pimkv_core::alloc::Pool;
use pimkv_core::gather::Levers;
use pimkv_core::manager::BlockManager;

const BLOCKS_PER_REGION: u32 = 8;
const BUDGET: u32 = 32;
/// Blocks grown between two repairs: what a batch of 128 sequences with 16-token blocks grows in a step.
const GROWN_PER_REPAIR: u32 = 8;

/// Name, regions that are filled once and for all, regions with traffic.
const POOLS: [(&str, u32, u32); 3] =
    [("396", 0, 396), ("64K blocks", 0, (64 << 10) / BLOCKS_PER_REGION), ("396 of 1M", 999_604, 396)];

/// The traffic over one manager.
struct Traffic {
    manager: BlockManager,
    sequences: u32,
    fewest_free: u32,
    /// Whether to repair, and how many blocks have grown since.
    repairs: Option<u32>,
    state: u32,
}

impl Traffic {
    /// `filled` regions out of the way, traffic over `regions`; runs in until sequences have left and come.
    fn new(kind: &str, filled: u32, regions: u32, fewest_free: u32, repairs: bool) -> Self {
        let blocks = regions * BLOCKS_PER_REGION;
        let levers = Levers { own_first: repairs, relocate_tail: repairs };
        let pool = Pool { levers, ..Pool::new(blocks + filled * BLOCKS_PER_REGION, BLOCKS_PER_REGION) };
        // One token a block: each token grown is a block.
        let mut manager = BlockManager::with_pool(kind, pool, 1).expect("whole regions");
        if filled > 0 {
            manager.admit(SeqId(u32::MAX), u64::from(filled * BLOCKS_PER_REGION)).expect("a new sequence");
        }
        let sequences = (blocks / 40).max(4);
        let mut traffic = Self { manager, sequences, fewest_free, repairs: repairs.then_some(0), state: 1 };
        for seq in 0..sequences {
            // Lengths from 1 to 64 blocks, as far as they fit.
            let tokens = u64::from(traffic.draw() % 64 + 1);
            if traffic.manager.free_blocks() > fewest_free + 64 {
                traffic.manager.admit(SeqId(seq), tokens).expect("a new sequence");
            } else {
                traffic.sequences = seq;
                break;
            }
        }
        while traffic.manager.free_blocks() > fewest_free {
            traffic.step();
        }
        for _ in 0..4_000 {
            traffic.step();
        }
        traffic
    }

    fn draw(&mut self) -> u32 {
        self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.state >> 8
    }

    fn step(&mut self) {
        let seq = SeqId(self.draw() % self.sequences);
        let done = self.manager.grow(&[seq], &[1], 0).expect("a sequence");
        assert_eq!(done, 1, "a block is free");
        while self.manager.free_blocks() < self.fewest_free {
            let leaving = SeqId(self.draw() % self.sequences);
            self.manager.release(&[leaving]).expect("a sequence");
            self.manager.admit(leaving, 1).expect("it is gone");
        }
        if let Some(grown) = &mut self.repairs {
            *grown += 1;
            if *grown == GROWN_PER_REPAIR {
                *grown = 0;
                self.manager.take_copies();
                self.manager.repair(BUDGET).expect("a manager that gathers");
                self.manager.take_copies();
            }
        }
    }
}

fn growth(c: &mut Criterion) {
    // Blocks free at least: a fifth of the pool, or so few that no region is empty.
    for (name, share) in [("grow", 5), ("crowded", 100)] {
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Elements(1));
        for (pool, filled, regions) in POOLS {
            for (kind, levers) in [("pim-aware", false), ("pim-gather", false), ("pim-gather", true)] {
                if kind == "pim-aware" && name == "crowded" && filled > 0 {
                    // The published scan of all regions takes milliseconds there.
                    continue;
                }
                let label = if levers { "pim-gather+repair" } else { kind };
                let fewest = regions * BLOCKS_PER_REGION / share;
                let mut traffic = Traffic::new(kind, filled, regions, fewest, levers);
                group.bench_function(BenchmarkId::new(label, pool), |b| b.iter(|| traffic.step()));
            }
        }
        group.finish();
    }
}

criterion_group!(benches, growth);
criterion_main!(benches);
