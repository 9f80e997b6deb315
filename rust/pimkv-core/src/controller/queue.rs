//! The command queue of one channel: runs of commands to the same row, oldest first, in a fixed ring.

/// The row id that stands for a barrier; rows are below it.
pub const BARRIER: u32 = u32::MAX;

/// The deepest queue modelled, in commands; real controllers hold 32 to 64.
pub const MAX_QUEUE: usize = 64;

const MASK: usize = MAX_QUEUE - 1;

/// A queue of at most [`MAX_QUEUE`] commands, kept as runs so that a row visit costs one search.
///
/// Barriers take a slot each, like commands. The head is never a barrier: it is dropped as it gets there.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    rows: [u32; MAX_QUEUE],
    counts: [u8; MAX_QUEUE],
    head: usize,
    runs: usize,
    slots: usize,
    /// Runs of barriers in the queue.
    barriers: usize,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self { rows: [0; MAX_QUEUE], counts: [0; MAX_QUEUE], head: 0, runs: 0, slots: 0, barriers: 0 }
    }

    /// Commands and barriers held.
    #[inline]
    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.runs == 0
    }

    /// Whether a barrier hides what is pushed next.
    #[inline]
    pub(super) fn has_barrier(&self) -> bool {
        self.barriers > 0
    }

    /// The row of the oldest command; meaningless when empty.
    #[inline]
    pub(super) fn oldest(&self) -> u32 {
        self.rows[self.head]
    }

    /// Commands in the run at `index`, counted from the oldest.
    #[inline]
    pub(super) fn count(&self, index: usize) -> u64 {
        u64::from(self.counts[(self.head + index) & MASK])
    }

    /// Adds a command (or barrier) behind all others; returns the index of its run. A barrier that
    /// finds the queue empty is at the head, and is dropped. The caller keeps to the queue's depth.
    #[inline]
    pub(super) fn push(&mut self, row: u32) -> usize {
        if self.runs == 0 {
            if row == BARRIER {
                return 0;
            }
        } else {
            let last = (self.head + self.runs - 1) & MASK;
            if self.rows[last] == row {
                self.counts[last] += 1;
                self.slots += 1;
                return self.runs - 1;
            }
        }
        let tail = (self.head + self.runs) & MASK;
        self.rows[tail] = row;
        self.counts[tail] = 1;
        self.runs += 1;
        self.slots += 1;
        if row == BARRIER {
            self.barriers += 1;
        }
        self.runs - 1
    }

    /// Takes `count` commands from the run at `index`, which holds as many; tells whether that
    /// emptied and removed it. A barrier that reaches the head by it is dropped.
    #[inline]
    pub(super) fn take(&mut self, index: usize, count: u8) -> bool {
        let place = (self.head + index) & MASK;
        self.counts[place] -= count;
        self.slots -= usize::from(count);
        if self.counts[place] > 0 {
            return false;
        }
        if index == 0 {
            self.drop_head();
            if self.runs > 0 && self.rows[self.head] == BARRIER {
                self.slots -= usize::from(self.counts[self.head]);
                self.barriers -= 1;
                self.drop_head();
            }
        } else {
            for i in index..self.runs - 1 {
                let (to, from) = ((self.head + i) & MASK, (self.head + i + 1) & MASK);
                self.rows[to] = self.rows[from];
                self.counts[to] = self.counts[from];
            }
            self.runs -= 1;
        }
        true
    }

    fn drop_head(&mut self) {
        self.head = (self.head + 1) & MASK;
        self.runs -= 1;
    }

    /// The first run of `row` at or behind `from` that no barrier hides.
    #[inline]
    pub(super) fn find(&self, row: u32, from: usize) -> Option<usize> {
        for index in from..self.runs {
            let found = self.rows[(self.head + index) & MASK];
            if found == row {
                return Some(index);
            }
            if found == BARRIER {
                return None;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(rows: &[u32]) -> Queue {
        let mut queue = Queue::new();
        for &row in rows {
            queue.push(row);
        }
        queue
    }

    #[test]
    fn commands_of_one_row_in_a_row_are_one_run() {
        let queue = queue(&[5, 5, 7, 5]);
        assert_eq!((queue.slots(), queue.runs, queue.count(0)), (4, 3, 2));
        assert_eq!((queue.find(5, 0), queue.find(5, 1), queue.find(9, 0)), (Some(0), Some(2), None));
    }

    #[test]
    fn taking_the_last_of_a_run_closes_the_gap() {
        let mut queue = queue(&[5, 7, 9, 9]);
        assert!(queue.take(1, 1));
        assert_eq!((queue.oldest(), queue.find(9, 0), queue.slots()), (5, Some(1), 3));
        assert!(!queue.take(1, 1));
        assert!(queue.take(0, 1));
        assert_eq!(queue.oldest(), 9);
    }

    #[test]
    fn a_barrier_hides_what_is_behind_it_and_goes_at_the_head() {
        let mut queue = queue(&[BARRIER, 5, BARRIER, BARRIER, 7]);
        assert_eq!((queue.slots(), queue.find(7, 0), queue.has_barrier()), (4, None, true));
        assert!(queue.take(0, 1));
        assert_eq!((queue.oldest(), queue.slots(), queue.has_barrier()), (7, 1, false));
    }

    #[test]
    fn the_ring_goes_round() {
        let mut queue = Queue::new();
        for row in 0..1000 {
            queue.push(row);
            if queue.slots() == MAX_QUEUE {
                assert_eq!(queue.oldest() + 63, row);
                assert!(queue.take(0, 1));
            }
        }
    }
}
