//! Is the address map the bijection its text describes? Random geometries, cuts and hashes, against a reading
//! of the text bit by bit.

mod common;

use std::collections::HashSet;

use common::{HBM3, HOST_CACHELINE, MapText, maps};
use pimkv_core::Error;
use pimkv_core::dram::{AddressMap, Geometry, Place};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence::WithSource;

/// Reads the text from the right, one address bit after the other, then applies the hashes.
fn read(map: &MapText, burst: u64) -> Place {
    let (fields, hashes) = map.text.split_once(';').expect("fields; hashes");
    let [mut ch, mut bg, mut ba, mut row, mut col] = <[Vec<u64>; 5]>::default();
    let mut address = burst;
    for token in fields.split_whitespace().rev() {
        let (name, width) = token.split_once(':').expect("field:bits");
        for _ in 0..width.parse::<u32>().expect("bits") {
            let bits = match name {
                "ch" => &mut ch,
                "bg" => &mut bg,
                "ba" => &mut ba,
                "row" => &mut row,
                _ => &mut col,
            };
            bits.push(address % 2);
            address /= 2;
        }
    }
    for token in hashes.split_whitespace() {
        let (name, shift) = token.split_once("^row:").expect("field^row:shift");
        let bits = match name {
            "ch" => &mut ch,
            "bg" => &mut bg,
            _ => &mut ba,
        };
        for (bit, row_bit) in bits.iter_mut().zip(&row[shift.parse().expect("a shift")..]) {
            *bit ^= row_bit;
        }
    }
    let number = |bits: &[u64]| bits.iter().rev().fold(0, |n, bit| 2 * n + *bit as u32);
    let bank = number(&bg) * map.geometry.banks_per_group + number(&ba);
    Place { channel: number(&ch), bank, row: number(&row), column: number(&col) }
}

fn xor(a: Place, b: Place) -> Place {
    Place {
        channel: a.channel ^ b.channel,
        bank: a.bank ^ b.bank,
        row: a.row ^ b.row,
        column: a.column ^ b.column,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_failure_persistence(WithSource("regressions")))]

    #[test]
    fn large_maps_are_the_linear_bijections_their_text_says(
        map in maps(14..=38),
        numbers in vec(any::<[u64; 2]>(), 1..32),
    ) {
        let (g, parsed) = (map.geometry, map.parse());
        for [a, b] in numbers {
            let (burst, other) = (a % g.bursts(), b % g.bursts());
            let place = parsed.decode(burst);
            prop_assert_eq!(place, read(&map, burst));
            prop_assert_eq!(parsed.encode(place), burst);
            prop_assert_eq!(parsed.decode(burst ^ other), xor(place, parsed.decode(other)));
            let any_place = Place {
                channel: a as u32 % g.channels,
                bank: (a >> 32) as u32 % g.banks(),
                row: b as u32 % g.rows,
                column: (b >> 32) as u32 % (g.row_bytes / g.burst_bytes),
            };
            let its_burst = parsed.encode(any_place);
            prop_assert!(its_burst < g.bursts());
            prop_assert_eq!(parsed.decode(its_burst), any_place);
        }
    }

    #[test]
    fn small_maps_give_every_burst_a_place_of_its_own(map in maps(0..=10)) {
        let (g, parsed) = (map.geometry, map.parse());
        let mut places = HashSet::new();
        for burst in 0..g.bursts() {
            let place = parsed.decode(burst);
            prop_assert!(place.channel < g.channels && place.bank < g.banks());
            prop_assert!(place.row < g.rows && place.column < g.row_bytes / g.burst_bytes);
            prop_assert!(places.insert((place.channel, place.bank, place.row, place.column)));
        }
    }

    /// Channels that are called alike see the same banks and rows in the same order, in every run.
    #[test]
    fn alike_channels_see_the_same_stream(map in maps(4..=11), log2 in 0..=8_u32) {
        let (g, parsed) = (map.geometry, map.parse());
        let mask = parsed.alike_channels(log2);
        prop_assert!(mask < g.channels);
        let log2 = log2.min(g.bursts().ilog2());
        for run in 0..g.bursts() >> log2 {
            let mut streams = vec![Vec::new(); g.channels as usize];
            for burst in run << log2..(run + 1) << log2 {
                let place = parsed.decode(burst);
                streams[place.channel as usize].push((place.bank, place.row));
            }
            for channel in 0..g.channels {
                prop_assert_eq!(&streams[channel as usize], &streams[(channel & !mask) as usize]);
            }
        }
        // Nothing is given away either: without a channel hash, every channel bit that moves in a run counts.
        if !map.text.contains("ch^") {
            let moving = (0..log2).map(|bit| parsed.decode(1 << bit).channel).fold(0, |all, bit| all | bit);
            prop_assert_eq!(mask, moving);
        }
    }

    /// A text is read or refused in words that quote it; it never panics.
    #[test]
    fn any_text_is_read_or_refused(text in prop_oneof![
        "\\PC{0,40}",
        "((row|col|bg|ba|ch|cow)[:^]{0,2}[0-9+-]{0,11}[ ;]{1,2}){0,8}",
        "row:14 col:[0-9] bg:2 ba:2 ch:5 col:[0-9];( (ch|bg|ba|col|row)\\^row:[0-9]{1,2}){0,3}",
    ]) {
        if let Err(error) = AddressMap::parse(&text, HBM3) {
            prop_assert!(error.to_string().contains(&format!("{text:?}")), "{}", error);
        }
    }
}

/// The fields of a burst, given its bits from one up, so many of them: channel, group, bank, row, column.
type Layout = fn(&dyn Fn(u32, u32) -> u32) -> [u32; 5];

#[test]
fn the_published_maps_are_these() -> Result<(), Error> {
    let maps: [(&str, Layout); 3] = [
        ("row:14 bg:2 ba:2 ch:5 col:5", |b| [b(5, 5), b(12, 2), b(10, 2), b(14, 14), b(0, 5)]),
        (HOST_CACHELINE, |b| [b(1, 5), b(8, 2), b(6, 2), b(14, 14), b(10, 4) << 1 | b(0, 1)]),
        ("ch:5 row:14 col:5 bg:2 ba:2", |b| [b(23, 5), b(2, 2), b(0, 2), b(9, 14), b(4, 5)]),
    ];
    for (text, layout) in maps {
        let map = AddressMap::parse(text, HBM3)?;
        for burst in (0..HBM3.bursts()).step_by(10_007) {
            let bits = |from: u32, width: u32| (burst >> from & ((1 << width) - 1)) as u32;
            let [channel, group, bank, row, column] = layout(&bits);
            assert_eq!(map.decode(burst), Place { channel, bank: group * 4 + bank, row, column }, "{text}");
        }
    }
    Ok(())
}

#[test]
fn a_geometry_that_cannot_be_is_refused() {
    let refused = |change: fn(&mut Geometry)| {
        let mut geometry = HBM3;
        change(&mut geometry);
        AddressMap::parse(HOST_CACHELINE, geometry).err().map(|e| e.to_string()).unwrap_or_default()
    };
    for (change, named) in [
        ((|g| g.channels = 0) as fn(&mut Geometry), "channels = 0"),
        (|g| g.channels = 24, "channels = 24"),
        (|g| g.rows = 1 << 25, "rows = 33554432"),
        (|g| g.burst_bytes = 2048, "burst_bytes = 2048"),
        (|g| g.bank_groups = 1 << 10, "banks = 4096"),
        (|g| (g.channels, g.rows, g.row_bytes) = (1 << 24, 1 << 24, 1 << 24), "rows = 16777216"),
    ] {
        assert!(refused(change).starts_with(named), "{named}: {}", refused(change));
    }
}
