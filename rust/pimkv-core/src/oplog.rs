//! Operation logs: what a block manager asked of its policy, in order, and what the policy answered.
//!
//! A record is one policy-level operation, or a marker that says for which call of the manager the
//! operations after it were made. Bytes go in and out; who reads and writes files is not known here.
//! The format (all numbers little-endian) is described in docs/formats.md; a log that is not exactly
//! what was written is refused with the offset of what is wrong.

mod replay;
mod scenario;

pub use replay::{BATCH, Kinds, Null, Replay, Tag, Timing};
pub use scenario::{Scenario, admitting, growing, mix};

use crate::error::{Error, Result};
use crate::{BlockId, Owner};

/// First bytes of every log.
pub const MAGIC: [u8; 8] = *b"PIMKVLOG";
/// Version of the format.
pub const VERSION: u32 = 1;
/// Bytes before the first record.
pub const HEADER_BYTES: usize = 64;
/// Bytes of a record.
pub const RECORD_BYTES: usize = 16;
/// Records under one checksum.
const CHUNK: usize = 4096;
const KIND_BYTES: usize = 16;
/// Stands for "no block".
const NO_BLOCK: u32 = u32::MAX;

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// What a record is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Operation {
            $($(#[$doc])* $name = $code,)*
        }

        impl Operation {
            fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Every operation with its code and its name.
            pub const ALL: &[(u8, &str)] = &[$(($code, stringify!($name)),)*];
        }
    };
}
operations! {
    /// `owner` takes `block`, or finds none.
    Take = 0,
    /// `block` is given back.
    Give = 1,
    /// `owner` is forgotten.
    Forget = 2,
    /// `owner` reserves `count` usable blocks and `block` held back ones; `answer` says whether it got them.
    Reserve = 3,
    /// `owner` is about to take `count` blocks.
    Plan = 4,
    /// The index `count` is fed for a coming take.
    Draw = 5,
    /// Regions of at most `count` taken blocks are emptied; a `Relocate` for each move follows.
    Compact = 6,
    /// That very `block` is taken for `owner`, as a planner has chosen it.
    TakeAt = 7,
    /// Marker: `owner` is admitted with `count` tokens.
    Admit = 16,
    /// Marker: `owner` grows to `count` tokens and needs a block for it.
    Grow = 17,
    /// Marker: `owner` is forked into sequence `count`.
    Fork = 18,
    /// Marker: `owner` is released.
    Release = 19,
    /// Marker: a block moves from `block` to `count`.
    Relocate = 20,
    /// Marker: a speculation round of `owner` with `count` branches.
    Speculate = 21,
    /// Marker: `count` blocks are pinned under the prefix `owner`.
    Pin = 22,
    /// Marker: `owner` writes a block that it may have to copy.
    Write = 23,
    /// Marker: `count` blocks at the front of `owner` go.
    Trim = 24,
    /// Marker: a prefix cache lets `count` blocks go.
    LetGo = 25,
}

/// Which kind of owner the number in a record names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Class {
    Sequence = 0,
    Prefix = 1,
    Scratch = 2,
}

/// One operation; what a field means depends on it ([`Operation`]), and what has no meaning is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it is.
    pub operation: Operation,
    class: Class,
    /// Whether a reservation was granted.
    pub answer: bool,
    number: u32,
    block: u32,
    /// A count, see [`Operation`].
    pub count: u32,
}

impl Record {
    /// For whom.
    #[must_use]
    pub fn owner(&self) -> Owner {
        match self.class {
            Class::Sequence => Owner(self.number.into()),
            Class::Prefix => Owner::prefix(self.number),
            Class::Scratch => Owner::SCRATCH,
        }
    }

    /// Which block, if there was one.
    #[must_use]
    pub fn block(&self) -> Option<BlockId> {
        (self.block != NO_BLOCK).then_some(BlockId(self.block))
    }

    fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..4].copy_from_slice(&[self.operation as u8, self.class as u8, self.answer.into(), 0]);
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.block.to_le_bytes());
        bytes[12..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> std::result::Result<Self, String> {
        let operation =
            Operation::from_code(bytes[0]).ok_or_else(|| format!("there is no operation {}", bytes[0]))?;
        let class = match bytes[1] {
            0 => Class::Sequence,
            1 => Class::Prefix,
            2 => Class::Scratch,
            class => return Err(format!("there is no class {class} of owners")),
        };
        if bytes[2] > 1 || bytes[3] != 0 {
            return Err(format!("an answer is 0 or 1 and then 0, not {} and {}", bytes[2], bytes[3]));
        }
        Ok(Self {
            operation,
            class,
            answer: bytes[2] == 1,
            number: word(bytes, 4),
            block: word(bytes, 8),
            count: word(bytes, 12),
        })
    }
}

/// The pool and policy that a log is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Blocks of the pool.
    pub blocks: u32,
    /// Blocks that share one row index.
    pub blocks_per_region: u32,
    /// Tokens per block.
    pub block_tokens: u32,
    /// The policy, under the name that users select it by.
    pub kind: String,
    /// Whether that policy planned by best fit.
    pub best_fit: bool,
}

/// A recorded run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpLog {
    header: Header,
    records: Vec<Record>,
    /// Why the log cannot be kept: a number that no record holds.
    overflow: Option<String>,
}

impl OpLog {
    /// An empty log.
    #[must_use]
    pub fn new(header: Header) -> Self {
        Self { header, records: Vec::new(), overflow: None }
    }

    /// What it is of.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The operations.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Byte offset of a record in the file.
    #[must_use]
    pub fn offset(index: usize) -> u64 {
        (HEADER_BYTES + index * RECORD_BYTES) as u64
    }

    /// Drops the records after the first `length`: what they tell has been undone.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.records.truncate(length);
    }

    /// Appends a record; `count` may be wider than the format, which `to_bytes` then refuses.
    pub(crate) fn push(&mut self, operation: Operation, owner: Owner, block: Option<BlockId>, count: u64) {
        let block = block.map_or(NO_BLOCK, |b| b.0);
        self.push_record(operation, owner, block, count, false);
    }

    /// Appends a reservation and its answer.
    pub(crate) fn push_reserve(&mut self, owner: Owner, usable: u32, held_back: u32, answer: bool) {
        self.push_record(Operation::Reserve, owner, held_back, usable.into(), answer);
    }

    fn push_record(&mut self, operation: Operation, owner: Owner, block: u32, count: u64, answer: bool) {
        let (class, number) = match owner {
            Owner::SCRATCH => (Class::Scratch, Some(0)),
            Owner(n) if n >= Owner::prefix(0).0 => {
                (Class::Prefix, u32::try_from(n - Owner::prefix(0).0).ok())
            }
            Owner(n) => (Class::Sequence, u32::try_from(n).ok()),
        };
        let (Some(number), Ok(count)) = (number, u32::try_from(count)) else {
            self.overflow.get_or_insert(format!("{operation:?} of owner {owner} with count {count}"));
            return;
        };
        self.records.push(Record { operation, class, answer, number, block, count });
    }

    /// The log as a file holds it; refused if a number did not fit its record.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        if let Some(what) = &self.overflow {
            return Err(Error::invalid("log", what, "a record holds owners and counts up to 4294967295"));
        }
        let mut bytes = Vec::with_capacity(Self::size(self.records.len()));
        let header = &self.header;
        bytes.extend(MAGIC);
        for word in [
            VERSION,
            HEADER_BYTES as u32,
            header.blocks,
            header.blocks_per_region,
            header.block_tokens,
            header.best_fit.into(),
        ] {
            bytes.extend(word.to_le_bytes());
        }
        let mut kind = [0; KIND_BYTES];
        kind[..header.kind.len()].copy_from_slice(header.kind.as_bytes());
        bytes.extend(kind);
        bytes.extend((self.records.len() as u64).to_le_bytes());
        bytes.extend(checksum(&bytes).to_le_bytes());
        for record in &self.records {
            bytes.extend(record.to_bytes());
        }
        let records = HEADER_BYTES..bytes.len();
        let sums: Vec<_> = bytes[records].chunks(CHUNK * RECORD_BYTES).map(checksum).collect();
        bytes.extend(sums.into_iter().flat_map(u64::to_le_bytes));
        Ok(bytes)
    }

    /// Bytes of a log of so many records.
    fn size(records: usize) -> usize {
        HEADER_BYTES + records * RECORD_BYTES + records.div_ceil(CHUNK) * size_of::<u64>()
    }

    /// Reads a log; whatever is not as `to_bytes` wrote it is refused with its offset.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let refuse = |offset: usize, what: String| Err(Error::BadLog { offset: offset as u64, what });
        if bytes.get(..MAGIC.len()) != Some(&MAGIC[..]) {
            return refuse(0, "this is not an operation log of pimkv".into());
        }
        if bytes.len() < HEADER_BYTES {
            return refuse(bytes.len(), format!("the log ends within its header of {HEADER_BYTES} bytes"));
        }
        if word(bytes, 8) != VERSION {
            return refuse(
                8,
                format!("version {} of the format; this pimkv reads {VERSION}", word(bytes, 8)),
            );
        }
        let (fields, sum) = bytes[..HEADER_BYTES].split_at(HEADER_BYTES - size_of::<u64>());
        if checksum(fields) != long(sum, 0) {
            return refuse(fields.len(), "the header is not what was written: its checksum differs".into());
        }
        let name = fields[32..32 + KIND_BYTES].split(|&b| b == 0).next().unwrap_or_default();
        let header = Header {
            blocks: word(fields, 16),
            blocks_per_region: word(fields, 20),
            block_tokens: word(fields, 24),
            kind: String::from_utf8_lossy(name).into_owned(),
            best_fit: word(fields, 28) & 1 == 1,
        };
        let count = long(fields, 48);
        let Some(records) = usize::try_from(count).ok().filter(|&n| n <= bytes.len() / RECORD_BYTES) else {
            return refuse(bytes.len(), format!("the log ends here, of {count} operations"));
        };
        let size = Self::size(records);
        if bytes.len() < size {
            return refuse(bytes.len(), format!("the log ends here, of {count} operations in {size} bytes"));
        }
        if bytes.len() > size {
            return refuse(size, format!("{} bytes after the end of the log", bytes.len() - size));
        }
        let (body, sums) = bytes[HEADER_BYTES..].split_at(records * RECORD_BYTES);
        for (index, chunk) in body.chunks(CHUNK * RECORD_BYTES).enumerate() {
            if checksum(chunk) != long(sums, index * size_of::<u64>()) {
                let (first, last) = (index * CHUNK, (index * CHUNK + CHUNK).min(records) - 1);
                let what =
                    format!("operations {first} to {last} are not what was written: the checksum differs");
                return refuse(HEADER_BYTES + first * RECORD_BYTES, what);
            }
        }
        let mut parsed = Vec::with_capacity(records);
        for (index, bytes) in body.chunks(RECORD_BYTES).enumerate() {
            match Record::from_bytes(bytes) {
                Ok(record) => parsed.push(record),
                Err(what) => return refuse(HEADER_BYTES + index * RECORD_BYTES, what),
            }
        }
        Ok(Self { header, records: parsed, overflow: None })
    }
}

/// A multiplicative hash over 8-byte words, the last one filled up with zeros: finds damage, not malice.
fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for word in bytes.chunks(8) {
        let mut padded = [0; 8];
        padded[..word.len()].copy_from_slice(word);
        // The multiplication never carries a word's high bits down: the rotation does.
        sum = (sum.rotate_left(23) ^ u64::from_le_bytes(padded)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    sum ^ bytes.len() as u64
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    let mut long = [0; 8];
    long.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(long)
}
