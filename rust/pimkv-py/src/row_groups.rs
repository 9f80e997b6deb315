//! `RowGroupScorer`: what requests take that own whole row groups of one channel.

use pimkv_core::Timed;
use pimkv_core::grouper::Tally;
use pimkv_core::row_groups::{self, Prices, Shape};
use pimkv_core::scorer::Written;
use pyo3::prelude::*;

use crate::bounded;
use crate::controller::Controller;
use crate::errors::Result;
use crate::ints::{Ints, seq_ids};
use crate::manager::BlockManager;
use crate::scorer::{Counts, Scores, counts_of, scores};

/// Scores requests with K and V pages of whole row groups; a step takes as long as its busiest channel.
#[pyclass(module = "pimkv._pimkv")]
pub(crate) struct RowGroupScorer {
    inner: row_groups::RowGroupScorer,
}

#[pymethods]
impl RowGroupScorer {
    /// `channels` queues with `rows` row groups of `banks` rows each; a token has `elements` of K and of V.
    /// A command acts on `per_command` pseudo-channels and is issued `repeat` times; the published formula
    /// charges `hit_ps` or `miss_ps` for it. An activation serves ceil(c / `mac_stride`) of a visit's c commands.
    #[new]
    #[pyo3(signature = (
        *, channels, rows, banks, row_bytes, burst_bytes, elements, dtype_bytes, k_tokens, v_tokens, hit_ps,
        miss_ps, controller, per_command = 1, repeat = 1, mac_stride = 1, count_writes = false
    ))]
    #[allow(clippy::too_many_arguments)] // keyword-only
    fn new(
        channels: i64,
        rows: i64,
        banks: i64,
        row_bytes: i64,
        burst_bytes: i64,
        elements: i64,
        dtype_bytes: i64,
        k_tokens: i64,
        v_tokens: i64,
        hit_ps: i64,
        miss_ps: i64,
        controller: &Controller,
        per_command: i64,
        repeat: i64,
        mac_stride: i64,
        count_writes: bool,
    ) -> Result<Self> {
        let size = |name, value| bounded::<u32>(name, value, "allowed 1 and up");
        let shape = Shape {
            channels: size("channels", channels)?,
            rows: size("rows", rows)?,
            banks: size("banks", banks)?,
            row_bytes: size("row_bytes", row_bytes)?,
            burst_bytes: size("burst_bytes", burst_bytes)?,
            elements: size("elements", elements)?,
            dtype_bytes: size("dtype_bytes", dtype_bytes)?,
            k_tokens: size("k_tokens", k_tokens)?,
            v_tokens: size("v_tokens", v_tokens)?,
        };
        let timed = Timed {
            controller: controller.inner.clone(),
            per_command: bounded("per_command", per_command, "1 or 2 pseudo-channels")?,
            repeat: bounded("repeat", repeat, "allowed 1 to 65536")?,
        };
        let price = |name, value| bounded::<u32>(name, value, "allowed 0 to 4294967295 ps").map(u64::from);
        let prices = Prices { hit_ps: price("hit_ps", hit_ps)?, miss_ps: price("miss_ps", miss_ps)? };
        let mac_stride = bounded("mac_stride", mac_stride, "allowed 1 to 4294967295")?;
        let mut inner = row_groups::RowGroupScorer::new(shape, timed, mac_stride, prices)?;
        if count_writes {
            inner.count_writes();
        }
        Ok(Self { inner })
    }

    /// (tokens, row groups) of a K page and of a V page: what the block manager is to hand out.
    #[getter]
    fn pages(&self) -> Vec<(u32, u32)> {
        self.inner.pages().iter().map(|page| (page.tokens, page.blocks)).collect()
    }

    /// Scores each request as its table stands: (commands, hits, bursts, cycles, visits), one of each per
    /// request, the cycles as if it were alone.
    fn observe<'py>(
        &mut self,
        py: Python<'py>,
        manager: &BlockManager,
        seqs: Ints<'_>,
    ) -> Result<Scores<'py>> {
        let seqs = seq_ids(&seqs)?;
        Ok(scores(py, &py.detach(|| self.inner.observe(&manager.inner, &seqs))?))
    }

    /// Commands, hits and bursts over everything observed.
    fn totals(&self) -> (u64, u64, u64) {
        let Tally { commands, hits, bursts, .. } = self.inner.totals();
        (commands, hits, bursts)
    }

    /// Counts what requests have written that leave without being observed again.
    fn settle(&mut self, manager: &BlockManager, seqs: Ints<'_>) -> Result<()> {
        Ok(self.inner.settle(&manager.inner, &seq_ids(&seqs)?)?)
    }

    /// Tokens, bursts and row activations written so far, if writes are counted.
    fn write_totals(&self) -> (u64, u64, u64) {
        let Written { tokens, bursts, activations } = self.inner.write_totals();
        (tokens, bursts, activations)
    }

    /// Of the K and of the V pass: commands, hits, bursts, cycles, visits over everything observed.
    fn pass_totals(&self) -> Vec<Counts> {
        self.inner.pass_totals().iter().map(counts_of).collect()
    }

    /// Cycles of each step's busiest channel without refresh, cycles of refresh on top, and row visits.
    fn timed_totals(&self) -> (u64, u64, u64) {
        let totals = self.inner.totals();
        (totals.cycles, self.inner.refresh_cycles(), totals.visits)
    }

    /// Commands, hits, and cycles if all channels were equally busy.
    fn limit_totals(&self) -> (u64, u64, u64) {
        let limit = self.inner.limit_totals();
        (limit.commands, limit.hits, limit.cycles)
    }

    /// The published formula's time of each step's busiest channel, summed, ps.
    #[getter]
    fn formula_ps(&self) -> u64 {
        self.inner.formula_ps()
    }

    /// Drops what is kept of requests.
    fn forget(&mut self, seqs: Ints<'_>) -> Result<()> {
        for seq in seq_ids(&seqs)? {
            self.inner.forget(seq);
        }
        Ok(())
    }
}
