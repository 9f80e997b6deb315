//! Reading one sequence's cache: tokens -> bursts -> channels -> all-bank commands -> queues.
//!
//! Channels that see the same (bank, row) stream up to renaming are read once.

use crate::BlockId;
use crate::dram::AddressMap;
use crate::error::{Error, Result};
use crate::grouper::{Coalesce, Grouping, MAX_STRIDE, Stream, Tally};
use crate::lane::{Feeding, Lane, Timed};

/// Largest granule, in bursts: bounds the memory of a reader whatever the size of its tokens.
const MAX_GRANULE: u64 = 1 << 12;

/// A burst of a granule, relative to the granule's own place (XOR).
#[derive(Clone, Copy, Debug)]
struct Step {
    channel: u32,
    bank: u32,
    row: u32,
}

/// Where one part of every token lies, in bytes: token `i` of block `b` has it at
/// `base + (b / blocks_per_unit) * unit + (b % blocks_per_unit) * block + i * stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Of token 0 of block 0.
    pub base: u64,
    /// From a token to the next of its block.
    pub stride: u64,
    /// Bytes read of each token.
    pub bytes: u64,
    /// From a block to the next of its unit.
    pub block: u64,
    /// From a unit to the next; a unit is the fewest whole regions that whole blocks fill, or a padded one.
    pub unit: u64,
}

/// Where tokens lie, and in how many passes they are read: each pass reads its parts of every token.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Blocks of a unit.
    pub blocks_per_unit: u32,
    /// Parts of a token by pass, in the order in which they are read.
    pub passes: Vec<Vec<Part>>,
    /// Only the last so many tokens are read; 0 for all.
    pub window_tokens: u64,
}

impl Layout {
    /// One pass over tokens that lie one after the other in blocks that do.
    pub fn plain(block_bytes: u64, token_bytes: u64) -> Result<Self> {
        if token_bytes == 0 || block_bytes == 0 || !block_bytes.is_multiple_of(token_bytes) {
            let allowed = format!("a multiple of token_bytes, {token_bytes}");
            return Err(Error::invalid("block_bytes", block_bytes, allowed));
        }
        let block_tokens = u32::try_from(block_bytes / token_bytes)
            .map_err(|_| Error::invalid("block_bytes", block_bytes, "at most 2^32 tokens"))?;
        let part =
            Part { base: 0, stride: token_bytes, bytes: token_bytes, block: block_bytes, unit: block_bytes };
        Ok(Self { block_tokens, blocks_per_unit: 1, passes: vec![vec![part]], window_tokens: 0 })
    }

    /// Checks that every number is whole bursts and of a size that addresses can hold.
    fn validate(&self, map: &AddressMap) -> Result<()> {
        let burst = u64::from(map.geometry().burst_bytes);
        let device = map.geometry().bursts().saturating_mul(burst);
        if self.block_tokens == 0 || self.blocks_per_unit == 0 {
            return Err(Error::invalid("block_tokens", self.block_tokens, "allowed 1 and up"));
        }
        if self.passes.is_empty() || self.passes.iter().any(Vec::is_empty) {
            return Err(Error::invalid(
                "passes",
                self.passes.len(),
                "at least one pass of at least one part",
            ));
        }
        for part in self.passes.iter().flatten() {
            for (name, bytes, least) in [
                ("token_bytes", part.bytes, 1),
                ("token_bytes", part.stride, 1),
                ("block_bytes", part.block, 1),
                ("unit", part.unit, 1),
                ("base", part.base, 0),
            ] {
                if bytes < least || !bytes.is_multiple_of(burst) {
                    return Err(Error::invalid(name, bytes, format!("a multiple of the burst, {burst}")));
                }
                if bytes > device {
                    return Err(Error::invalid(name, bytes, format!("at most the DRAM, {device}")));
                }
            }
        }
        Ok(())
    }

    /// Blocks of which every part lies within a device of `bursts` bursts.
    fn capacity(&self, map: &AddressMap) -> u64 {
        let device = map.geometry().bursts() * u64::from(map.geometry().burst_bytes);
        let per_unit = u64::from(self.blocks_per_unit);
        let fit = |part: &Part| {
            // The last byte of a block, from its start.
            let tail = (u64::from(self.block_tokens) - 1) * part.stride + part.bytes;
            let room = device.saturating_sub(part.base);
            let units = room / part.unit;
            let rest = room % part.unit;
            let more = if rest < tail { 0 } else { ((rest - tail) / part.block + 1).min(per_unit) };
            units * per_unit + more
        };
        self.passes.iter().flatten().map(fit).min().unwrap_or(0)
    }
}

/// A part in bursts.
#[derive(Clone, Copy, Debug)]
struct Place {
    base: u64,
    stride: u64,
    bursts: u64,
    block: u64,
    unit: u64,
}

/// How a cache is read in one pass; the same for every sequence.
#[derive(Debug)]
pub(crate) struct Reader {
    map: AddressMap,
    grouping: Grouping,
    feeding: Option<Feeding>,
    blocks_per_unit: u64,
    parts: Vec<Place>,
    /// Bursts of the largest aligned run, up to [`MAX_GRANULE`], that every token is made of; a power of two.
    granule: u64,
    /// Channel bits inside a granule: channels that differ only in them are alike.
    alike: u32,
    /// The bursts of a granule that one channel of each class of alike ones gets, in order.
    steps: Vec<Step>,
    /// Per channel: its stream, its lane and its side in the lane (of channels with no bit in `alike`).
    places: Vec<(usize, usize, usize)>,
    /// The streams of each lane.
    lanes: Vec<Vec<usize>>,
}

/// What is known of a sequence after its first `tokens` tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) tokens: u64,
    streams: Vec<Stream>,
    lanes: Vec<Lane>,
}

impl State {
    /// Becomes a copy of `source`, in the buffers that are there.
    pub(crate) fn copy_from(&mut self, source: &Self) {
        self.tokens = source.tokens;
        self.streams.clone_from(&source.streams);
        self.lanes.clone_from(&source.lanes);
    }
}

impl Reader {
    /// Readers of every pass of a layout, and the number of blocks that lie within the device.
    pub(crate) fn of_layout(
        map: &AddressMap,
        layout: &Layout,
        grouping: Grouping,
        timed: Option<&Timed>,
    ) -> Result<(Vec<Self>, u64)> {
        layout.validate(map)?;
        if grouping.coalesce == Coalesce::Window(0) {
            return Err(Error::invalid("window", 0, "1 burst and up, or in order"));
        }
        if !(1..=MAX_STRIDE).contains(&grouping.stride) {
            return Err(Error::invalid("mac_stride", grouping.stride, format!("allowed 1 to {MAX_STRIDE}")));
        }
        if let Some(timed) = timed {
            timed.validate()?;
        }
        let reader = |pass: &Vec<Part>| Self::new(map, layout.blocks_per_unit, pass, grouping, timed);
        Ok((layout.passes.iter().map(reader).collect(), layout.capacity(map)))
    }

    fn new(
        map: &AddressMap,
        blocks_per_unit: u32,
        pass: &[Part],
        grouping: Grouping,
        timed: Option<&Timed>,
    ) -> Self {
        let burst = u64::from(map.geometry().burst_bytes);
        let parts: Vec<_> = pass
            .iter()
            .map(|p| Place {
                base: p.base / burst,
                stride: p.stride / burst,
                bursts: p.bytes / burst,
                block: p.block / burst,
                unit: p.unit / burst,
            })
            .collect();
        // Every token's parts are whole granules at multiples of a granule.
        let numbers = parts.iter().flat_map(|p| [p.base, p.stride, p.bursts, p.block, p.unit]);
        let granule = (1 << numbers.fold(0, |all, n| all | n).trailing_zeros().min(63)).min(MAX_GRANULE);
        let alike = map.alike_channels(u64::ilog2(granule));
        let places = (0..granule).map(|burst| map.decode(burst)).filter(|place| place.channel & alike == 0);
        let steps = places.map(|p| Step { channel: p.channel, bank: p.bank, row: p.row }).collect();
        let mut reader = Self {
            grouping,
            feeding: timed.map(|timed| Feeding { timed: timed.clone(), stride: grouping.stride }),
            blocks_per_unit: blocks_per_unit.into(),
            parts,
            granule,
            alike,
            steps,
            places: vec![(0, 0, 0); map.geometry().channels as usize],
            lanes: Vec::new(),
            map: map.clone(),
        };
        reader.lay_lanes();
        reader
    }

    /// Gives each channel that is read its stream and lane.
    fn lay_lanes(&mut self) {
        let pairs = self.pairs_are_read();
        let mut streams = 0;
        for channel in 0..self.map.geometry().channels {
            if channel & self.alike != 0 {
                continue;
            }
            if pairs && channel & 1 == 1 {
                let (_, lane, _) = self.places[channel as usize - 1];
                self.lanes[lane].push(streams);
                self.places[channel as usize] = (streams, lane, 1);
            } else {
                self.places[channel as usize] = (streams, self.lanes.len(), 0);
                self.lanes.push(vec![streams]);
            }
            streams += 1;
        }
    }

    /// Whether a command acts on a pair of channels of which both are there.
    fn pairs(&self) -> bool {
        self.feeding.as_ref().is_some_and(|f| f.timed.per_command == 2) && self.map.geometry().channels > 1
    }

    /// Whether the two channels of a pair are read each by itself: they are not alike.
    fn pairs_are_read(&self) -> bool {
        self.pairs() && self.alike & 1 == 0
    }

    /// Closed banks, nothing read.
    pub(crate) fn start(&self) -> State {
        let mut state = State::default();
        state.streams.resize_with(self.lanes.iter().map(Vec::len).sum(), Stream::default);
        if self.feeding.is_some() {
            let lane = if self.pairs_are_read() { Lane::pair } else { Lane::alone };
            state.lanes.resize_with(self.lanes.len(), lane);
        }
        state
    }

    /// Reads the token at `offset` of `block`.
    pub(crate) fn push(&self, state: &mut State, block: BlockId, offset: u64) {
        let banks = self.map.geometry().banks();
        let (unit, within) =
            (u64::from(block.0) / self.blocks_per_unit, u64::from(block.0) % self.blocks_per_unit);
        for part in &self.parts {
            let first = part.base + unit * part.unit + within * part.block + offset * part.stride;
            for granule in (first..first + part.bursts).step_by(self.granule as usize) {
                let at = self.map.decode(granule);
                for step in &self.steps {
                    let channel = (at.channel & !self.alike) ^ step.channel;
                    let (stream, lane, side) = self.places[channel as usize];
                    let (bank, row) = (at.bank ^ step.bank, at.row ^ step.row);
                    state.streams[stream].push(self.grouping, banks, bank, row, |visits| {
                        if let Some(feeding) = &self.feeding {
                            state.lanes[lane].window(feeding, side, visits);
                        }
                    });
                }
            }
        }
        state.tokens += 1;
    }

    /// Activations and bursts of writing tokens `first..end` of `block`, all channels, per part: a write
    /// opens each row of each bank that it touches.
    pub(crate) fn writes(&self, block: BlockId, first: u64, end: u64, part: usize) -> (u64, u64) {
        let (unit, within) =
            (u64::from(block.0) / self.blocks_per_unit, u64::from(block.0) % self.blocks_per_unit);
        let part = &self.parts[part];
        let base = part.base + unit * part.unit + within * part.block;
        let mut opened = Vec::new();
        let mut bursts = 0;
        for token in first..end {
            let start = base + token * part.stride;
            for granule in (start..start + part.bursts).step_by(self.granule as usize) {
                let at = self.map.decode(granule);
                for step in &self.steps {
                    let channel = (at.channel & !self.alike) ^ step.channel;
                    opened.push((channel, at.bank ^ step.bank, at.row ^ step.row));
                    bursts += 1;
                }
            }
            // Most bursts follow one of the same place; the rest is sorted out below.
            opened.dedup();
        }
        opened.sort_unstable();
        opened.dedup();
        let alike = 1 << self.alike.count_ones();
        (opened.len() as u64 * alike, bursts * alike)
    }

    /// Parts that hold stored bytes of their own: of two that start alike only the larger does.
    pub(crate) fn stored(readers: &[Self]) -> Vec<(usize, usize)> {
        let mut stored: Vec<(usize, usize)> = Vec::new();
        let at = |&(reader, part): &(usize, usize)| readers[reader].parts[part];
        for (r, reader) in readers.iter().enumerate() {
            for p in 0..reader.parts.len() {
                let own = at(&(r, p));
                match stored.iter_mut().find(|s| (at(s).base, at(s).stride) == (own.base, own.stride)) {
                    Some(same) if at(same).bursts < own.bursts => *same = (r, p),
                    Some(_) => {}
                    None => stored.push((r, p)),
                }
            }
        }
        stored
    }

    /// What reading the tokens so far takes, over all channels.
    pub(crate) fn tally(&self, state: &State) -> Tally {
        let mut sum = Tally::default();
        for stream in &state.streams {
            sum += stream.tally(self.grouping.stride);
        }
        let alike = 1 << self.alike.count_ones();
        let misses = (sum.commands - sum.hits) * alike;
        let Some(feeding) = &self.feeding else {
            let (commands, bursts) = (sum.commands * alike, sum.bursts * alike);
            return Tally { commands, hits: commands - misses, bursts, ..Tally::default() };
        };
        let commands = sum.commands * alike * u64::from(feeding.timed.repeat);
        let mut tally =
            Tally { commands, hits: commands - misses, bursts: sum.bursts * alike, ..Tally::default() };
        // A pair that is read as one lane of alike channels is one queue of the device.
        let queues = if self.pairs() && !self.pairs_are_read() { alike / 2 } else { alike };
        for (lane, streams) in state.lanes.iter().zip(&self.lanes) {
            let first = &state.streams[streams[0]];
            let second = streams.get(1).map_or(first, |&s| &state.streams[s]);
            let done = lane.finish(feeding, &[first, second][..streams.len()]);
            tally.cycles = tally.cycles.max(done.cycles);
            tally.visits += done.activations * queues;
        }
        tally
    }
}
