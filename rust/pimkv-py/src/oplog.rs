//! `OpLog`: recorded operations, and their timed replay. The clock is read here: the core has none.

use std::time::Instant;

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods};
use pimkv_core::Error;
use pimkv_core::alloc::{self, Pool};
use pimkv_core::oplog::{self, Kinds, Operation, Replay, Scenario, Tag, Timing};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::Result;
use crate::{IntArray, bounded, heaps};

/// Per cut: operations, tag, worst state or not; then times of the policy and of the empty loop, one row
/// per repetition, ns.
type Cuts<'py> =
    (IntArray<'py>, IntArray<'py>, IntArray<'py>, Bound<'py, PyArray2<i64>>, Bound<'py, PyArray2<i64>>);

/// The operations of one run, in order.
#[pyclass(frozen, module = "pimkv._pimkv")]
pub(crate) struct OpLog {
    inner: oplog::OpLog,
    #[pyo3(get)]
    warm_up: usize,
}

impl OpLog {
    pub(crate) fn of(inner: oplog::OpLog) -> Self {
        Self { inner, warm_up: 0 }
    }

    fn made(scenario: Scenario) -> Self {
        Self { inner: scenario.log, warm_up: scenario.warm_up }
    }
}

/// Times of the passes, and where they were cut.
struct Timed {
    cuts: Vec<Timing>,
    policy: Vec<u64>,
    null: Vec<u64>,
}

impl Timed {
    /// `repeats` passes over the policy and as many over none, in turn.
    fn new(replay: &Replay, kinds: Kinds, repeats: usize) -> pimkv_core::Result<Self> {
        let cuts = replay.cuts(kinds);
        let started = Instant::now();
        // A run of centuries apart, the nanoseconds fit.
        let mut clock = || started.elapsed().as_nanos() as u64;
        let mut timed = Self { cuts, policy: Vec::new(), null: Vec::new() };
        for _ in 0..repeats {
            timed.policy.extend(replay.pass(&timed.cuts, false, &mut clock)?);
            timed.null.extend(replay.pass(&timed.cuts, true, &mut clock)?);
        }
        Ok(timed)
    }

    fn into_python(self, py: Python<'_>, repeats: usize) -> Result<Cuts<'_>> {
        let column = |value: fn(&Timing) -> i64| PyArray1::from_iter(py, self.cuts.iter().map(value));
        let table = |times: Vec<u64>| {
            let flat: Vec<_> = times.into_iter().map(u64::cast_signed).collect();
            let reshaped = flat.into_pyarray(py).reshape([repeats, self.cuts.len()]);
            reshaped.map_err(|e| Error::BrokenInvariant(e.to_string()))
        };
        Ok((
            column(|cut| (cut.end - cut.start).cast_signed() as i64),
            column(|cut| cut.tag as i64),
            column(|cut| cut.worst.into()),
            table(self.policy)?,
            table(self.null)?,
        ))
    }
}

#[pymethods]
impl OpLog {
    /// The log that these bytes hold; `LogError` with the offset of what is wrong.
    #[staticmethod]
    fn parse(data: &[u8]) -> Result<Self> {
        Ok(Self::of(oplog::OpLog::from_bytes(data)?))
    }

    /// `sequences` sequences on a pool around 80 % full, one block at a time.
    #[staticmethod]
    fn mix(py: Python<'_>, blocks: i64, blocks_per_region: i64, sequences: i64, steps: i64) -> Result<Self> {
        made(py, oplog::mix, (blocks, blocks_per_region), ("sequences", sequences), ("steps", steps))
    }

    /// The worst case of growing: a full pool without an empty region.
    #[staticmethod]
    fn growing(
        py: Python<'_>,
        blocks: i64,
        blocks_per_region: i64,
        sequences: i64,
        rounds: i64,
    ) -> Result<Self> {
        made(py, oplog::growing, (blocks, blocks_per_region), ("sequences", sequences), ("rounds", rounds))
    }

    /// The worst case of admitting requests of `request` blocks.
    #[staticmethod]
    fn admitting(
        py: Python<'_>,
        blocks: i64,
        blocks_per_region: i64,
        request: i64,
        rounds: i64,
    ) -> Result<Self> {
        made(py, oplog::admitting, (blocks, blocks_per_region), ("request", request), ("rounds", rounds))
    }

    /// Code and name of every operation.
    #[staticmethod]
    fn operations() -> Vec<(u8, &'static str)> {
        Operation::ALL.to_vec()
    }

    /// Names of the tags that a replay's cuts have, by number.
    #[staticmethod]
    fn tags() -> Vec<&'static str> {
        Tag::NAMES.to_vec()
    }

    /// The policy that was recorded.
    #[getter]
    fn kind(&self) -> &str {
        &self.inner.header().kind
    }

    /// Blocks of its pool.
    #[getter]
    fn blocks(&self) -> u32 {
        self.inner.header().blocks
    }

    /// Blocks that share one row index.
    #[getter]
    fn blocks_per_region(&self) -> u32 {
        self.inner.header().blocks_per_region
    }

    /// Tokens per block.
    #[getter]
    fn block_tokens(&self) -> u32 {
        self.inner.header().block_tokens
    }

    /// Whether the policy planned by best fit.
    #[getter]
    fn best_fit(&self) -> bool {
        self.inner.header().best_fit
    }

    fn __len__(&self) -> usize {
        self.inner.records().len()
    }

    /// The log as a file holds it.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.inner.to_bytes()?))
    }

    /// Replays the log against a policy: (calls, takes, takes with the recorded id, bookkeeping bytes, cuts
    /// of mixed batches, cuts by kind). With `strict` every id must be the recorded one.
    #[pyo3(signature = (kind, *, blocks = None, strict = false, repeats = 15, region_impl = "indexed"))]
    #[allow(clippy::too_many_arguments)]
    fn replay<'py>(
        &self,
        py: Python<'py>,
        kind: &str,
        blocks: Option<i64>,
        strict: bool,
        repeats: i64,
        region_impl: &str,
    ) -> Result<(usize, u64, u64, usize, Cuts<'py>, Cuts<'py>)> {
        let header = self.inner.header();
        let repeats = bounded("repeats", repeats, "allowed 0 and up")?;
        let blocks = blocks.map_or(Ok(header.blocks), |n| bounded("blocks", n, "allowed 1 to 2147483648"))?;
        let mut pool = Pool::new(blocks, header.blocks_per_region);
        pool.heaps = heaps(region_impl)?;
        pool.best_fit = header.best_fit && kind == header.kind;
        let (replay, mixed, apart) = py.detach(|| -> pimkv_core::Result<_> {
            let replay = Replay::new(&self.inner, alloc::policy(kind, pool)?, strict, self.warm_up)?;
            let mixed = Timed::new(&replay, Kinds::Mixed, repeats)?;
            let apart = Timed::new(&replay, Kinds::Apart, repeats)?;
            Ok((replay, mixed, apart))
        })?;
        let (takes, same) = replay.agreement();
        let bytes = replay.bookkeeping_bytes();
        let (mixed, apart) = (mixed.into_python(py, repeats)?, apart.into_python(py, repeats)?);
        Ok((replay.calls(), takes, same, bytes, mixed, apart))
    }
}

/// A made-up log: its maker, (blocks, blocks per region), and two more numbers with their names.
fn made(
    py: Python<'_>,
    maker: fn(u32, u32, u32, usize) -> pimkv_core::Result<Scenario>,
    (blocks, blocks_per_region): (i64, i64),
    (name, number): (&'static str, i64),
    (length_name, length): (&'static str, i64),
) -> Result<OpLog> {
    let blocks = bounded("blocks", blocks, "allowed 1 to 2147483648")?;
    let per_region = bounded("blocks_per_region", blocks_per_region, "allowed 1 to 4294967295")?;
    let number = bounded(name, number, "allowed 1 to 4294967295")?;
    let length = bounded(length_name, length, "allowed 0 and up")?;
    Ok(OpLog::made(py.detach(|| maker(blocks, per_region, number, length))?))
}
