//! Python bindings of `pimkv-core`: extract, call, map errors; nothing else.
use pyo3::prelude::*;

mod controller;

/// The extension module `pimkv._pimkv`.
#[pymodule]
mod _pimkv {
    #[pymodule_export]
    use crate::controller::Controller;
}
