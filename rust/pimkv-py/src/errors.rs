//! The core's error enum as the exceptions of `pimkv.errors`.

use pimkv_core::Error;
use pyo3::PyErr;

mod python {
    pyo3::import_exception!(pimkv.errors, BrokenInvariant);
    pyo3::import_exception!(pimkv.errors, DoubleFree);
    pyo3::import_exception!(pimkv.errors, DuplicateSequence);
    pyo3::import_exception!(pimkv.errors, ForeignBlock);
    pyo3::import_exception!(pimkv.errors, InvalidArgument);
    pyo3::import_exception!(pimkv.errors, LogError);
    pyo3::import_exception!(pimkv.errors, UnknownSequence);
}

/// `?` in a binding: a core error on its way to Python.
pub(crate) struct Raised(Error);

impl From<Error> for Raised {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<Raised> for PyErr {
    fn from(Raised(error): Raised) -> Self {
        let message = error.to_string();
        match error {
            Error::DoubleFree(_) => python::DoubleFree::new_err(message),
            Error::ForeignBlock { .. } => python::ForeignBlock::new_err(message),
            Error::UnknownSequence(_) => python::UnknownSequence::new_err(message),
            Error::DuplicateSequence(_) => python::DuplicateSequence::new_err(message),
            Error::InvalidArgument { .. } => python::InvalidArgument::new_err(message),
            Error::BadLog { .. } => python::LogError::new_err(message),
            // The enum grows with the core; a variant without an exception is a defect here.
            _ => python::BrokenInvariant::new_err(message),
        }
    }
}

/// What a binding returns.
pub(crate) type Result<T> = std::result::Result<T, Raised>;
