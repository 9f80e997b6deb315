//! Row-aware paged KV-cache allocation and the DRAM model that scores it.
#![forbid(unsafe_code)]

pub mod controller;
pub mod timing;
