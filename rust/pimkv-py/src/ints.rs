//! Integers from Python, many at once: an int64 array as it lies, any other sequence of integers copied.

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pimkv_core::{Error, SeqId};
use pyo3::prelude::*;

use crate::{bounded, seq_id};

/// One dimension of integers as they come from Python: an array of an integer type, or a sequence.
pub(crate) type Ints<'py> = Bound<'py, PyAny>;

/// The int64 array of the argument `name`; a copy only where it is none yet. Refuses what is not integers,
/// floats and booleans included, however whole they are.
pub(crate) fn int64s<'py>(
    name: &'static str,
    values: &Ints<'py>,
) -> Result<PyReadonlyArray1<'py, i64>, Error> {
    let refused = |what: String| Error::invalid(name, what, "must be one dimension of integers of 64 bits");
    let Ok(array) = values.cast::<PyArray1<i64>>() else {
        return converted(values)
            .map_err(|error| refused(error.value(values.py()).to_string()))?
            .map_err(refused);
    };
    array.try_readonly().map_err(|_| refused("an array that is being written".to_owned()))
}

/// What numpy makes of it; the inner error says what it is instead of integers.
fn converted<'py>(values: &Ints<'py>) -> PyResult<Result<PyReadonlyArray1<'py, i64>, String>> {
    let py = values.py();
    let array = py.import("numpy")?.call_method1("asarray", (values,))?;
    let (dimensions, count): (usize, usize) =
        (array.getattr("ndim")?.extract()?, array.getattr("size")?.extract()?);
    if dimensions != 1 {
        return Ok(Err(format!("{dimensions} dimensions")));
    }
    let dtype = array.getattr("dtype")?;
    let kind: String = dtype.getattr("kind")?.extract()?;
    // An empty list says nothing of what it would hold.
    if count > 0 && !matches!(kind.as_str(), "i" | "u") {
        return Ok(Err(format!("{count} of {dtype}")));
    }
    if kind == "u" && count > 0 {
        let most = array.call_method0("max")?;
        if most.extract::<i64>().is_err() {
            return Ok(Err(most.to_string()));
        }
    }
    let array = array.call_method1("astype", ("int64",))?;
    Ok(Ok(array.extract()?))
}

/// Sequence numbers.
pub(crate) fn seq_ids(seqs: &Ints<'_>) -> Result<Vec<SeqId>, Error> {
    int64s("seqs", seqs)?.as_array().iter().map(|&seq| seq_id(seq)).collect()
}

/// Non-negative numbers.
pub(crate) fn counts<T: TryFrom<i64>>(
    name: &'static str,
    values: &Ints<'_>,
    allowed: &str,
) -> Result<Vec<T>, Error> {
    int64s(name, values)?.as_array().iter().map(|&value| bounded(name, value, allowed)).collect()
}

/// Drawn indices.
pub(crate) fn draws(indices: &Ints<'_>) -> Result<Vec<u32>, Error> {
    counts("indices", indices, "allowed 0 to blocks - 1")
}
