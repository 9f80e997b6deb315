//! Are logs kept exactly, refused when they are not what was written, and replayed with the same ids? And
//! do the index and the heaps hand out the same ids, however long they run?

use pimkv_core::alloc::{self, Pool};
use pimkv_core::manager::{Adopt, BlockManager, Round};
use pimkv_core::oplog::{self, HEADER_BYTES, Kinds, OpLog, Operation, RECORD_BYTES, Replay};
use pimkv_core::{BlockId, Error, Owner, SeqId};

const REGION: u32 = 8;

/// Every policy whose blocks are neither reserved nor drawn.
fn kinds() -> impl Iterator<Item = &'static str> {
    alloc::kinds().filter(|kind| {
        let policy = alloc::policy(kind, pool(512, false)).expect("a pool");
        !policy.reserves() && !policy.draws()
    })
}

struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound as u64) as usize
    }
}

fn pool(blocks: u32, heaps: bool) -> Pool {
    Pool { heaps, ..Pool::new(blocks, REGION) }
}

/// A run with admissions, growth, forks, copies on write, a prefix, speculation and releases.
fn recorded(kind: &str, steps: usize) -> OpLog {
    recorded_with(kind, steps, 7)
}

fn recorded_with(kind: &str, steps: usize, seed: u64) -> OpLog {
    let mut manager = BlockManager::new(kind, 512, 16, REGION).expect("a pool");
    manager.record().expect("nothing has happened yet");
    manager.pin_prefix(3, 4).expect("free blocks");
    let mut draws = Draws(seed);
    let mut live: Vec<SeqId> = Vec::new();
    let round = Round { width: 2, depth: 3, adopt: Adopt::CopyBack, separate: true };
    for next in 0..steps {
        let seq = SeqId(next as u32);
        if draws.below(3) == 0 && manager.admit(seq, draws.below(300) as u64 + 1).expect("a new sequence") {
            live.push(seq);
        }
        let ones = vec![1; live.len()];
        let done = manager.grow(&live, &ones, 0).expect("known sequences");
        if let Some(&parent) = live.first().filter(|_| done == live.len() && draws.below(8) == 0) {
            let child = SeqId(1 << 20 | next as u32);
            manager.fork(parent, child).expect("at rest");
            live.push(child);
        }
        if done == live.len() && !live.is_empty() && draws.below(4) == 0 {
            manager.speculate(&live[..1], &[1], &[0], &round, 0).expect("known");
        }
        if live.len() > 20 || done < live.len() {
            let gone = live.remove(draws.below(live.len()));
            manager.release(&[gone]).expect("known");
        }
    }
    manager.check().expect("sound");
    manager.log().expect("recorded").clone()
}

fn offset_of(result: Result<impl Sized, Error>) -> u64 {
    match result.err().expect("refused") {
        Error::BadLog { offset, .. } => offset,
        other => panic!("refused otherwise: {other}"),
    }
}

#[test]
fn a_log_comes_back_as_it_was() {
    for kind in kinds() {
        let log = recorded(kind, 400);
        let bytes = log.to_bytes().expect("small numbers");
        assert_eq!(OpLog::from_bytes(&bytes).expect("as written"), log);
        let seen = |operation| log.records().iter().any(|r| r.operation == operation);
        for operation in [
            Operation::Give,
            Operation::Forget,
            Operation::Admit,
            Operation::Grow,
            Operation::Fork,
            Operation::Release,
            Operation::Pin,
            Operation::Speculate,
        ] {
            assert!(seen(operation), "{kind}: no {operation:?}");
        }
        assert!(seen(Operation::Take) && seen(Operation::TakeAt) == (kind == "pim-gather"));
    }
}

#[test]
fn a_flipped_bit_anywhere_is_refused_at_or_before_it() {
    let bytes = recorded("paged", 60).to_bytes().expect("small numbers");
    for at in (0..bytes.len()).step_by(7).chain(0..HEADER_BYTES) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x40;
        let offset = offset_of(OpLog::from_bytes(&damaged)) as usize;
        // A damaged checksum at the end is told of the operations that it is of.
        assert!(offset <= at.max(HEADER_BYTES), "byte {at} was refused at {offset}");
    }
}

#[test]
fn a_log_that_ends_too_soon_or_too_late_is_refused_where_it_ends() {
    let bytes = recorded("paged", 60).to_bytes().expect("small numbers");
    for length in [8, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + RECORD_BYTES, bytes.len() - 1] {
        assert_eq!(offset_of(OpLog::from_bytes(&bytes[..length])), length as u64);
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert_eq!(offset_of(OpLog::from_bytes(&longer)), bytes.len() as u64);
    assert_eq!(offset_of(OpLog::from_bytes(b"")), 0);
    assert_eq!(offset_of(OpLog::from_bytes(b"PK\x03\x04 something else altogether")), 0);
}

#[test]
fn the_recorded_policy_hands_out_the_recorded_ids() {
    for kind in kinds() {
        let log = recorded(kind, 600);
        for heaps in [false, true] {
            let replay = Replay::new(&log, alloc::policy(kind, pool(512, heaps)).expect("a pool"), true, 0);
            let replay = replay.expect("the recorded policy");
            let (takes, same) = replay.agreement();
            assert_eq!((takes, takes > 1000), (same, true));
            for kinds in [Kinds::Mixed, Kinds::Apart] {
                let cuts = replay.cuts(kinds);
                assert_eq!(cuts.iter().map(|c| c.end - c.start).sum::<usize>(), replay.calls());
                let mut ticks = 0;
                let mut clock = || {
                    ticks += 1;
                    ticks
                };
                // The answers are checked again in every timed pass.
                assert_eq!(replay.pass(&cuts, false, &mut clock), Ok(vec![1; cuts.len()]));
                assert_eq!(replay.pass(&cuts, true, &mut clock), Ok(vec![1; cuts.len()]));
            }
        }
    }
}

#[test]
fn another_policy_follows_with_its_own_ids_or_says_where_it_cannot() {
    let log = recorded("pim-aware", 400);
    let paged = || alloc::policy("paged", pool(512, false)).expect("a pool");
    let (takes, same) = Replay::new(&log, paged(), false, 0).expect("it follows").agreement();
    assert!(same < takes / 10);
    let first_take = log.records().iter().position(|r| r.operation == Operation::Take).expect("takes");
    assert_eq!(offset_of(Replay::new(&log, paged(), true, 0)), OpLog::offset(first_take));
    let contiguous = alloc::policy("contiguous", pool(512, false)).expect("a pool");
    assert_eq!(offset_of(Replay::new(&log, contiguous, false, 0)), OpLog::offset(first_take));
}

#[test]
fn a_log_of_another_pool_is_refused_before_anything_is_replayed() {
    let log = recorded("paged", 60);
    let other = alloc::policy("paged", pool(256, false)).expect("a pool");
    let refusal = Replay::new(&log, other, false, 0).err().expect("refused").to_string();
    assert!(refusal.contains("blocks = 256") && refusal.contains("512"), "{refusal}");
}

#[test]
fn recording_starts_with_a_fresh_pool_and_a_refused_draw_leaves_no_trace() {
    let mut manager = BlockManager::new("random", 64, 16, REGION).expect("a pool");
    assert!(manager.log().is_none());
    manager.record().expect("fresh");
    manager.feed(&[5]).expect("in range");
    let before = manager.log().expect("recorded").records().len();
    assert!(manager.admit(SeqId(0), 32).is_err(), "one index for two blocks");
    assert_eq!(manager.log().expect("recorded").records()[before - 1].operation, Operation::Draw);
    let takes = manager.log().expect("recorded").records().iter().filter(|r| r.operation == Operation::Take);
    assert_eq!(takes.count(), 0);
    manager.feed(&[7]).expect("in range");
    assert_eq!(manager.admit(SeqId(0), 32), Ok(true));
    assert!(manager.record().is_err());
    let log = manager.log().expect("recorded").clone();
    let policy = alloc::policy("random", pool(64, false)).expect("a pool");
    assert_eq!(Replay::new(&log, policy, true, 0).expect("as recorded").agreement(), (2, 2));
}

#[test]
fn the_index_repeats_the_heaps_on_every_made_up_log() {
    let logs = [
        oplog::mix(1024, REGION, 32, 20_000),
        oplog::growing(1024, REGION, 16, 100),
        oplog::admitting(1024, REGION, 12, 400),
    ];
    for scenario in logs {
        let scenario = scenario.expect("sound sizes");
        for heaps in [false, true] {
            let policy = alloc::policy("pim-aware", pool(1024, heaps)).expect("a pool");
            let replay = Replay::new(&scenario.log, policy, true, scenario.warm_up).expect("the same ids");
            assert!(replay.calls() > 5000);
        }
    }
    // The worst cases are what they say: no region is empty at any timed operation.
    let scenario = oplog::growing(1024, REGION, 16, 10).expect("sound sizes");
    let policy = alloc::policy("pim-aware", pool(1024, false)).expect("a pool");
    let replay = Replay::new(&scenario.log, policy, true, scenario.warm_up).expect("the same ids");
    assert!(replay.cuts(Kinds::Apart).iter().all(|cut| cut.worst));
}

/// Random takes, gives, plans, compactions and departures on both; ids compared at every operation and the
/// structures verified every 1,024.
fn in_step(regions: u32, size: u32, best_fit: bool, operations: usize, seed: u64) {
    let make = |heaps| {
        let shape = Pool { best_fit, heaps, ..Pool::new(regions * size, size) };
        alloc::policy("pim-aware", shape).expect("a pool")
    };
    let (mut index, mut heaps) = (make(false), make(true));
    let mut draws = Draws(seed);
    let mut held: Vec<BlockId> = Vec::new();
    // The pool fills up and empties again, slowly.
    let mut fills = true;
    for count in 0..operations {
        let owner = Owner(draws.below(12) as u64);
        let kind = draws.below(1000);
        if kind < 10 {
            index.forget(owner);
            heaps.forget(owner);
        } else if kind < 20 {
            let blocks = draws.below(2 * size as usize) as u64;
            index.plan(owner, blocks);
            heaps.plan(owner, blocks);
        } else if kind < 21 {
            let most = draws.below(size as usize + 2) as u32;
            let moves = index.compact(most);
            assert_eq!(moves, heaps.compact(most));
            for (from, to) in moves.expect("regions") {
                let place = held.iter().position(|&b| b == from).expect("it was in use");
                held[place] = to;
            }
        } else if kind < if fills { 600 } else { 400 } {
            let block = index.take(owner);
            assert_eq!(block, heaps.take(owner), "operation {count}");
            held.extend(block);
            fills &= block.is_some();
        } else if !held.is_empty() {
            let block = held.swap_remove(draws.below(held.len()));
            assert_eq!(index.give(block), Ok(()));
            assert_eq!(heaps.give(block), Ok(()));
        } else {
            fills = true;
        }
        if count % 1024 == 0 {
            index.check().expect("a sound index");
            heaps.check().expect("sound heaps");
            assert_eq!(index.free_blocks(), heaps.free_blocks());
        }
    }
}

/// A million in all; `PIMKV_SOAK_OPERATIONS=100000000 cargo test --release --test oplog soak` for a long run.
#[test]
fn the_index_repeats_the_heaps_over_a_million_random_operations_or_a_soak() {
    let asked = std::env::var("PIMKV_SOAK_OPERATIONS").ok();
    let operations: usize = asked.map_or(1_000_000, |n| n.parse().expect("a number of operations"));
    let shapes = [(1, 8), (2, 1), (7, 3), (48, 8), (65, 8), (16, 64), (9, 65), (130, 4)];
    for (turn, (regions, size)) in (1_u64..).zip(shapes) {
        in_step(regions, size, turn % 2 == 0, operations / shapes.len(), turn);
    }
    // Recorded runs on the index, replayed on the heaps: a tenth as many operations again.
    let mut left = operations / 10;
    for seed in 1.. {
        let log = recorded_with("pim-aware", 2000, seed);
        let policy = alloc::policy("pim-aware", pool(512, true)).expect("a pool");
        Replay::new(&log, policy, true, 0).expect("the same ids");
        left = left.saturating_sub(log.records().len());
        if left == 0 {
            break;
        }
    }
}
