//! Bursts of one channel -> all-bank commands, by a window of bursts or in order.
//!
//! An all-bank command opens one row index in every bank and moves one burst per bank, so a burst
//! shares a command with bursts of the same row in other banks.

/// How the bursts of a channel may be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coalesce {
    /// Consecutive windows of this many bursts; within one, a row's bursts need as many commands
    /// as its fullest bank has bursts.
    Window(u32),
    /// No reordering: a command closes when the row changes, a bank repeats or all banks are in it.
    InOrder,
}

/// What reading a stream takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Commands issued.
    pub commands: u64,
    /// Commands that found their row open.
    pub hits: u64,
    /// Bursts moved.
    pub bursts: u64,
    /// Controller cycles without refresh: of a sequence its slowest channel's.
    pub cycles: u64,
    /// Row visits of the controller: activations in all banks of a channel.
    pub visits: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.commands += other.commands;
        self.hits += other.hits;
        self.bursts += other.bursts;
        self.cycles += other.cycles;
        self.visits += other.visits;
    }
}

/// A visit to a row: the consecutive all-bank commands that a window has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The row.
    pub row: u32,
    /// Commands, as many as its fullest bank has bursts.
    pub commands: u32,
}

/// The state of one channel after a prefix of its bursts: appending a burst costs O(rows in the
/// open window), reading the tally costs O(1). The banks start closed.
#[derive(Debug, Default)]
pub struct Stream {
    /// Of closed windows or commands.
    closed: Tally,
    /// Row left open by what is closed.
    carried: Option<u32>,
    /// Row of the latest burst.
    last: Option<u32>,
    /// Bursts in what is open.
    pending: u32,
    /// Commands the open window needs.
    open_commands: u32,
    /// Row activations the open window needs.
    open_misses: u32,
    /// Rows of what is open, by their first burst.
    groups: Vec<Visit>,
    /// Bursts per group and bank of what is open.
    counts: Vec<u32>,
}

// By hand: `clone_from` into a snapshot reuses its buffers, once per block and channel.
impl Clone for Stream {
    fn clone(&self) -> Self {
        let mut copy = Self::default();
        copy.clone_from(self);
        copy
    }

    fn clone_from(&mut self, source: &Self) {
        self.closed = source.closed;
        self.carried = source.carried;
        self.last = source.last;
        self.pending = source.pending;
        self.open_commands = source.open_commands;
        self.open_misses = source.open_misses;
        self.groups.clone_from(&source.groups);
        self.counts.clone_from(&source.counts);
    }
}

impl Stream {
    fn clear(&mut self) {
        self.pending = 0;
        self.open_commands = 0;
        self.open_misses = 0;
        self.groups.clear();
        self.counts.clear();
    }

    /// Commands, hits and bursts so far; what is open counts as it stands.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let commands = u64::from(self.open_commands);
        Tally {
            commands: self.closed.commands + commands,
            hits: self.closed.hits + commands - u64::from(self.open_misses),
            bursts: self.closed.bursts + u64::from(self.pending),
            ..Tally::default()
        }
    }

    /// Appends a burst to `row` of `bank` of a channel with `banks` banks. If that completes a window
    /// (or an in-order command), `leave` gets its visits in the order of [`Self::open_visits`].
    #[inline]
    pub fn push(
        &mut self,
        coalesce: Coalesce,
        banks: u32,
        bank: u32,
        row: u32,
        leave: impl FnOnce(&mut dyn Iterator<Item = Visit>),
    ) {
        match coalesce {
            Coalesce::Window(size) => {
                self.add(banks, bank, row);
                self.last = Some(row);
                if self.pending == size {
                    leave(&mut self.open_visits());
                    self.close();
                }
            }
            Coalesce::InOrder => {
                // A full command needs no rule of its own: any burst after it repeats a bank.
                let joins = self.last == Some(row) && self.counts.get(bank as usize) == Some(&0);
                if !joins && self.pending > 0 {
                    leave(&mut self.open_visits());
                    self.close();
                }
                self.add(banks, bank, row);
                self.last = Some(row);
            }
        }
    }

    /// Visits of what is open as it stands: the row carried in first if present, then rows by their
    /// first burst.
    pub fn open_visits(&self) -> impl Iterator<Item = Visit> {
        let carried = self.groups.iter().filter(|g| Some(g.row) == self.carried);
        carried.chain(self.groups.iter().filter(|g| Some(g.row) != self.carried)).copied()
    }

    fn add(&mut self, banks: u32, bank: u32, row: u32) {
        // The latest row first: most bursts follow one of the same row.
        let group = if let Some(group) = self.groups.iter().rposition(|g| g.row == row) {
            group
        } else {
            self.groups.push(Visit { row, commands: 0 });
            self.counts.resize(self.groups.len() * banks as usize, 0);
            self.open_misses += u32::from(self.carried != Some(row));
            self.groups.len() - 1
        };
        let count = &mut self.counts[group * banks as usize + bank as usize];
        *count += 1;
        if *count > self.groups[group].commands {
            self.groups[group].commands = *count;
            self.open_commands += 1;
        }
        self.pending += 1;
    }

    fn close(&mut self) {
        self.closed = self.tally();
        self.carried = self.last;
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(coalesce: Coalesce, banks: u32, bursts: &[(u32, u32)]) -> (u64, u64) {
        let mut stream = Stream::default();
        for &(bank, row) in bursts {
            stream.push(coalesce, banks, bank, row, |_| ());
        }
        let Tally { commands, hits, .. } = stream.tally();
        (commands, hits)
    }

    #[test]
    fn a_window_merges_rows_and_carries_the_last_bursts_row() {
        // Window of 4: rows 0, 1, 0, 1 on banks 0, 0, 1, 1: one command per row, both miss.
        let first = [(0, 0), (0, 1), (1, 0), (1, 1)];
        assert_eq!(tally(Coalesce::Window(4), 2, &first), (2, 0));
        // The last burst's row, 1, is carried in: row 1 hits, row 0 misses.
        let both = [&first[..], &[(0, 0), (0, 1)]].concat();
        assert_eq!(tally(Coalesce::Window(4), 2, &both), (4, 1));
        // The fullest bank counts.
        assert_eq!(tally(Coalesce::Window(4), 2, &[(0, 7), (0, 7), (1, 7)]), (2, 1));
    }

    #[test]
    fn in_order_closes_on_row_bank_and_fullness() {
        assert_eq!(tally(Coalesce::InOrder, 2, &[(0, 0), (1, 0), (0, 0), (1, 0)]), (2, 1));
        assert_eq!(tally(Coalesce::InOrder, 2, &[(0, 0), (0, 0), (1, 0)]), (2, 1));
        assert_eq!(tally(Coalesce::InOrder, 2, &[(0, 0), (1, 1), (0, 0)]), (3, 0));
    }
}
