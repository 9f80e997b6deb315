//! Sets of small numbers with successor and predecessor: a tree of bitmaps each, 64 children a word, all in
//! one piece of memory.

/// Levels of a tree that holds any u32.
const MOST_LEVELS: usize = 6;

/// So many sets of numbers below one bound.
#[derive(Clone, Debug)]
pub(super) struct MinSets {
    /// The words of one set after those of the other; in each the leaves first, one word at the root.
    words: Vec<u64>,
    /// Words of a set.
    stride: usize,
    /// Where a level starts among the words of a set.
    starts: [usize; MOST_LEVELS + 1],
    levels: usize,
}

impl MinSets {
    /// `sets` empty sets of numbers below `bound`.
    pub(super) fn new(sets: usize, bound: u32) -> Self {
        let mut starts = [0; MOST_LEVELS + 1];
        let (mut words, mut levels) = (bound.div_ceil(64).max(1) as usize, 1);
        starts[1] = words;
        while words > 1 {
            words = words.div_ceil(64);
            starts[levels + 1] = starts[levels] + words;
            levels += 1;
        }
        let stride = starts[levels];
        Self { words: vec![0; stride * sets], stride, starts, levels }
    }

    /// The words of a level of a set start here.
    fn level(&self, set: u32, level: usize) -> usize {
        set as usize * self.stride + self.starts[level]
    }

    /// Puts all numbers below `bound` into a set.
    pub(super) fn fill(&mut self, set: u32, bound: u32) {
        let mut numbers = bound as usize;
        for level in 0..self.levels {
            let first = self.level(set, level);
            self.words[first..first + numbers / 64].fill(u64::MAX);
            if !numbers.is_multiple_of(64) {
                self.words[first + numbers / 64] = (1 << (numbers % 64)) - 1;
            }
            numbers = numbers.div_ceil(64);
        }
    }

    /// Adds a number to a set; whether the set was empty.
    #[inline]
    pub(super) fn insert(&mut self, set: u32, number: u32) -> bool {
        let word = &mut self.words[set as usize * self.stride + number as usize / 64];
        let was_empty = *word == 0;
        *word |= 1 << (number % 64);
        was_empty && self.insert_above(set, number)
    }

    /// The rest of an insertion whose leaf was empty.
    fn insert_above(&mut self, set: u32, number: u32) -> bool {
        let mut place = number as usize / 64;
        for level in 1..self.levels {
            let at = self.level(set, level) + place / 64;
            let word = self.words[at];
            self.words[at] = word | 1 << (place % 64);
            if word != 0 {
                return false;
            }
            place /= 64;
        }
        true
    }

    /// Removes a number that is in the set; whether that was the last one.
    #[inline]
    pub(super) fn remove(&mut self, set: u32, number: u32) -> bool {
        let word = &mut self.words[set as usize * self.stride + number as usize / 64];
        *word &= !(1 << (number % 64));
        *word == 0 && self.remove_above(set, number)
    }

    /// The rest of a removal whose leaf is empty now.
    fn remove_above(&mut self, set: u32, number: u32) -> bool {
        let mut place = number as usize / 64;
        for level in 1..self.levels {
            let at = self.level(set, level) + place / 64;
            let word = self.words[at] & !(1 << (place % 64));
            self.words[at] = word;
            if word != 0 {
                return false;
            }
            place /= 64;
        }
        true
    }

    pub(super) fn contains(&self, set: u32, number: u32) -> bool {
        self.words[self.level(set, 0) + number as usize / 64] >> (number % 64) & 1 == 1
    }

    /// The lowest number of a set.
    pub(super) fn first(&self, set: u32) -> Option<u32> {
        let mut place = 0;
        if self.words[self.level(set, self.levels - 1)] == 0 {
            return None;
        }
        for level in (0..self.levels).rev() {
            place = place * 64 + self.words[self.level(set, level) + place].trailing_zeros() as usize;
        }
        Some(place as u32)
    }

    /// The lowest number of a set from `from` on.
    pub(super) fn next(&self, set: u32, from: u32) -> Option<u32> {
        let mut place = from as usize;
        let mut level = 0;
        // Up to the first level with something at or after the place, then down to its leaf.
        loop {
            let size =
                if level < self.levels { self.starts[level + 1] - self.starts[level] } else { return None };
            if place / 64 < size {
                let rest = self.words[self.level(set, level) + place / 64] >> (place % 64);
                if rest != 0 {
                    place += rest.trailing_zeros() as usize;
                    break;
                }
            }
            place = place / 64 + 1;
            level += 1;
        }
        for level in (0..level).rev() {
            place = place * 64 + self.words[self.level(set, level) + place].trailing_zeros() as usize;
        }
        Some(place as u32)
    }

    /// The highest number of a set up to `to`.
    pub(super) fn previous(&self, set: u32, to: u32) -> Option<u32> {
        let mut place = to as usize;
        let mut level = 0;
        loop {
            let size =
                if level < self.levels { self.starts[level + 1] - self.starts[level] } else { return None };
            let (at, bit) = if place / 64 < size { (place / 64, place % 64) } else { (size - 1, 63) };
            let rest = self.words[self.level(set, level) + at] << (63 - bit);
            if rest != 0 {
                place = at * 64 + bit - rest.leading_zeros() as usize;
                break;
            }
            place = at.checked_sub(1)?;
            level += 1;
        }
        for level in (0..level).rev() {
            let word = self.words[self.level(set, level) + place];
            place = place * 64 + 63 - word.leading_zeros() as usize;
        }
        Some(place as u32)
    }

    pub(super) fn bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }
}
