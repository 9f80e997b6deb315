//! Incremental scoring of many sequences: every decode step of every sequence, exactly.
//!
//! Each sequence keeps the grouper's state after its last token and at the start of its last
//! block, so an appended token costs O(1) and a changed last block re-scores that block alone.
//! Channels that see the same (bank, row) stream up to renaming are scored once.

use rustc_hash::FxHashMap;

use crate::dram::AddressMap;
use crate::error::{Error, Result};
use crate::grouper::{Coalesce, Stream, Tally};
use crate::manager::BlockManager;
use crate::{BlockId, SeqId};

/// Largest granule, in bursts: bounds the memory of a scorer whatever the size of its tokens.
const MAX_GRANULE: u64 = 1 << 12;

/// A burst of a granule, relative to the granule's own place (XOR).
#[derive(Clone, Copy, Debug)]
struct Step {
    channel: u32,
    bank: u32,
    row: u32,
}

/// The grouper's state of each scored channel after the first `tokens` tokens.
#[derive(Clone, Debug, Default)]
struct State {
    tokens: u64,
    streams: Vec<Stream>,
}

/// A sequence: its state now, and at the start of its last block.
#[derive(Debug, Default)]
struct Scored {
    /// Stamp of the table when it was scored.
    stamp: u64,
    now: State,
    block_start: State,
}

/// Scores block tables on one address map.
#[derive(Debug)]
pub struct Scorer {
    map: AddressMap,
    coalesce: Coalesce,
    block_bursts: u64,
    token_bursts: u64,
    /// Bursts of the largest aligned run, up to [`MAX_GRANULE`], that every token is made of; a power of two.
    granule: u64,
    /// Channel bits inside a granule: channels that differ only in them are alike.
    alike: u32,
    /// Per value of a granule's channel bits in `alike`: the bursts that the channel whose own
    /// such bits are zero gets, in order.
    steps: Vec<Vec<Step>>,
    /// Index of a channel among the scored ones.
    scored_channel: Vec<u32>,
    scored_channels: u32,
    sequences: FxHashMap<SeqId, Scored>,
    totals: Tally,
}

impl Scorer {
    /// A scorer for blocks of `block_bytes` whose tokens lie `token_bytes` apart.
    pub fn new(map: AddressMap, block_bytes: u64, token_bytes: u64, coalesce: Coalesce) -> Result<Self> {
        let burst = u64::from(map.geometry().burst_bytes);
        if token_bytes == 0 || !token_bytes.is_multiple_of(burst) {
            return Err(Error::invalid(
                "token_bytes",
                token_bytes,
                format!("a multiple of the burst, {burst}"),
            ));
        }
        if block_bytes == 0 || !block_bytes.is_multiple_of(token_bytes) {
            return Err(Error::invalid(
                "block_bytes",
                block_bytes,
                format!("a multiple of token_bytes, {token_bytes}"),
            ));
        }
        if block_bytes / burst > map.geometry().bursts() {
            let size = u128::from(map.geometry().bursts()) * u128::from(burst);
            return Err(Error::invalid("block_bytes", block_bytes, format!("at most the DRAM, {size}")));
        }
        if coalesce == Coalesce::Window(0) {
            return Err(Error::invalid("window", 0, "1 burst and up, or in order"));
        }
        let token_bursts = token_bytes / burst;
        let granule = (1 << token_bursts.trailing_zeros()).min(MAX_GRANULE);
        let alike = map.alike_channels(u64::ilog2(granule));
        let mut steps = vec![Vec::new(); alike as usize + 1];
        for burst in 0..granule {
            let place = map.decode(burst);
            let step = Step { channel: place.channel & !alike, bank: place.bank, row: place.row };
            steps[(place.channel & alike) as usize].push(step);
        }
        let mut scored_channel = vec![0; map.geometry().channels as usize];
        let mut scored_channels = 0;
        for channel in 0..map.geometry().channels {
            if channel & alike == 0 {
                scored_channel[channel as usize] = scored_channels;
                scored_channels += 1;
            }
        }
        Ok(Self {
            coalesce,
            block_bursts: block_bytes / burst,
            token_bursts,
            granule,
            alike,
            steps,
            scored_channel,
            scored_channels,
            sequences: FxHashMap::default(),
            totals: Tally::default(),
            map,
        })
    }

    /// Scores each sequence as its table stands and adds it to the totals.
    pub fn observe(&mut self, manager: &mut BlockManager, seqs: &[SeqId]) -> Result<Vec<Tally>> {
        self.fits(manager)?;
        if let Some(&unknown) = seqs.iter().find(|s| manager.table(**s).is_err()) {
            return Err(Error::UnknownSequence(unknown));
        }
        let mut tallies = Vec::with_capacity(seqs.len());
        for &seq in seqs {
            let tally = self.score(manager, seq)?;
            self.totals += tally;
            tallies.push(tally);
        }
        Ok(tallies)
    }

    /// Sum over everything observed so far.
    #[must_use]
    pub fn totals(&self) -> Tally {
        self.totals
    }

    /// Drops the state of a sequence; it is scored afresh if it comes back.
    pub fn forget(&mut self, seq: SeqId) {
        self.sequences.remove(&seq);
    }

    fn fits(&self, manager: &BlockManager) -> Result<()> {
        let fit = self.map.geometry().bursts() / self.block_bursts;
        if u64::from(manager.blocks()) > fit {
            return Err(Error::invalid(
                "blocks",
                manager.blocks(),
                format!("at most {fit} blocks fit the DRAM"),
            ));
        }
        let block_tokens = self.block_bursts / self.token_bursts;
        if u64::from(manager.block_tokens()) != block_tokens {
            return Err(Error::invalid(
                "block_tokens",
                manager.block_tokens(),
                format!("the scorer's blocks have {block_tokens}"),
            ));
        }
        Ok(())
    }

    fn score(&mut self, manager: &mut BlockManager, seq: SeqId) -> Result<Tally> {
        let block_tokens = u64::from(manager.block_tokens());
        let mut scored = self.sequences.remove(&seq).unwrap_or_default();
        let (intact, stamp) = manager.intact_since(seq, scored.stamp)?;
        scored.stamp = stamp;
        let intact = (intact as u64).saturating_mul(block_tokens);
        let table = manager.table(seq)?;
        scored.now.streams.resize_with(self.scored_channels as usize, Stream::default);
        scored.block_start.streams.resize_with(self.scored_channels as usize, Stream::default);
        let intact = intact.min(table.tokens());
        if intact < scored.now.tokens {
            if scored.block_start.tokens <= intact {
                scored.now.clone_from(&scored.block_start);
            } else {
                scored.now.tokens = 0;
                scored.now.streams.iter_mut().for_each(Stream::reset);
            }
        }
        for token in scored.now.tokens..table.tokens() {
            let (block, offset) = (token / block_tokens, token % block_tokens);
            if offset == 0 {
                scored.now.tokens = token;
                scored.block_start.tokens = token;
                scored.block_start.streams.clone_from(&scored.now.streams);
            }
            self.push_token(&mut scored.now.streams, table.blocks()[block as usize], offset);
        }
        scored.now.tokens = table.tokens();
        let mut tally = Tally::default();
        for stream in &scored.now.streams {
            tally += stream.tally();
        }
        self.sequences.insert(seq, scored);
        Ok(tally * (1 << self.alike.count_ones()))
    }

    fn push_token(&self, streams: &mut [Stream], block: BlockId, offset: u64) {
        let banks = self.map.geometry().banks();
        let first = u64::from(block.0) * self.block_bursts + offset * self.token_bursts;
        for granule in (first..first + self.token_bursts).step_by(self.granule as usize) {
            let at = self.map.decode(granule);
            for step in &self.steps[(at.channel & self.alike) as usize] {
                let channel = (at.channel & !self.alike) ^ step.channel;
                let stream = &mut streams[self.scored_channel[channel as usize] as usize];
                stream.push(self.coalesce, banks, at.bank ^ step.bank, at.row ^ step.row);
            }
        }
    }
}
