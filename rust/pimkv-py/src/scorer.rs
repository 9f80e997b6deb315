//! `AddressMap` and `Scorer`: where bursts lie, and the commands that read them.

use numpy::{IntoPyArray, PyArray1};
use pimkv_core::dram::{self, Geometry, Place};
use pimkv_core::grouper::{Coalesce, Grouping, Tally};
use pimkv_core::reading::{Layout, Part};
use pimkv_core::scorer::{self, Traversal, Written};
use pimkv_core::{Error, Timed};
use pyo3::prelude::*;

use crate::controller::Controller;
use crate::errors::Result;
use crate::ints::{Ints, int64s, seq_ids};
use crate::manager::BlockManager;
use crate::{IntArray, bounded};

/// Four parallel int64 arrays: channel, flat bank, row, column.
type Places<'py> = (IntArray<'py>, IntArray<'py>, IntArray<'py>, IntArray<'py>);

/// Per sequence: commands, hits, bursts, cycles, visits.
pub(crate) type Scores<'py> = (IntArray<'py>, IntArray<'py>, IntArray<'py>, IntArray<'py>, IntArray<'py>);

/// Commands, hits, bursts, cycles, visits.
pub(crate) type Counts = (u64, u64, u64, u64, u64);

pub(crate) fn counts_of(tally: &Tally) -> Counts {
    (tally.commands, tally.hits, tally.bursts, tally.cycles, tally.visits)
}

pub(crate) fn scores<'py>(py: Python<'py>, tallies: &[Tally]) -> Scores<'py> {
    let column =
        |field: fn(&Tally) -> u64| PyArray1::from_iter(py, tallies.iter().map(|t| field(t).cast_signed()));
    (
        column(|t| t.commands),
        column(|t| t.hits),
        column(|t| t.bursts),
        column(|t| t.cycles),
        column(|t| t.visits),
    )
}

/// A bit-field address map over burst numbers.
#[pyclass(frozen, module = "pimkv._pimkv")]
pub(crate) struct AddressMap {
    inner: dram::AddressMap,
}

#[pymethods]
impl AddressMap {
    /// Reads a map such as `row:14 col:4 bg:2 ba:2 ch:5 col:1; ba^row:2` for a geometry.
    #[new]
    #[pyo3(signature = (spec, *, channels, bank_groups, banks_per_group, rows, row_bytes, burst_bytes))]
    fn new(
        spec: &str,
        channels: i64,
        bank_groups: i64,
        banks_per_group: i64,
        rows: i64,
        row_bytes: i64,
        burst_bytes: i64,
    ) -> Result<Self> {
        let size = |name, value| bounded(name, value, "a power of two from 1 to 2^24");
        let geometry = Geometry {
            channels: size("channels", channels)?,
            bank_groups: size("bank_groups", bank_groups)?,
            banks_per_group: size("banks_per_group", banks_per_group)?,
            rows: size("rows", rows)?,
            row_bytes: size("row_bytes", row_bytes)?,
            burst_bytes: size("burst_bytes", burst_bytes)?,
        };
        Ok(Self { inner: dram::AddressMap::parse(spec, geometry)? })
    }

    /// Burst numbers -> (channel, bank, row, column).
    fn decode<'py>(&self, py: Python<'py>, bursts: Ints<'_>) -> Result<Places<'py>> {
        let limit = self.inner.geometry().bursts();
        let mut fields: [Vec<i64>; 4] = Default::default();
        for &burst in int64s("bursts", &bursts)?.as_array() {
            let number = u64::try_from(burst).ok().filter(|&b| b < limit);
            let number = number
                .ok_or_else(|| Error::invalid("bursts", burst, format!("allowed 0 to {}", limit - 1)))?;
            let Place { channel, bank, row, column } = self.inner.decode(number);
            for (field, value) in fields.iter_mut().zip([channel, bank, row, column]) {
                field.push(value.into());
            }
        }
        Ok(fields.map(|f| f.into_pyarray(py)).into())
    }

    /// (channel, bank, row, column) -> burst numbers.
    fn encode<'py>(
        &self,
        py: Python<'py>,
        channel: Ints<'_>,
        bank: Ints<'_>,
        row: Ints<'_>,
        column: Ints<'_>,
    ) -> Result<IntArray<'py>> {
        let g = self.inner.geometry();
        let fields = [
            ("channel", int64s("channel", &channel)?, g.channels),
            ("bank", int64s("bank", &bank)?, g.banks()),
            ("row", int64s("row", &row)?, g.rows),
            ("column", int64s("column", &column)?, g.row_bytes / g.burst_bytes),
        ];
        let n = fields[0].1.as_array().len();
        for (name, values, size) in &fields {
            if values.as_array().len() != n {
                let allowed = format!("as many values as channel, {n}");
                return Err(Error::invalid(name, values.as_array().len(), allowed).into());
            }
            if let Some(&bad) = values.as_array().iter().find(|&&v| v < 0 || v >= i64::from(*size)) {
                return Err(Error::invalid(name, bad, format!("allowed 0 to {}", size - 1)).into());
            }
        }
        // Every value was found to be within its field's size.
        #[allow(clippy::cast_sign_loss)]
        let at = |field: usize, i: usize| fields[field].1.as_array()[i] as u32;
        let place = |i| Place { channel: at(0, i), bank: at(1, i), row: at(2, i), column: at(3, i) };
        Ok(PyArray1::from_iter(py, (0..n).map(|i| self.inner.encode(place(i)).cast_signed())))
    }
}

/// Scores block tables: all-bank commands, row hits and bursts of each sequence.
#[pyclass(module = "pimkv._pimkv")]
pub(crate) struct Scorer {
    inner: scorer::Scorer,
}

#[pymethods]
impl Scorer {
    /// A scorer on `address_map`; `window` bursts may be reordered, 0 means in order. With a controller
    /// each command acts on `per_command` pseudo-channels and is issued `repeat` times. A row visit of c
    /// commands is cut into chunks of ceil(c / `mac_stride`), an activation each.
    ///
    /// Tokens lie one after the other, or as `passes` says: per pass, parts of (base, stride, bytes, block,
    /// unit) in bytes, in units of `blocks_per_unit`. `window_tokens`: only the last so many are read.
    #[new]
    #[pyo3(signature = (
        address_map, *, block_bytes, token_bytes, window, controller = None, per_command = 1, repeat = 1,
        mac_stride = 1, passes = None, blocks_per_unit = 1, window_tokens = 0, traversal = "token", count_writes = false
    ))]
    #[allow(clippy::too_many_arguments)] // keyword-only
    fn new(
        address_map: &AddressMap,
        block_bytes: i64,
        token_bytes: i64,
        window: i64,
        controller: Option<&Controller>,
        per_command: i64,
        repeat: i64,
        mac_stride: i64,
        passes: Option<Vec<Vec<[i64; 5]>>>,
        blocks_per_unit: i64,
        window_tokens: i64,
        traversal: &str,
        count_writes: bool,
    ) -> Result<Self> {
        let window = bounded("window", window, "allowed 0 to 4294967295")?;
        let coalesce = if window == 0 { Coalesce::InOrder } else { Coalesce::Window(window) };
        let block_bytes = bounded("block_bytes", block_bytes, "allowed 1 and up")?;
        let token_bytes = bounded("token_bytes", token_bytes, "allowed 1 and up")?;
        let per_command = bounded("per_command", per_command, "1 or 2 pseudo-channels")?;
        let stride = bounded("mac_stride", mac_stride, "allowed 1 to 4096")?;
        let repeat = bounded("repeat", repeat, "allowed 1 to 65536")?;
        let timed = controller.map(|c| Timed { controller: c.inner.clone(), per_command, repeat });
        let mut layout = Layout::plain(block_bytes, token_bytes)?;
        if let Some(passes) = passes {
            let part = |[base, stride, bytes, block, unit]: [i64; 5]| -> std::result::Result<Part, Error> {
                let bytes_of = |name, value| bounded(name, value, "allowed 0 and up");
                Ok(Part {
                    base: bytes_of("base", base)?,
                    stride: bytes_of("token_bytes", stride)?,
                    bytes: bytes_of("token_bytes", bytes)?,
                    block: bytes_of("block_bytes", block)?,
                    unit: bytes_of("unit", unit)?,
                })
            };
            let pass = |parts: Vec<[i64; 5]>| parts.into_iter().map(part).collect();
            layout.passes = passes.into_iter().map(pass).collect::<std::result::Result<_, Error>>()?;
            layout.blocks_per_unit = bounded("blocks_per_unit", blocks_per_unit, "allowed 1 and up")?;
        }
        layout.window_tokens = bounded("window_tokens", window_tokens, "allowed 0 and up")?;
        let traversal = match traversal {
            "token" => Traversal::Token,
            "row" => Traversal::Row,
            _ => {
                return Err(
                    Error::invalid("traversal", format!("{traversal:?}"), "allowed token, row").into()
                );
            }
        };
        let map = &address_map.inner;
        let grouping = Grouping { coalesce, stride };
        let mut inner = scorer::Scorer::with_layout(map, layout, traversal, grouping, timed.as_ref())?;
        if count_writes {
            inner.count_writes();
        }
        Ok(Self { inner })
    }

    /// Scores each sequence as its table stands: (commands, hits, bursts, cycles, visits), one of each per
    /// sequence; cycles and visits are 0 without a controller.
    fn observe<'py>(
        &mut self,
        py: Python<'py>,
        manager: &mut BlockManager,
        seqs: Ints<'_>,
    ) -> Result<Scores<'py>> {
        let seqs = seq_ids(&seqs)?;
        Ok(scores(py, &py.detach(|| self.inner.observe(&mut manager.inner, &seqs))?))
    }

    /// Commands, hits and bursts over everything observed.
    fn totals(&self) -> (u64, u64, u64) {
        let Tally { commands, hits, bursts, .. } = self.inner.totals();
        (commands, hits, bursts)
    }

    /// Counts what sequences have written that leave without being observed again.
    fn settle(&mut self, manager: &BlockManager, seqs: Ints<'_>) -> Result<()> {
        Ok(self.inner.settle(&manager.inner, &seq_ids(&seqs)?)?)
    }

    /// Tokens, bursts and row activations written so far, if writes are counted.
    fn write_totals(&self) -> (u64, u64, u64) {
        let Written { tokens, bursts, activations } = self.inner.write_totals();
        (tokens, bursts, activations)
    }

    /// Per pass: commands, hits, bursts, cycles, visits over everything observed.
    fn pass_totals(&self) -> Vec<Counts> {
        self.inner.pass_totals().iter().map(counts_of).collect()
    }

    /// Cycles without refresh, cycles of refresh on top, and row visits over everything observed.
    fn timed_totals(&self) -> (u64, u64, u64) {
        let Tally { cycles, visits, .. } = self.inner.totals();
        (cycles, self.inner.refresh_cycles(), visits)
    }

    /// Commands, hits and cycles if every sequence lay contiguously: the fewest row visits.
    fn limit_totals(&self) -> (u64, u64, u64) {
        let Tally { commands, hits, cycles, .. } = self.inner.limit_totals();
        (commands, hits, cycles)
    }

    /// Drops the cached state of sequences.
    fn forget(&mut self, seqs: Ints<'_>) -> Result<()> {
        for seq in seq_ids(&seqs)? {
            self.inner.forget(seq);
        }
        Ok(())
    }
}
