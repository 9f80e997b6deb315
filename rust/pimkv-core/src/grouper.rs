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

/// The largest stride; rows of real devices have at most some hundred columns.
pub const MAX_STRIDE: u32 = 1 << 12;

/// How the bursts of a channel become all-bank commands, and how many of them an activation serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grouping {
    /// How bursts may be merged.
    pub coalesce: Coalesce,
    /// A row visit of c commands is cut into chunks of ceil(c / stride), an activation each; 1 cuts nothing.
    pub stride: u32,
}

impl From<Coalesce> for Grouping {
    fn from(coalesce: Coalesce) -> Self {
        Self { coalesce, stride: 1 }
    }
}

/// Activations of a visit of so many commands under a stride: its chunks.
#[must_use]
pub(crate) fn chunks(commands: u64, stride: u32) -> u64 {
    commands.div_ceil(chunk(commands, stride))
}

/// Commands of each chunk of a visit of so many, but of the last one, which may have fewer.
#[must_use]
pub(crate) fn chunk(commands: u64, stride: u32) -> u64 {
    commands.div_ceil(u64::from(stride)).max(1)
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
/// open window), reading the tally costs O(1), under a stride O(rows in the open window). The banks start
/// closed.
#[derive(Debug, Default)]
pub struct Stream {
    /// Of closed windows or commands; with a stride above 1 without the activations of the visit that is
    /// carried.
    closed: Tally,
    /// Row left open by what is closed.
    carried: Option<u32>,
    /// Commands so far of the visit that left it open.
    carried_commands: u64,
    /// Row of the latest burst.
    last: Option<u32>,
    /// Bursts in what is open.
    pending: u32,
    /// Commands the open window needs.
    open_commands: u32,
    /// Rows of what is open that were not carried in: its activations with stride 1.
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
        self.carried_commands = source.carried_commands;
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

    /// Commands, hits and bursts so far under a stride; what is open counts as it stands.
    #[must_use]
    pub fn tally(&self, stride: u32) -> Tally {
        if stride == 1 {
            // However long a visit gets, it has one activation.
            return self.tally_with(self.open_misses.into());
        }
        let (ended, last) = self.visits();
        self.tally_with(chunks(last, stride) + ended.map(|commands| chunks(commands, stride)).sum::<u64>())
    }

    fn tally_with(&self, misses: u64) -> Tally {
        let commands = u64::from(self.open_commands);
        Tally {
            commands: self.closed.commands + commands,
            hits: self.closed.hits + commands - misses,
            bursts: self.closed.bursts + u64::from(self.pending),
            ..Tally::default()
        }
    }

    /// Commands of the visits that what is open begins or goes on with, and of that to the row of the latest
    /// burst. The row carried in goes on with its visit if it comes again, else it has ended.
    fn visits(&self) -> (impl Iterator<Item = u64>, u64) {
        let before = |row| if self.carried == Some(row) { self.carried_commands } else { 0 };
        let commands = move |group: &Visit| u64::from(group.commands) + before(group.row);
        let gone = !self.groups.iter().any(|g| Some(g.row) == self.carried);
        let ended = self.groups.iter().filter(|g| Some(g.row) != self.last).map(commands);
        let last = self.groups.iter().find(|g| Some(g.row) == self.last).map_or(0, commands);
        (ended.chain(gone.then_some(self.carried_commands)), last)
    }

    /// Appends a burst to `row` of `bank` of a channel with `banks` banks; the grouping must be the same on
    /// every call. If that completes a window (or an in-order command), `leave` gets its visits in the order
    /// of [`Self::open_visits`].
    #[inline]
    pub fn push(
        &mut self,
        grouping: Grouping,
        banks: u32,
        bank: u32,
        row: u32,
        leave: impl FnOnce(&mut dyn Iterator<Item = Visit>),
    ) {
        match grouping.coalesce {
            Coalesce::Window(size) => {
                self.add(banks, bank, row);
                self.last = Some(row);
                if self.pending == size {
                    leave(&mut self.open_visits());
                    self.close(grouping.stride);
                }
            }
            Coalesce::InOrder => {
                // A full command needs no rule of its own: any burst after it repeats a bank.
                let joins = self.last == Some(row) && self.counts.get(bank as usize) == Some(&0);
                if !joins && self.pending > 0 {
                    leave(&mut self.open_visits());
                    self.close(grouping.stride);
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

    fn close(&mut self, stride: u32) {
        self.closed = if stride == 1 {
            self.tally(stride)
        } else {
            let (ended, last) = self.visits();
            let closed = self.tally_with(ended.map(|commands| chunks(commands, stride)).sum());
            self.carried_commands = last;
            closed
        };
        self.carried = self.last;
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strided(coalesce: Coalesce, stride: u32, banks: u32, bursts: &[(u32, u32)]) -> (u64, u64) {
        let mut stream = Stream::default();
        for &(bank, row) in bursts {
            stream.push(Grouping { coalesce, stride }, banks, bank, row, |_| ());
        }
        let Tally { commands, hits, .. } = stream.tally(stride);
        (commands, hits)
    }

    fn tally(coalesce: Coalesce, banks: u32, bursts: &[(u32, u32)]) -> (u64, u64) {
        strided(coalesce, 1, banks, bursts)
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

    #[test]
    fn a_stride_cuts_a_visit_wherever_its_windows_end() {
        // One bank, so a burst is a command: a visit of 5, whose windows are 2, 2 and 1, and one of 1.
        let bursts = [(0, 7), (0, 7), (0, 7), (0, 7), (0, 7), (0, 8)];
        for coalesce in [Coalesce::Window(2), Coalesce::Window(64), Coalesce::InOrder] {
            // Chunks of ceil(5 / s): 5, 3 + 2, 2 + 2 + 1, 2 + 2 + 1, single ones; and row 8.
            for (stride, misses) in [(1, 2), (2, 3), (3, 4), (4, 4), (5, 6), (64, 6)] {
                assert_eq!(strided(coalesce, stride, 1, &bursts), (6, 6 - misses), "{coalesce:?} {stride}");
            }
        }
    }

    #[test]
    fn a_visit_goes_on_only_in_the_row_of_the_last_burst() {
        // Windows of 2: row 0 and row 1 (carried); row 0 again and row 1, which goes on; row 2.
        let bursts = [(0, 0), (0, 1), (0, 1), (0, 0), (0, 2), (0, 2)];
        // Visits: 0 (1), 1 (2), 0 (1), 2 (2).
        assert_eq!(strided(Coalesce::Window(2), 1, 1, &bursts), (6, 2));
        assert_eq!(strided(Coalesce::Window(2), 2, 1, &bursts), (6, 0));
    }
}
