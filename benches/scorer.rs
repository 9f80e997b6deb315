//! Cost of exact scoring: a decode step of 64 sequences, and the same sequences from scratch.
//!
//! Llama-3-8B's 4,096 B tokens in 16-token blocks on `hbm3-pim` under the host-cacheline map, where one
//! channel stands for all 32. Prompts of 64 to 1,023 tokens, then 1,024 decode steps; then everyone leaves
//! and comes back. Only the scorer's share of a step is timed: growing the tables is not.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pimkv_core::SeqId;
use pimkv_core::dram::{AddressMap, Geometry};
use pimkv_core::grouper::Coalesce;
use pimkv_core::manager::BlockManager;
use pimkv_core::scorer::Scorer;

const SEQUENCES: u32 = 64;
const STEPS: u32 = 1024;
const BLOCK_TOKENS: u32 = 16;
const TOKEN_BYTES: u64 = 4096;
const BLOCKS_PER_REGION: u32 = 8;

fn scorer(coalesce: Coalesce) -> Scorer {
    let hbm3 = Geometry {
        channels: 32,
        bank_groups: 4,
        banks_per_group: 4,
        rows: 16384,
        row_bytes: 1024,
        burst_bytes: 32,
    };
    let map = AddressMap::parse("row:14 col:4 bg:2 ba:2 ch:5 col:1", hbm3).expect("a valid map");
    Scorer::new(&map, u64::from(BLOCK_TOKENS) * TOKEN_BYTES, TOKEN_BYTES, coalesce).expect("valid sizes")
}

fn sequences() -> Vec<SeqId> {
    (0..SEQUENCES).map(SeqId).collect()
}

fn prompts() -> Vec<u64> {
    let mut state = 1_u32;
    let mut draw = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u64::from(64 + (state >> 16) % 960)
    };
    sequences().iter().map(|_| draw()).collect()
}

/// A pool with room for all that comes, and everyone's prompt in it.
fn admitted(kind: &str) -> BlockManager {
    let blocks = SEQUENCES * (1023 + STEPS).div_ceil(BLOCK_TOKENS);
    let mut manager = BlockManager::new(kind, blocks, BLOCK_TOKENS, BLOCKS_PER_REGION).expect("a valid pool");
    admit(&mut manager);
    manager
}

fn admit(manager: &mut BlockManager) {
    for (seq, tokens) in sequences().into_iter().zip(prompts()) {
        assert!(manager.admit(seq, tokens).expect("a new sequence"), "the pool has room");
    }
}

fn grow(manager: &mut BlockManager, seqs: &[SeqId]) {
    let ones = vec![1; seqs.len()];
    assert_eq!(manager.grow(seqs, &ones, 0), Ok(seqs.len()));
}

fn decode_step(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode_step_of_64");
    group.throughput(Throughput::Elements(SEQUENCES.into()));
    for (rule, coalesce) in [("window", Coalesce::Window(64)), ("in_order", Coalesce::InOrder)] {
        for kind in ["paged", "pim-aware"] {
            let (seqs, mut manager, mut scorer) = (sequences(), admitted(kind), scorer(coalesce));
            scorer.observe(&mut manager, &seqs).expect("known sequences");
            let mut steps = 0;
            group.bench_function(BenchmarkId::new(rule, kind), |b| {
                b.iter_custom(|iterations| {
                    let mut spent = Duration::ZERO;
                    for _ in 0..iterations {
                        if steps == STEPS {
                            manager.release(&seqs).expect("known sequences");
                            admit(&mut manager);
                            scorer.observe(&mut manager, &seqs).expect("known sequences");
                            steps = 0;
                        }
                        grow(&mut manager, &seqs);
                        steps += 1;
                        let begun = Instant::now();
                        let tallies = scorer.observe(&mut manager, &seqs);
                        spent += begun.elapsed();
                        drop(std::hint::black_box(tallies));
                    }
                    spent
                });
            });
        }
    }
    group.finish();
}

fn from_scratch(c: &mut Criterion) {
    let mut group = c.benchmark_group("from_scratch");
    group.throughput(Throughput::Elements(prompts().iter().sum()));
    for (rule, coalesce) in [("window", Coalesce::Window(64)), ("in_order", Coalesce::InOrder)] {
        let (seqs, mut manager, mut scorer) = (sequences(), admitted("paged"), scorer(coalesce));
        group.bench_function(rule, |b| {
            b.iter(|| {
                for &seq in &seqs {
                    scorer.forget(seq);
                }
                scorer.observe(&mut manager, &seqs)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, decode_step, from_scratch);
criterion_main!(benches);
