//! One timed pass of a made-up log, for a tool that counts instructions: `instructions POLICY LOG`.
//!
//! POLICY is paged, indexed, heaps or null; LOG is mix, grow or admit. Prints the number of operations of the
//! pass, all of which are made inside `Replay::run`: that is the function to count.
#![allow(clippy::print_stdout)]

use pimkv_core::alloc::{self, Pool};
use pimkv_core::oplog::{self, Kinds, Replay};
use pimkv_core::{Error, Result};

const BLOCKS: u32 = 4096;
const REGION: u32 = 8;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (policy, log) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    let kind = match policy.as_str() {
        "paged" => "paged",
        "indexed" | "heaps" | "null" => "pim-aware",
        _ => return Err(Error::invalid("POLICY", policy, "allowed paged, indexed, heaps, null")),
    };
    let scenario = match log.as_str() {
        "mix" => oplog::mix(BLOCKS, REGION, 64, 10_000)?,
        "grow" => oplog::growing(BLOCKS, REGION, 64, 40)?,
        "admit" => oplog::admitting(BLOCKS, REGION, 24, 400)?,
        _ => return Err(Error::invalid("LOG", log, "allowed mix, grow, admit")),
    };
    let pool = Pool { heaps: policy == "heaps", ..Pool::new(BLOCKS, REGION) };
    let replay = Replay::new(&scenario.log, alloc::policy(kind, pool)?, false, scenario.warm_up)?;
    replay.pass(&replay.cuts(Kinds::Mixed), policy == "null", &mut || 0)?;
    println!("{}", replay.calls());
    Ok(())
}
