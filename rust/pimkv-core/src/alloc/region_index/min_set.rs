//! A set of small numbers with successor and predecessor: a tree of bitmaps, 64 children a word.

/// Numbers below a bound that is given with each insertion. Nothing is allocated before the first one: most
/// sets of a pool with large regions stay empty.
#[derive(Clone, Debug, Default)]
pub(super) struct MinSet {
    /// Words of each level, the leaves first, one word at the root.
    levels: Vec<Vec<u64>>,
}

impl MinSet {
    /// All numbers below `bound`.
    pub(super) fn full(bound: u32) -> Self {
        let mut set = Self::default();
        set.lay_out(bound);
        let mut numbers = bound as usize;
        for words in &mut set.levels {
            words[..numbers / 64].fill(u64::MAX);
            if !numbers.is_multiple_of(64) {
                words[numbers / 64] = (1 << (numbers % 64)) - 1;
            }
            numbers = numbers.div_ceil(64);
        }
        set
    }

    fn lay_out(&mut self, bound: u32) {
        let mut words = bound.div_ceil(64).max(1) as usize;
        self.levels.push(vec![0; words]);
        while words > 1 {
            words = words.div_ceil(64);
            self.levels.push(vec![0; words]);
        }
    }

    /// Adds a number below `bound`; whether the set was empty.
    pub(super) fn insert(&mut self, number: u32, bound: u32) -> bool {
        if self.levels.is_empty() {
            self.lay_out(bound);
        }
        let mut place = number as usize;
        for words in &mut self.levels {
            let word = &mut words[place / 64];
            let was_empty = *word == 0;
            *word |= 1 << (place % 64);
            if !was_empty {
                return false;
            }
            place /= 64;
        }
        true
    }

    /// Removes a number that is in; whether that was the last one.
    pub(super) fn remove(&mut self, number: u32) -> bool {
        let mut place = number as usize;
        for words in &mut self.levels {
            let word = &mut words[place / 64];
            *word &= !(1 << (place % 64));
            if *word != 0 {
                return false;
            }
            place /= 64;
        }
        true
    }

    pub(super) fn contains(&self, number: u32) -> bool {
        let word = self.levels.first().and_then(|leaves| leaves.get(number as usize / 64));
        word.is_some_and(|w| w >> (number % 64) & 1 == 1)
    }

    /// The lowest number from `from` on.
    pub(super) fn next(&self, from: u32) -> Option<u32> {
        let mut place = from as usize;
        let mut level = 0;
        // Up to the first level with something at or after the place, then down to its leaf.
        loop {
            let words = self.levels.get(level)?;
            let rest = words.get(place / 64).map_or(0, |w| w >> (place % 64));
            if rest != 0 {
                place += rest.trailing_zeros() as usize;
                break;
            }
            place = place / 64 + 1;
            level += 1;
        }
        for words in self.levels[..level].iter().rev() {
            place = place * 64 + words[place].trailing_zeros() as usize;
        }
        Some(place as u32)
    }

    /// The highest number up to `to`.
    pub(super) fn previous(&self, to: u32) -> Option<u32> {
        let mut place = to as usize;
        let mut level = 0;
        loop {
            let words = self.levels.get(level)?;
            let (at, bit) = if place / 64 < words.len() {
                (place / 64, place % 64)
            } else {
                (words.len().checked_sub(1)?, 63)
            };
            let rest = words[at] << (63 - bit);
            if rest != 0 {
                place = at * 64 + bit - rest.leading_zeros() as usize;
                break;
            }
            place = at.checked_sub(1)?;
            level += 1;
        }
        for words in self.levels[..level].iter().rev() {
            place = place * 64 + 63 - words[place].leading_zeros() as usize;
        }
        Some(place as u32)
    }

    pub(super) fn bytes(&self) -> usize {
        self.levels.iter().map(|level| level.capacity() * size_of::<u64>()).sum()
    }
}
