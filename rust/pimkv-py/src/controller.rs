//! `pimkv._pimkv.Controller`: arrays in, one detached run, arrays out. `pimkv.controller` is its face.

use numpy::{PyArray1, PyReadonlyArray1};
use pimkv_core::controller::{self as core, BARRIER, Feed, LogEntry, Outcome, Trace};
use pimkv_core::timing::{RefreshParams, Timing, TimingError, TimingParams};
use pyo3::prelude::*;

pyo3::import_exception!(pimkv.errors, ConfigError);
pyo3::import_exception!(pimkv.errors, InvalidArgument);

type Figures = (u64, u64, u64, u64, u64, u64);
type Columns<'py> = (
    Bound<'py, PyArray1<u64>>,
    Bound<'py, PyArray1<u16>>,
    Bound<'py, PyArray1<u8>>,
    Bound<'py, PyArray1<i64>>,
);

/// A timing and how it is run; holds no state between runs.
#[pyclass(frozen, module = "pimkv._pimkv")]
pub(crate) struct Controller {
    pub(crate) inner: core::Controller,
}

#[pymethods]
impl Controller {
    #[new]
    #[pyo3(signature = (
        *, rcd, rp, ras, rc, rtp, ccd_ab, refi, rfc, max_postponed, refresh, queue, per_pch
    ))]
    #[allow(clippy::too_many_arguments)] // keyword-only, one per interval
    fn new(
        rcd: i64,
        rp: i64,
        ras: i64,
        rc: i64,
        rtp: i64,
        ccd_ab: i64,
        refi: Option<i64>,
        rfc: Option<i64>,
        max_postponed: i64,
        refresh: bool,
        queue: i64,
        per_pch: bool,
    ) -> PyResult<Self> {
        let figures =
            refi.zip(rfc).map(|(interval, duration)| RefreshParams { interval, duration, max_postponed });
        let params = TimingParams { rcd, rp, ras, rc, rtp, ccd_ab, refresh: figures };
        let feed = if per_pch { Feed::PerPch } else { Feed::Paired };
        let inner = Timing::new(&params)
            .and_then(|timing| core::Controller::new(timing, refresh, queue, feed))
            .map_err(|error| ConfigError::new_err(error.to_string()))?;
        Ok(Self { inner })
    }

    /// Runs `rows` on one channel, or on `channel_count` with the channel of each row in `channels`.
    ///
    /// Returns the figures (cycles, activations, precharges, refreshes, commands, `postponed_max`) and, with
    /// `log`, its columns (clk, channel, command code, row).
    fn run<'py>(
        &self,
        py: Python<'py>,
        rows: PyReadonlyArray1<'py, i64>,
        channels: Option<PyReadonlyArray1<'py, i64>>,
        channel_count: usize,
        log: bool,
    ) -> PyResult<(Figures, Option<Columns<'py>>)> {
        let rows = row_ids(rows.as_slice()?)?;
        let of_row = match &channels {
            Some(channels) => Some(channel_ids(channels.as_slice()?, channel_count)?),
            None => None,
        };
        let mut entries = Vec::new();
        let outcome = py
            .detach(|| {
                let trace = match &of_row {
                    Some(of_row) => Trace::new(&rows, of_row, channel_count)?,
                    None => Trace::single(&rows),
                };
                Ok(if log { self.inner.run(trace, &mut entries) } else { self.inner.run(trace, &mut ()) })
            })
            .map_err(|error: TimingError| InvalidArgument::new_err(error.to_string()))?;
        Ok((figures(outcome), log.then(|| columns(py, &entries))))
    }
}

fn row_ids(rows: &[i64]) -> PyResult<Vec<u32>> {
    let row_id = |(entry, &row): (usize, &i64)| match u32::try_from(row) {
        _ if row == -1 => Ok(BARRIER),
        Ok(row) if row != BARRIER => Ok(row),
        _ => Err(InvalidArgument::new_err(format!(
            "rows[{entry}] = {row}: a row must be between 0 and {}, or -1 for a barrier",
            BARRIER - 1
        ))),
    };
    rows.iter().enumerate().map(row_id).collect()
}

fn channel_ids(channels: &[i64], count: usize) -> PyResult<Vec<u16>> {
    let channel_id = |(entry, &channel): (usize, &i64)| match u16::try_from(channel) {
        Ok(id) if usize::from(id) < count => Ok(id),
        _ => Err(InvalidArgument::new_err(format!(
            "rows[{entry}]: channel = {channel}: must be between 0 and {}",
            count.saturating_sub(1)
        ))),
    };
    channels.iter().enumerate().map(channel_id).collect()
}

fn figures(outcome: Outcome) -> Figures {
    let Outcome { cycles, activations, precharges, refreshes, commands, postponed_max } = outcome;
    (cycles, activations, precharges, refreshes, commands, postponed_max)
}

fn columns<'py>(py: Python<'py>, entries: &[LogEntry]) -> Columns<'py> {
    (
        PyArray1::from_iter(py, entries.iter().map(|entry| entry.clk)),
        PyArray1::from_iter(py, entries.iter().map(|entry| entry.channel)),
        PyArray1::from_iter(py, entries.iter().map(|entry| entry.command as u8)),
        PyArray1::from_iter(py, entries.iter().map(|entry| entry.row)),
    )
}
