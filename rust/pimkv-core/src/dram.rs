//! DRAM geometry and the bit-field address map: burst number <-> channel, bank, row, column.

use crate::error::{Error, Result};

/// Sizes of one memory device, all powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// (Pseudo-)channels.
    pub channels: u32,
    /// Bank groups per channel.
    pub bank_groups: u32,
    /// Banks per bank group.
    pub banks_per_group: u32,
    /// Rows per bank.
    pub rows: u32,
    /// Bytes of a row in one bank.
    pub row_bytes: u32,
    /// Bytes of a burst.
    pub burst_bytes: u32,
}

impl Geometry {
    /// Banks of a channel: what one all-bank command reaches.
    #[must_use]
    pub fn banks(&self) -> u32 {
        self.bank_groups * self.banks_per_group
    }

    /// Bursts in the whole device.
    #[must_use]
    pub fn bursts(&self) -> u64 {
        u64::from(self.channels)
            * u64::from(self.banks())
            * u64::from(self.rows)
            * u64::from(self.row_bytes / self.burst_bytes)
    }

    fn validate(&self) -> Result<()> {
        for (name, size) in [
            ("channels", self.channels),
            ("bank_groups", self.bank_groups),
            ("banks_per_group", self.banks_per_group),
            ("rows", self.rows),
            ("row_bytes", self.row_bytes),
            ("burst_bytes", self.burst_bytes),
        ] {
            if !size.is_power_of_two() || size > 1 << 24 {
                return Err(Error::invalid(name, size, "a power of two from 1 to 2^24"));
            }
        }
        if self.burst_bytes > self.row_bytes {
            return Err(Error::invalid("burst_bytes", self.burst_bytes, "at most row_bytes"));
        }
        if self.banks() > 1 << 10 {
            return Err(Error::invalid("banks", self.banks(), "at most 1024 per channel"));
        }
        if self.field_bits().iter().sum::<u32>() > 62 {
            return Err(Error::invalid("rows", self.rows, "all fields together have at most 62 bits"));
        }
        Ok(())
    }

    /// Bits of each field, indexed by [`Field`].
    fn field_bits(&self) -> [u32; FIELDS] {
        let columns = self.row_bytes / self.burst_bytes;
        [self.channels, self.bank_groups, self.banks_per_group, self.rows, columns].map(u32::ilog2)
    }
}

/// Where a burst lies. The bank is flat: `bank_group * banks_per_group + bank`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// (Pseudo-)channel.
    pub channel: u32,
    /// Flat bank of the channel.
    pub bank: u32,
    /// Row of the bank.
    pub row: u32,
    /// Burst within the row.
    pub column: u32,
}

const FIELDS: usize = 5;
const NAMES: [&str; FIELDS] = ["ch", "bg", "ba", "row", "col"];
const CH: usize = 0;
const BG: usize = 1;
const BA: usize = 2;
const ROW: usize = 3;
const COL: usize = 4;

/// `width` bits of the address at `from` are the field's bits at `to`.
#[derive(Clone, Copy, Debug)]
struct Segment {
    field: usize,
    width: u32,
    from: u32,
    to: u32,
}

/// A bit-field address map over burst numbers, with optional XOR hashing of bank or channel bits
/// by row bits. It is a linear bijection over `GF(2)`: `decode(a ^ b)` is `decode(a) ^ decode(b)`.
#[derive(Clone, Debug)]
pub struct AddressMap {
    geometry: Geometry,
    segments: Vec<Segment>,
    /// `(field, shift)`: the field is xored with `row >> shift`.
    hashes: Vec<(usize, u32)>,
}

impl AddressMap {
    /// Reads a map such as `row:14 col:4 bg:2 ba:2 ch:5 col:1; ba^row:2`, most significant field
    /// first; of several segments of one field the rightmost holds its lowest bits.
    pub fn parse(spec: &str, geometry: Geometry) -> Result<Self> {
        geometry.validate()?;
        let invalid = |allowed: String| Error::invalid("addrmap", format!("{spec:?}"), allowed);
        let field_of = |name: &str| {
            NAMES
                .iter()
                .position(|n| *n == name)
                .ok_or_else(|| invalid(format!("{name:?} is not a field; allowed {}", NAMES.join(", "))))
        };
        let bits = geometry.field_bits();
        let (fields, hash) = spec.split_once(';').unwrap_or((spec, ""));
        let mut filled = [0; FIELDS];
        let mut segments = Vec::new();
        let mut from = 0;
        for token in fields.split_whitespace().rev() {
            let (name, width) =
                token.split_once(':').ok_or_else(|| invalid(format!("{token:?} is not field:bits")))?;
            let field = field_of(name)?;
            let width: u32 = width
                .parse()
                .ok()
                .filter(|w| (1..=bits[field]).contains(w))
                .ok_or_else(|| invalid(format!("{token:?}: allowed 1 to {} bits", bits[field])))?;
            segments.push(Segment { field, width, from, to: filled[field] });
            filled[field] += width;
            from += width;
        }
        for field in 0..FIELDS {
            if filled[field] != bits[field] {
                return Err(invalid(format!(
                    "field {} has {} bits, the geometry needs {}",
                    NAMES[field], filled[field], bits[field]
                )));
            }
        }
        let mut hashes = Vec::new();
        for token in hash.split_whitespace() {
            let (name, shift) = token
                .split_once("^row:")
                .ok_or_else(|| invalid(format!("{token:?} is not field^row:shift")))?;
            let field = field_of(name)?;
            if !matches!(field, CH | BG | BA) {
                return Err(invalid(format!("{token:?}: only ch, bg and ba can be hashed")));
            }
            let shift =
                shift.parse().ok().filter(|&s: &u32| s < bits[ROW]).ok_or_else(|| {
                    invalid(format!("{token:?}: allowed shifts 0 to {}", bits[ROW].max(1) - 1))
                })?;
            hashes.push((field, shift));
        }
        Ok(Self { geometry, segments, hashes })
    }

    /// The geometry that the map covers.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn hash(&self, fields: &mut [u32; FIELDS]) {
        for &(field, shift) in &self.hashes {
            let size =
                [self.geometry.channels, self.geometry.bank_groups, self.geometry.banks_per_group][field];
            fields[field] ^= (fields[ROW] >> shift) & (size - 1);
        }
    }

    /// Where a burst lies; `burst` is below [`Geometry::bursts`].
    #[must_use]
    pub fn decode(&self, burst: u64) -> Place {
        let mut fields = [0; FIELDS];
        for s in &self.segments {
            fields[s.field] |= ((burst >> s.from) as u32 & ((1 << s.width) - 1)) << s.to;
        }
        self.hash(&mut fields);
        Place {
            channel: fields[CH],
            bank: fields[BG] * self.geometry.banks_per_group + fields[BA],
            row: fields[ROW],
            column: fields[COL],
        }
    }

    /// The burst at a place, the inverse of [`Self::decode`].
    #[must_use]
    pub fn encode(&self, place: Place) -> u64 {
        let banks_per_group = self.geometry.banks_per_group;
        let mut fields = [
            place.channel,
            place.bank / banks_per_group,
            place.bank % banks_per_group,
            place.row,
            place.column,
        ];
        // The row is left as it is, so that hashing twice is the identity.
        self.hash(&mut fields);
        self.segments
            .iter()
            .map(|s| u64::from((fields[s.field] >> s.to) & ((1 << s.width) - 1)) << s.from)
            .sum()
    }

    /// Mask of channel bits such that channels that differ only in these see every aligned run of
    /// `2^log2` bursts alike, up to renaming: the bits that lie below address bit `log2`.
    #[must_use]
    pub fn alike_channels(&self, log2: u32) -> u32 {
        // A hash by a row bit that changes inside the run gives each channel an order of its own.
        let hashed = self.hashes.iter().any(|&(field, _)| field == CH);
        if hashed && self.segments.iter().any(|s| s.field == ROW && s.from < log2) {
            return 0;
        }
        self.segments
            .iter()
            .filter(|s| s.field == CH && s.from < log2)
            .map(|s| ((1 << s.width.min(log2 - s.from)) - 1) << s.to)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) const HBM3: Geometry = Geometry {
        channels: 32,
        bank_groups: 4,
        banks_per_group: 4,
        rows: 16384,
        row_bytes: 1024,
        burst_bytes: 32,
    };

    #[test]
    fn a_block_of_llama_fills_one_row_index() -> Result<()> {
        let map = AddressMap::parse("row:14 col:4 bg:2 ba:2 ch:5 col:1", HBM3)?;
        for block in 0..64_u64 {
            let rows = (block * 2048..(block + 1) * 2048).map(|b| map.decode(b).row);
            assert!(rows.into_iter().all(|r| u64::from(r) == block / 8));
        }
        assert_eq!(map.alike_channels(7), 31);
        assert_eq!(map.alike_channels(4), 7);
        Ok(())
    }

    #[test]
    fn hashing_is_undone_exactly() -> Result<()> {
        let map = AddressMap::parse("row:14 col:4 bg:2 ba:2 ch:5 col:1; ba^row:0 bg^row:2 ch^row:4", HBM3)?;
        for burst in (0..HBM3.bursts()).step_by(7919) {
            assert_eq!(map.encode(map.decode(burst)), burst);
        }
        Ok(())
    }

    #[test]
    fn maps_that_do_not_cover_the_geometry_are_refused() {
        for spec in [
            "row:14 col:4 bg:2 ba:2 ch:5",
            "row:14 col:5 bg:2 ba:2 ch:5 col:1",
            "row:14 col:4 bank:4 ch:5 col:1",
            "row:14 col:4 bg:2 ba:2 ch:0 ch:5 col:1",
            "row:14 col:4 bg:2 ba:2 ch:5 col:1; col^row:0",
            "row:14 col:4 bg:2 ba:2 ch:5 col:1; ba^row:14",
            "",
        ] {
            assert!(AddressMap::parse(spec, HBM3).is_err(), "{spec}");
        }
    }
}
