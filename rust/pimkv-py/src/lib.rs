//! Python bindings of `pimkv-core`: extract, call, map errors; nothing else.
// PyO3 hands a method its arguments by value.
#![allow(clippy::needless_pass_by_value)]

mod controller;
mod errors;
mod ints;
mod manager;
mod oplog;
mod pool;
mod row_groups;
mod scorer;

use numpy::PyArray1;
use pimkv_core::{Error, SeqId};
use pyo3::prelude::*;

/// A one-dimensional int64 array for Python.
type IntArray<'py> = Bound<'py, PyArray1<i64>>;

fn seq_id(seq: i64) -> Result<SeqId, Error> {
    u32::try_from(seq).map(SeqId).map_err(|_| Error::invalid("seq", seq, "allowed 0 to 4294967295"))
}

/// A count or size argument, bounded so that the core's own types hold it.
fn bounded<T: TryFrom<i64>>(name: &'static str, value: i64, allowed: &str) -> Result<T, Error> {
    T::try_from(value).map_err(|_| Error::invalid(name, value, allowed))
}

/// Whether `pim-aware` keeps the published heaps.
fn heaps(region_impl: &str) -> Result<bool, Error> {
    match region_impl {
        "indexed" => Ok(false),
        "heaps" => Ok(true),
        other => Err(Error::invalid("region_impl", format!("{other:?}"), "allowed indexed, heaps")),
    }
}

/// The extension module `pimkv._pimkv`.
#[pymodule]
mod _pimkv {
    #[pymodule_export]
    use super::controller::Controller;
    #[pymodule_export]
    use super::manager::BlockManager;
    #[pymodule_export]
    use super::oplog::OpLog;
    #[pymodule_export]
    use super::pool::Pool;
    #[pymodule_export]
    use super::row_groups::RowGroupScorer;
    #[pymodule_export]
    use super::scorer::{AddressMap, Scorer};

    /// The version of the crate, equal to the package's.
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
