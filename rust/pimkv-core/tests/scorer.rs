//! Is incremental scoring the same as scoring from scratch? Random tables that grow, leave and come back
//! under the same name, on random maps, against a model that expands every burst and groups slowly.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{HBM3, HOST_CACHELINE, MapText, maps};
use pimkv_core::dram::AddressMap;
use pimkv_core::grouper::{Coalesce, Grouping, Stream, Tally};
use pimkv_core::manager::{Adopt, BlockManager, Round};
use pimkv_core::scorer::Scorer;
use pimkv_core::{Error, SeqId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::FileFailurePersistence::WithSource;

/// The bursts of a channel: (bank, row).
type Bursts = Vec<(u32, u32)>;

/// Every channel's bursts of a sequence's tokens, in token order.
fn expand(
    map: &AddressMap,
    manager: &BlockManager,
    seq: SeqId,
    token_bursts: u64,
) -> Result<Vec<Bursts>, Error> {
    let block_tokens = u64::from(manager.block_tokens());
    let table = manager.table(seq)?;
    let mut channels = vec![Bursts::new(); map.geometry().channels as usize];
    for token in 0..table.tokens() {
        let block = u64::from(table.blocks()[(token / block_tokens) as usize].0);
        let first = (block * block_tokens + token % block_tokens) * token_bursts;
        for burst in first..first + token_bursts {
            let place = map.decode(burst);
            channels[place.channel as usize].push((place.bank, place.row));
        }
    }
    Ok(channels)
}

/// Per window: a row's bursts form a group that needs as many commands as its fullest bank has bursts; each
/// distinct row is a visit, but the row of the last burst of the window before goes on with its own. Returns
/// the visits' commands.
fn windows(bursts: &Bursts, window: usize) -> Vec<u64> {
    let mut visits: Vec<u64> = Vec::new();
    let mut carried = None;
    for window in bursts.chunks(window) {
        let mut groups: BTreeMap<u32, BTreeMap<u32, u64>> = BTreeMap::new();
        for &(bank, row) in window {
            *groups.entry(row).or_default().entry(bank).or_default() += 1;
        }
        let last = window.last().map(|burst| burst.1);
        let mut goes_on = None;
        for (row, banks) in groups {
            let commands = banks.values().max().copied().unwrap_or_default();
            let visit = match carried {
                Some((of, visit)) if of == row => visit,
                _ => {
                    visits.push(0);
                    visits.len() - 1
                }
            };
            visits[visit] += commands;
            if last == Some(row) {
                goes_on = Some((row, visit));
            }
        }
        carried = goes_on;
    }
    visits
}

/// A command closes when the row changes, a bank repeats or it is full; commands of one row in a row are one
/// visit. Returns the visits' commands.
fn in_order(bursts: &Bursts, banks: u32) -> Vec<u64> {
    let mut commands: Vec<(u32, BTreeSet<u32>)> = Vec::new();
    for &(bank, row) in bursts {
        match commands.last_mut() {
            Some((open, seen)) if *open == row && !seen.contains(&bank) && seen.len() < banks as usize => {
                seen.insert(bank);
            }
            _ => commands.push((row, BTreeSet::from([bank]))),
        }
    }
    commands.chunk_by(|a, b| a.0 == b.0).map(|visit| visit.len() as u64).collect()
}

/// A visit of c commands has an activation for every ceil(c / stride) of them.
fn from_scratch(channels: &[Bursts], grouping: Grouping, banks: u32) -> Tally {
    let mut sum = Tally::default();
    for bursts in channels {
        let visits = match grouping.coalesce {
            Coalesce::Window(window) => windows(bursts, window as usize),
            Coalesce::InOrder => in_order(bursts, banks),
        };
        sum.bursts += bursts.len() as u64;
        for commands in visits {
            let (mut left, mut activations) = (commands, 0);
            while left > 0 {
                left = left.saturating_sub(commands.div_ceil(grouping.stride.into()));
                activations += 1;
            }
            sum.commands += commands;
            sum.hits += commands - activations;
        }
    }
    sum
}

#[derive(Clone, Debug)]
enum Op {
    Admit(SeqId, u64),
    /// The batch appends tokens; it ends at the first sequence that finds no block.
    Grow(Vec<(SeqId, u64)>),
    Fork(SeqId, SeqId),
    /// Copy-on-write of the block at this share (in 1/256) of the sequence.
    Write(SeqId, u8),
    /// A round of two branches of three drafts; advances and picks from the bits of a number.
    Speculate {
        seqs: Vec<SeqId>,
        bits: u32,
        adopt: Adopt,
    },
    /// `told` says whether the scorers hear of it.
    Release {
        seq: SeqId,
        told: bool,
    },
}

const SEQUENCES: u32 = 3;

fn ops() -> impl Strategy<Value = Vec<(Op, u8)>> {
    let seq = || (0..SEQUENCES).prop_map(SeqId);
    let op = prop_oneof![
        3 => (seq(), 1..20_u64).prop_map(|(seq, tokens)| Op::Admit(seq, tokens)),
        5 => vec((seq(), prop_oneof![3 => Just(1), 1 => 1..12_u64]), 1..5).prop_map(Op::Grow),
        2 => (seq(), seq()).prop_map(|(parent, child)| Op::Fork(parent, child)),
        2 => (seq(), any::<u8>()).prop_map(|(seq, share)| Op::Write(seq, share)),
        2 => (vec(seq(), 1..3), any::<u32>(), prop::sample::select(&[Adopt::Splice, Adopt::CopyBack]))
            .prop_map(|(seqs, bits, adopt)| Op::Speculate { seqs, bits, adopt }),
        1 => (seq(), any::<bool>()).prop_map(|(seq, told)| Op::Release { seq, told }),
    ];
    // The number says, bit by bit, at whom the second scorer looks.
    vec((op, any::<u8>()), 1..24)
}

/// What is scored: a map, sizes, a policy, and the rules of two scorers.
#[derive(Clone, Debug)]
struct Case {
    map: MapText,
    token_bursts: u64,
    block_tokens: u64,
    kind: &'static str,
    grouping: [Grouping; 2],
}

fn groupings() -> impl Strategy<Value = Grouping> {
    let coalesce = prop_oneof![3 => (1..=100_u32).prop_map(Coalesce::Window), 1 => Just(Coalesce::InOrder)];
    let stride = prop_oneof![2 => Just(1), 2 => 2..=7_u32, 1 => Just(64)];
    (coalesce, stride).prop_map(|(coalesce, stride)| Grouping { coalesce, stride })
}

fn cases() -> impl Strategy<Value = Case> {
    let token_bursts = prop_oneof![1..=160_u64, (1..=5_u64, 0..=5_u32).prop_map(|(odd, log2)| odd << log2)];
    let kind = prop::sample::select(&["paged", "pim-aware"]);
    (maps(8..=12), token_bursts, 1..=12_u64, kind, [groupings(), groupings()]).prop_map(
        |(map, token_bursts, block_tokens, kind, grouping)| {
            // At least two blocks fit.
            let most = map.geometry.bursts() / 2;
            let token_bursts = token_bursts.min(most);
            Case { map, token_bursts, block_tokens: block_tokens.min(most / token_bursts), kind, grouping }
        },
    )
}

impl Case {
    fn scorer(&self, grouping: Grouping) -> Result<Scorer, Error> {
        let token_bytes = self.token_bursts * u64::from(self.map.geometry.burst_bytes);
        Scorer::new(&self.map.parse(), token_bytes * self.block_tokens, token_bytes, grouping)
    }

    /// As many blocks as the memory holds, up to 24.
    fn manager(&self) -> Result<BlockManager, Error> {
        let fit = self.map.geometry.bursts() / (self.token_bursts * self.block_tokens);
        BlockManager::new(self.kind, fit.min(24) as u32 & !1, self.block_tokens as u32, 2)
    }

    fn drive(&self, ops: Vec<(Op, u8)>) -> Result<(), TestCaseError> {
        let map = self.map.parse();
        let mut manager = self.manager()?;
        let mut scorers = [self.scorer(self.grouping[0])?, self.scorer(self.grouping[1])?];
        let mut totals = [Tally::default(); 2];
        for (op, look) in ops {
            match op {
                Op::Admit(seq, tokens) => {
                    if manager.table(seq).is_err() {
                        manager.admit(seq, tokens)?;
                    }
                }
                Op::Grow(mut batch) => {
                    batch.retain(|(seq, _)| manager.table(*seq).is_ok());
                    let (seqs, tokens): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
                    manager.grow(&seqs, &tokens, 0)?;
                }
                Op::Fork(parent, child) => {
                    // Refused for a stranger, for a child that is there, and in mid-growth.
                    let _ = manager.fork(parent, child);
                }
                Op::Write(seq, share) => {
                    if let Ok(table) = manager.table(seq) {
                        let position = table.tokens() * u64::from(share) / 256;
                        manager.write(seq, position)?;
                    }
                }
                Op::Speculate { mut seqs, bits, adopt } => {
                    seqs.retain(|seq| manager.table(*seq).is_ok());
                    let round = Round { width: 2, depth: 3, adopt, separate: bits & 1 == 1 };
                    let advances: Vec<_> =
                        (0..seqs.len()).map(|i| 1 + u64::from(bits >> (2 * i + 1) & 3)).collect();
                    let picks: Vec<_> = (0..seqs.len()).map(|i| bits >> (i + 8) & 1).collect();
                    // Refused for a splice in mid-growth.
                    let _ = manager.speculate(&seqs, &advances, &picks, &round, 0);
                }
                Op::Release { seq, told } => {
                    if manager.table(seq).is_ok() {
                        manager.release(&[seq])?;
                        if told {
                            for scorer in &mut scorers {
                                scorer.forget(seq);
                            }
                        }
                    }
                }
            }
            // The first scorer sees every step of every sequence, the second some steps of some.
            let mut expected = [Vec::new(), Vec::new()];
            let mut looked_at = [Vec::new(), Vec::new()];
            for seq in manager.sequences() {
                let channels = expand(&map, &manager, seq, self.token_bursts)?;
                for (i, grouping) in self.grouping.into_iter().enumerate() {
                    if i == 0 || look >> seq.0 & 1 == 1 {
                        let tally = from_scratch(&channels, grouping, map.geometry().banks());
                        prop_assert_eq!(tally.bursts, manager.table(seq)?.tokens() * self.token_bursts);
                        totals[i] += tally;
                        expected[i].push(tally);
                        looked_at[i].push(seq);
                    }
                }
            }
            for i in 0..2 {
                let tallies = scorers[i].observe(&mut manager, &looked_at[i])?;
                prop_assert_eq!(&tallies, &expected[i], "{:?}", &looked_at[i]);
                prop_assert_eq!(scorers[i].totals(), totals[i]);
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_failure_persistence(WithSource("regressions")))]

    #[test]
    fn incremental_scoring_is_scoring_from_scratch(case in cases(), ops in ops()) {
        case.drive(ops)?;
    }

    /// One channel by itself: after each burst its tally is that of the bursts so far, and a copy taken
    /// anywhere, into a stream that has seen others, goes on like the original.
    #[test]
    fn a_stream_may_be_read_and_copied_after_any_burst(
        (bank_bits, grouping) in (0..=4_u32, groupings()),
        bursts in vec((any::<u32>(), 0..4_u32), 1..300),
        cut in any::<Index>(),
    ) {
        let banks = 1 << bank_bits;
        let bursts: Bursts = bursts.into_iter().map(|(bank, row)| (bank % banks, row)).collect();
        let cut = cut.index(bursts.len());
        let (mut stream, mut copy) = (Stream::default(), Stream::default());
        for &(bank, row) in bursts.iter().rev() {
            copy.push(grouping, banks, bank, row, |_| ());
        }
        for (i, &(bank, row)) in bursts.iter().enumerate() {
            if i == cut {
                copy.clone_from(&stream);
            }
            stream.push(grouping, banks, bank, row, |_| ());
            let so_far = from_scratch(&[bursts[..=i].to_vec()], grouping, banks);
            prop_assert_eq!(stream.tally(grouping.stride), so_far, "after burst {}", i);
            if i >= cut {
                copy.push(grouping, banks, bank, row, |_| ());
                prop_assert_eq!(copy.tally(grouping.stride), so_far, "the copy, after burst {}", i);
            }
        }
        let mut stream = Stream::default();
        prop_assert_eq!(stream.tally(grouping.stride), Tally::default());
        for &(bank, row) in &bursts {
            stream.push(grouping, banks, bank, row, |_| ());
        }
        prop_assert_eq!(stream.tally(grouping.stride), copy.tally(grouping.stride));
    }
}

/// A pool on the published device with one sequence of 40 tokens.
fn published(blocks: u32, block_tokens: u32) -> Result<BlockManager, Error> {
    let mut manager = BlockManager::new("paged", blocks, block_tokens, 8)?;
    manager.admit(SeqId(7), 40)?;
    Ok(manager)
}

fn scorer(block_bytes: u64, token_bytes: u64, grouping: impl Into<Grouping>) -> Result<Scorer, Error> {
    Scorer::new(&AddressMap::parse(HOST_CACHELINE, HBM3)?, block_bytes, token_bytes, grouping)
}

/// The published map folds all 32 channels into one; the answer is that of all 32.
#[test]
fn one_channel_stands_for_all_on_the_published_map() -> Result<(), Error> {
    let map = AddressMap::parse(HOST_CACHELINE, HBM3)?;
    let mut manager = published(64, 16)?;
    for coalesce in [Coalesce::Window(64), Coalesce::InOrder] {
        let channels = expand(&map, &manager, SeqId(7), 128)?;
        let tally = scorer(16 * 4096, 4096, coalesce)?.observe(&mut manager, &[SeqId(7)])?;
        assert_eq!(tally, [from_scratch(&channels, coalesce.into(), HBM3.banks())]);
    }
    Ok(())
}

/// Tokens larger than the runs that the scorer looks up are scored run by run.
#[test]
fn huge_tokens_are_scored_run_by_run() -> Result<(), Error> {
    // Rows and channels change within a token, from run to run.
    let map = AddressMap::parse("row:2 ch:2 col:5 bg:2 row:12 ba:2 ch:3; ba^row:1", HBM3)?;
    let (token_bursts, coalesce) = (1 << 14, Coalesce::Window(64));
    let mut manager = BlockManager::new("paged", 4, 2, 1)?;
    manager.admit(SeqId(7), 5)?;
    let mut scorer = Scorer::new(&map, token_bursts * 64, token_bursts * 32, coalesce)?;
    let channels = expand(&map, &manager, SeqId(7), token_bursts)?;
    let expected = from_scratch(&channels, coalesce.into(), HBM3.banks());
    assert_eq!(scorer.observe(&mut manager, &[SeqId(7)])?, [expected]);
    Ok(())
}

#[test]
fn a_refused_observation_counts_nothing() -> Result<(), Error> {
    let mut manager = published(64, 16)?;
    let mut scorer = scorer(16 * 4096, 4096, Coalesce::Window(64))?;
    let before = scorer.observe(&mut manager, &[SeqId(7)])?;
    let refused = scorer.observe(&mut manager, &[SeqId(7), SeqId(8)]);
    assert_eq!(refused, Err(Error::UnknownSequence(SeqId(8))));
    assert_eq!(scorer.totals(), before[0]);
    assert_eq!(scorer.observe(&mut manager, &[])?, []);
    assert_eq!(scorer.observe(&mut manager, &[SeqId(7)])?, before);
    Ok(())
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for (block_bytes, token_bytes, coalesce, named) in [
        (4096, 0, Coalesce::InOrder, "token_bytes = 0"),
        (4096, 40, Coalesce::InOrder, "token_bytes = 40"),
        (0, 4096, Coalesce::InOrder, "block_bytes = 0"),
        (6144, 4096, Coalesce::InOrder, "block_bytes = 6144"),
        (65536, 4096, Coalesce::Window(0), "window = 0"),
        // 8 GiB of memory: not a block of 16 GiB, however large its tokens are.
        (1 << 34, 4096, Coalesce::Window(64), "block_bytes = 17179869184"),
        (1 << 62, 1 << 62, Coalesce::Window(64), "token_bytes = 4611686018427387904"),
    ] {
        let refusal = scorer(block_bytes, token_bytes, coalesce).err().map(|e| e.to_string());
        let refusal = refusal.unwrap_or_default();
        assert!(refusal.starts_with(named), "{named}: {refusal}");
    }
}

#[test]
fn strides_that_cannot_be_are_refused() {
    let coalesce = Coalesce::Window(64);
    for (stride, refused) in [(0, true), (1, false), (4096, false), (4097, true)] {
        let scorer = scorer(65536, 4096, Grouping { coalesce, stride });
        let refusal = scorer.err().map(|e| e.to_string()).unwrap_or_default();
        assert_eq!(refusal.starts_with(&format!("mac_stride = {stride}")), refused, "{stride}: {refusal}");
    }
}

/// A table that the scorer would read at the wrong place, or beyond the memory, is refused.
#[test]
fn a_pool_that_does_not_match_is_refused() -> Result<(), Error> {
    let refused = |blocks, block_tokens, block_bytes| -> Result<String, Error> {
        let observed = scorer(block_bytes, 4096, Coalesce::Window(64))?
            .observe(&mut published(blocks, block_tokens)?, &[SeqId(7)]);
        Ok(observed.err().map(|e| e.to_string()).unwrap_or_default())
    };
    // The memory has 131,072 blocks of 64 KiB.
    assert_eq!(refused(131_072, 16, 65536)?, "");
    assert!(refused(131_073, 16, 65536)?.starts_with("blocks = 131073"));
    // The scorer's blocks have 16 tokens.
    assert!(refused(64, 32, 65536)?.starts_with("block_tokens = 32"));
    assert!(refused(64, 8, 65536)?.starts_with("block_tokens = 8"));
    Ok(())
}

/// Two pools may name their sequences alike; a scorer that goes from one to the other starts over.
#[test]
fn pools_are_not_mistaken_for_each_other() -> Result<(), Error> {
    let (mut one, mut other) = (published(64, 16)?, BlockManager::new("pim-aware", 64, 16, 8)?);
    other.admit(SeqId(7), 48)?;
    let fresh = || scorer(16 * 4096, 4096, Coalesce::Window(64));
    let expected = [fresh()?.observe(&mut one, &[SeqId(7)])?, fresh()?.observe(&mut other, &[SeqId(7)])?];
    let mut moving = fresh()?;
    for _ in 0..2 {
        assert_eq!(moving.observe(&mut one, &[SeqId(7)])?, expected[0]);
        assert_eq!(moving.observe(&mut other, &[SeqId(7)])?, expected[1]);
    }
    Ok(())
}
