//! The shape of K and V pages: which columns of which of their row groups hold what.

use crate::alloc::MAX_BLOCKS;
use crate::error::{Error, Result};
use crate::manager::Page;

/// Most banks, bytes, elements and tokens: products of three of them stay within 64 bits.
const LARGEST: u32 = 1 << 20;

/// Channels made of row groups, and the pages that lie in them.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Channels: command queues, each with all pseudo-channels that a command acts on.
    pub channels: u32,
    /// Row groups of a channel.
    pub rows: u32,
    /// Banks that a command acts on.
    pub banks: u32,
    /// Bytes of one bank's row.
    pub row_bytes: u32,
    /// Bytes of a burst.
    pub burst_bytes: u32,
    /// Elements of K of a token, and of V.
    pub elements: u32,
    /// Bytes of an element.
    pub dtype_bytes: u32,
    /// Tokens of a K page.
    pub k_tokens: u32,
    /// Tokens of a V page.
    pub v_tokens: u32,
}

impl Shape {
    pub(super) fn validate(&self) -> Result<()> {
        for (name, value, most) in [
            ("channels", self.channels, MAX_BLOCKS),
            ("rows", self.rows, MAX_BLOCKS),
            ("banks", self.banks, LARGEST),
            ("row_bytes", self.row_bytes, LARGEST),
            ("burst_bytes", self.burst_bytes, LARGEST),
            ("elements", self.elements, LARGEST),
            ("dtype_bytes", self.dtype_bytes, LARGEST),
            ("k_tokens", self.k_tokens, LARGEST),
            ("v_tokens", self.v_tokens, LARGEST),
        ] {
            if !(1..=most).contains(&value) {
                return Err(Error::invalid(name, value, format!("allowed 1 to {most}")));
            }
        }
        if !self.row_bytes.is_multiple_of(self.burst_bytes) {
            let allowed = format!("a multiple of the burst, {}", self.burst_bytes);
            return Err(Error::invalid("row_bytes", self.row_bytes, allowed));
        }
        if !self.part_bytes().is_multiple_of(self.burst_bytes.into()) {
            let allowed = format!("whole bursts of {} bytes in a token", self.burst_bytes);
            return Err(Error::invalid("elements", self.elements, allowed));
        }
        let too_large = self.sheets().into_iter().find(|sheet| sheet.row_groups() > MAX_BLOCKS.into());
        match too_large {
            Some(sheet) => {
                let allowed = format!("pages of at most {MAX_BLOCKS} row groups");
                Err(Error::invalid("elements", sheet.row_groups(), allowed))
            }
            None => Ok(()),
        }
    }

    /// Bytes of K of a token, and of V.
    fn part_bytes(&self) -> u64 {
        u64::from(self.elements) * u64::from(self.dtype_bytes)
    }

    /// Bursts of K of a token, and of V.
    pub(super) fn token_bursts(&self) -> u64 {
        self.part_bytes() / u64::from(self.burst_bytes)
    }

    /// Columns that so many tokens of one dimension take.
    fn columns_of(&self, tokens: u64) -> u64 {
        (tokens * u64::from(self.dtype_bytes)).div_ceil(self.burst_bytes.into())
    }

    /// K pages and V pages.
    pub(super) fn sheets(&self) -> [Sheet; 2] {
        let (k, v) = (u64::from(self.k_tokens), u64::from(self.v_tokens));
        let sheet = |of_v, tokens, slots: u64, stride| Sheet {
            shape: *self,
            of_v,
            tokens,
            slots: slots.div_ceil(self.banks.into()),
            stride,
            columns: (self.row_bytes / self.burst_bytes).into(),
        };
        [sheet(false, k, k, self.token_bursts()), sheet(true, v, self.elements.into(), self.columns_of(v))]
    }

    /// What a manager hands out for them.
    #[must_use]
    pub fn pages(&self) -> [Page; 2] {
        // A valid shape has pages of at most `MAX_BLOCKS` row groups.
        self.sheets().map(|sheet| Page { tokens: sheet.tokens as u32, blocks: sheet.row_groups() as u32 })
    }
}

/// A kind of page. Every bank holds slots, one behind the other and over from row to row: of K one token each
/// (token t in bank t mod banks), of V one dimension each (dimension d in bank d mod banks).
#[derive(Clone, Copy, Debug)]
pub(super) struct Sheet {
    shape: Shape,
    of_v: bool,
    /// Tokens of a full page.
    pub(super) tokens: u64,
    /// Slots of a bank.
    slots: u64,
    /// Columns of a slot.
    stride: u64,
    /// Columns of a row.
    columns: u64,
}

impl Sheet {
    /// Row groups of a page.
    fn row_groups(&self) -> u64 {
        (self.slots * self.stride).div_ceil(self.columns)
    }

    /// Column commands of each row visit of a page that holds so many tokens: a command for each column that
    /// holds anything in any bank.
    pub(super) fn visits(&self, tokens: u64) -> Vec<u32> {
        let (slots, used) = if !self.of_v {
            (tokens.div_ceil(self.shape.banks.into()), self.stride)
        } else if tokens == 0 {
            (0, 0)
        } else {
            (self.slots, self.shape.columns_of(tokens))
        };
        let mut visits: Vec<(u64, u32)> = Vec::new();
        for slot in 0..slots {
            for (row, columns) in self.rows_of(slot, 0, used) {
                match visits.last_mut() {
                    Some((last, commands)) if *last == row => *commands += columns,
                    _ => visits.push((row, columns)),
                }
            }
        }
        visits.into_iter().map(|(_, commands)| commands).collect()
    }

    /// The rows of a page that hold columns `first..end` of a slot, with how many each.
    fn rows_of(&self, slot: u64, first: u64, end: u64) -> impl Iterator<Item = (u64, u32)> {
        let (start, end, columns) = (slot * self.stride + first, slot * self.stride + end, self.columns);
        let rows = if start < end { start / columns..(end - 1) / columns + 1 } else { 0..0 };
        rows.map(move |row| {
            // At most the columns of a row.
            (row, (end.min((row + 1) * columns) - start.max(row * columns)) as u32)
        })
    }

    /// Bursts and row activations, a bank each, of writing tokens `first..end` of a page in one go.
    pub(super) fn written(&self, first: u64, end: u64) -> (u64, u64) {
        let banks = u64::from(self.shape.banks);
        // Of each row of the page how many banks are opened: with tokens, or with dimensions, from bank 0 on.
        let (mut bursts, mut opened) = (0, Vec::<(u64, u64)>::new());
        if self.of_v {
            let start = first * u64::from(self.shape.dtype_bytes) / u64::from(self.shape.burst_bytes);
            let columns = (start, self.shape.columns_of(end));
            for slot in 0..self.slots {
                let held = banks.min(u64::from(self.shape.elements) - slot * banks);
                bursts += held * (columns.1 - columns.0);
                for (row, _) in self.rows_of(slot, columns.0, columns.1) {
                    match opened.last_mut() {
                        // An earlier slot of the row has all banks.
                        Some((last, _)) if *last == row => {}
                        _ => opened.push((row, held)),
                    }
                }
            }
            return (bursts, opened.iter().map(|(_, banks)| banks).sum());
        }
        let mut places: Vec<(u64, u64)> = (first..end)
            .flat_map(|token| {
                self.rows_of(token / banks, 0, self.stride).map(move |(row, _)| (token % banks, row))
            })
            .collect();
        places.sort_unstable();
        places.dedup();
        ((end - first) * self.stride, places.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Llama-3-8B in fp16 on so many banks with rows of so many bytes.
    fn sheets(banks: u32, row_bytes: u32) -> [Sheet; 2] {
        let shape = Shape {
            channels: 1,
            rows: 64,
            banks,
            row_bytes,
            burst_bytes: 32,
            elements: 1024,
            dtype_bytes: 2,
            k_tokens: 32,
            v_tokens: 512,
        };
        assert!(shape.validate().is_ok());
        shape.sheets()
    }

    #[test]
    fn a_k_page_reads_the_columns_of_its_fullest_bank() {
        // As many banks as tokens: a partly filled page takes every command of a full one.
        let [k, _] = sheets(32, 1024);
        assert_eq!([k.visits(32), k.visits(1)], [vec![32, 32], vec![32, 32]]);
        // Two sub-pages: the second one is not opened while it is empty.
        let [k, _] = sheets(16, 1024);
        assert_eq!([k.visits(16), k.visits(17)], [vec![32; 2], vec![32; 4]]);
        let [k, _] = sheets(16, 2048);
        assert_eq!([k.visits(16), k.visits(32)], [vec![64], vec![64, 64]]);
        // Two tokens to a row.
        let [k, _] = sheets(16, 4096);
        assert_eq!([k.visits(1), k.visits(32), k.visits(0)], [vec![64], vec![128], vec![]]);
    }

    #[test]
    fn a_v_page_opens_all_its_rows_for_the_columns_that_hold_tokens() {
        let [_, v] = sheets(32, 1024);
        assert_eq!([v.visits(512), v.visits(17), v.visits(1)], [vec![32; 32], vec![2; 32], vec![1; 32]]);
        // A row holds two dimensions of 512 tokens, or half of one.
        let [_, v] = sheets(32, 2048);
        assert_eq!([v.visits(512), v.visits(17)], [vec![64; 16], vec![4; 16]]);
        let [_, v] = sheets(32, 512);
        assert_eq!(
            [v.visits(512), v.visits(256), v.visits(257)],
            [vec![16; 64], vec![16; 32], [16, 1].repeat(32)]
        );
    }

    #[test]
    fn a_token_is_written_to_a_bank_of_k_and_to_every_dimension_of_v() {
        let [k, v] = sheets(32, 1024);
        // 64 bursts in two rows; a burst of each of 1,024 dimensions, each in a row of its bank.
        assert_eq!([k.written(5, 6), v.written(5, 6)], [(64, 2), (1024, 1024)]);
        assert_eq!([k.written(0, 32), v.written(0, 32)], [(2048, 64), (2048, 1024)]);
        assert_eq!(v.written(15, 17), (2048, 1024));
    }
}
