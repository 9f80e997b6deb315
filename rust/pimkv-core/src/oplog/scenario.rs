//! Logs made up rather than recorded: a stated mix, and the worst case of a policy with regions.
//!
//! Draws come from a fixed linear congruential generator: the same log every time.

use super::{Header, OpLog, Operation};
use crate::alloc::{self, Policy};
use crate::error::{Error, Result};
use crate::{BlockId, Owner};

/// A log of which the first `warm_up` records only make the state that is measured.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Warm-up, then what is measured.
    pub log: OpLog,
    /// Records of the warm-up.
    pub warm_up: usize,
}

struct Draws(u64);

impl Draws {
    /// A number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound as u64) as usize
    }
}

/// Drives a policy and writes the log.
struct Driver {
    policy: Box<dyn Policy>,
    log: OpLog,
}

impl Driver {
    fn new(kind: &str, blocks: u32, blocks_per_region: u32) -> Result<Self> {
        let policy = alloc::policy(kind, alloc::Pool::new(blocks, blocks_per_region))?;
        let header =
            Header { blocks, blocks_per_region, block_tokens: 16, kind: kind.into(), best_fit: false };
        Ok(Self { policy, log: OpLog::new(header) })
    }

    fn mark(&mut self, operation: Operation, owner: Owner) {
        self.log.push(operation, owner, None, 0);
    }

    fn take(&mut self, owner: Owner) -> Result<BlockId> {
        let block = self.policy.take(owner);
        self.log.push(Operation::Take, owner, block, 0);
        block.ok_or_else(|| Error::BrokenInvariant("the scenario found no block".into()))
    }

    fn give(&mut self, block: BlockId) -> Result<()> {
        self.log.push(Operation::Give, Owner(0), Some(block), 0);
        self.policy.give(block)
    }

    fn forget(&mut self, owner: Owner) {
        self.log.push(Operation::Forget, owner, None, 0);
        self.policy.forget(owner);
    }

    fn begins(&self) -> usize {
        self.log.records().len()
    }
}

/// `sequences` sequences on a pool that stays around 80 % full: at each step one of them, drawn at random,
/// takes a block. When less than a fifth is free, a random sequence leaves (its blocks in table order, then
/// the owner) and starts anew from nothing. About one give for every take.
pub fn mix(blocks: u32, blocks_per_region: u32, sequences: u32, steps: usize) -> Result<Scenario> {
    if sequences == 0 || sequences > blocks / 4 {
        return Err(Error::invalid(
            "sequences",
            sequences,
            format!("allowed 1 to blocks / 4 = {}", blocks / 4),
        ));
    }
    let mut driver = Driver::new("pim-aware", blocks, blocks_per_region)?;
    let mut draws = Draws(1);
    let mut tables = vec![Vec::new(); sequences as usize];
    let mut step = |driver: &mut Driver| -> Result<()> {
        let seq = draws.below(tables.len());
        let owner = Owner(seq as u64);
        tables[seq].push(driver.take(owner)?);
        while driver.policy.free_blocks() < blocks / 5 {
            let seq = draws.below(tables.len());
            let owner = Owner(seq as u64);
            driver.mark(Operation::Release, owner);
            for block in tables[seq].drain(..) {
                driver.give(block)?;
            }
            driver.forget(owner);
            driver.mark(Operation::Grow, owner);
        }
        Ok(())
    };
    driver.mark(Operation::Grow, Owner(0));
    // Until the pool has been filled, and then has been turned over in part.
    for _ in 0..blocks as usize + blocks as usize / 4 {
        step(&mut driver)?;
    }
    let warm_up = driver.begins();
    for _ in 0..steps {
        step(&mut driver)?;
    }
    Ok(Scenario { log: driver.log, warm_up })
}

/// A full pool under the owner 0.
fn full(blocks: u32, blocks_per_region: u32) -> Result<Driver> {
    if blocks_per_region < 2 {
        let what = "a region of one block is either empty or full; allowed 2 and up";
        return Err(Error::invalid("blocks_per_region", blocks_per_region, what));
    }
    let mut driver = Driver::new("pim-aware", blocks, blocks_per_region)?;
    driver.mark(Operation::Admit, Owner(0));
    for _ in 0..blocks {
        driver.take(Owner(0))?;
    }
    driver.forget(Owner(0));
    Ok(driver)
}

/// The worst case of growing: no region is empty, half of them have one free id and the others none, so that
/// every take finds its owner's region full and falls back. Rounds of 256 takes (fewer in a small pool) by
/// `sequences` owners in turn; then as many full regions, drawn at random, get a block back.
pub fn growing(blocks: u32, blocks_per_region: u32, sequences: u32, rounds: usize) -> Result<Scenario> {
    let regions = (blocks / blocks_per_region.max(1)) as usize;
    if sequences == 0 || regions < 4 {
        return Err(Error::invalid("sequences", sequences, "allowed 1 and up, on 4 regions and up"));
    }
    let mut driver = full(blocks, blocks_per_region)?;
    let mut draws = Draws(2);
    let mut room = vec![false; regions];
    let mut give_to = |driver: &mut Driver, room: &mut [bool], region: usize| {
        room[region] = true;
        let slot = draws.below(blocks_per_region as usize) as u32;
        driver.give(BlockId(region as u32 * blocks_per_region + slot))
    };
    for region in regions / 2..regions {
        give_to(&mut driver, &mut room, region)?;
    }
    let warm_up = driver.begins();
    let mut picks = Draws(3);
    let mut turn = 0;
    for _ in 0..rounds {
        driver.mark(Operation::Grow, Owner(1));
        for _ in 0..(regions / 4).min(256) {
            let block = driver.take(Owner(1 + turn % u64::from(sequences)))?;
            turn += 1;
            room[(block.0 / blocks_per_region) as usize] = false;
        }
        driver.mark(Operation::Write, Owner(1));
        for _ in 0..(regions / 4).min(256) {
            let region = loop {
                let region = picks.below(regions);
                if !room[region] {
                    break region;
                }
            };
            give_to(&mut driver, &mut room, region)?;
        }
    }
    Ok(Scenario { log: driver.log, warm_up })
}

/// The worst case of admitting: about a tenth of the pool is free, no region is, and what is free lies
/// anywhere. Requests of `request` blocks leave at random, all but the last block of a region, and a request
/// of as many blocks comes for each.
pub fn admitting(blocks: u32, blocks_per_region: u32, request: u32, rounds: usize) -> Result<Scenario> {
    if request == 0 || request > blocks / 32 {
        return Err(Error::invalid(
            "request",
            request,
            format!("allowed 1 to blocks / 32 = {}", blocks / 32),
        ));
    }
    let mut driver = full(blocks, blocks_per_region)?;
    let mut draws = Draws(4);
    let mut ids: Vec<_> = (0..blocks).map(BlockId).collect();
    for i in 0..ids.len() {
        let pick = i + draws.below(ids.len() - i);
        ids.swap(i, pick);
    }
    let mut tables: Vec<_> = ids.chunks(request as usize).map(|ids| (Owner(0), ids.to_vec())).collect();
    let mut used = vec![blocks_per_region; (blocks / blocks_per_region) as usize];
    let mut next = 0;
    // Lets a request go; the blocks that would leave a region empty stay in use for good.
    let leave = |driver: &mut Driver, used: &mut [u32], table: Vec<BlockId>, owner: Owner| {
        driver.mark(Operation::Release, owner);
        for block in table {
            let used = &mut used[(block.0 / blocks_per_region) as usize];
            if *used > 1 {
                *used -= 1;
                driver.give(block)?;
            }
        }
        driver.forget(owner);
        Ok::<_, Error>(())
    };
    let mut warm_up = 0;
    let tenth = tables.len() / 10;
    for round in 0..rounds + tenth {
        let gone = draws.below(tables.len());
        let (owner, table) = tables.swap_remove(gone);
        leave(&mut driver, &mut used, table, owner)?;
        if round < tenth {
            warm_up = driver.begins();
            continue;
        }
        next += 1;
        driver.mark(Operation::Admit, Owner(next));
        let mut table = Vec::with_capacity(request as usize);
        for _ in 0..request.min(driver.policy.free_blocks()) {
            let block = driver.take(Owner(next))?;
            used[(block.0 / blocks_per_region) as usize] += 1;
            table.push(block);
        }
        tables.push((Owner(next), table));
    }
    Ok(Scenario { log: driver.log, warm_up })
}
