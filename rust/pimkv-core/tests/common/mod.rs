//! Random geometries and address maps for the tests that place bursts.

use std::ops::RangeInclusive;

use pimkv_core::dram::{AddressMap, Geometry};
use proptest::collection::vec;
use proptest::prelude::*;

const NAMES: [&str; 5] = ["ch", "bg", "ba", "col", "row"];

/// The published device and its default map.
pub(crate) const HBM3: Geometry = Geometry {
    channels: 32,
    bank_groups: 4,
    banks_per_group: 4,
    rows: 16384,
    row_bytes: 1024,
    burst_bytes: 32,
};
pub(crate) const HOST_CACHELINE: &str = "row:14 col:4 bg:2 ba:2 ch:5 col:1";

/// A map as its text, which is what a failing case should print.
#[derive(Clone, Debug)]
pub(crate) struct MapText {
    pub(crate) geometry: Geometry,
    pub(crate) text: String,
}

impl MapText {
    pub(crate) fn parse(&self) -> AddressMap {
        AddressMap::parse(&self.text, self.geometry).expect("a valid map")
    }
}

/// `bits` bits of a field in one segment, cut before each bit that `cuts` names.
fn segments(name: &str, bits: u32, cuts: u32) -> Vec<String> {
    let mut widths = Vec::new();
    for bit in 0..bits {
        match widths.last_mut() {
            Some(width) if cuts >> bit & 1 == 0 => *width += 1,
            _ => widths.push(1),
        }
    }
    widths.into_iter().map(|width| format!("{name}:{width}")).collect()
}

/// Maps of about 2^`bits` bursts: fields cut into segments in any order, with up to three hashes.
pub(crate) fn maps(bits: RangeInclusive<u32>) -> impl Strategy<Value = MapText> {
    let fields = (0..=5_u32, 0..=2_u32, 0..=2_u32, 0..=5_u32, bits).prop_map(|(ch, bg, ba, col, all)| {
        // The row takes what is left over.
        [ch, bg, ba, col, all.saturating_sub(ch + bg + ba + col).min(24)]
    });
    let cuts = any::<[[u32; 5]; 2]>().prop_map(|[a, b]| [0, 1, 2, 3, 4].map(|i| a[i] & b[i]));
    let hashes = vec((0..3_usize, any::<prop::sample::Index>()), 0..=3);
    (fields, cuts, hashes, 0..=6_u32).prop_flat_map(|(bits, cuts, hashes, burst)| {
        let [ch, bg, ba, col, row] = bits;
        let geometry = Geometry {
            channels: 1 << ch,
            bank_groups: 1 << bg,
            banks_per_group: 1 << ba,
            rows: 1 << row,
            row_bytes: 1 << (col + burst),
            burst_bytes: 1 << burst,
        };
        let segments: Vec<_> = (0..5).flat_map(|i| segments(NAMES[i], bits[i], cuts[i])).collect();
        let hashes = if row == 0 { Vec::new() } else { hashes };
        let hashes: Vec<_> = hashes
            .iter()
            .map(|(field, shift)| format!("{}^row:{}", NAMES[*field], shift.index(row as usize)))
            .collect();
        Just(segments).prop_shuffle().prop_map(move |segments| {
            let text = format!("{}; {}", segments.join(" "), hashes.join(" "));
            MapText { geometry, text }
        })
    })
}
