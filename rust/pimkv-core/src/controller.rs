//! From all-bank commands to cycles: `AttAcc`'s PIM controller, cycle-exact, in event form.
//!
//! Each channel has one queue and serves it first-ready, first-come: it drains every queued command of
//! the open row, then opens the oldest one's row. One in-order front end feeds all queues, and the first
//! full queue stalls it. A refresh of two `REFab` falls due at every multiple of nREFI and goes first, but
//! legal MACs of the open row go ahead of the precharge that a refresh needs.
//!
//! The loop skips from command to command; `pimkv.reference.controller` looks at every clock and is its
//! twin. Deliberate differences from `AttAcc`: a barrier is dropped at the moment it reaches the head of its
//! queue, and a queue is at most [`MAX_QUEUE`] deep.

mod channel;
mod drain;
mod queue;

pub use drain::{DrainState, Drained, RefreshClock};
pub use queue::{BARRIER, MAX_QUEUE};

use crate::timing::{Command, Timing, TimingError};
use channel::{Channel, NEVER};

/// The most channels of one run.
pub const MAX_CHANNELS: usize = 256;

/// What one trace command stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feed {
    /// One command covers both pseudo-channels of a channel, as in hardware.
    Paired,
    /// One command for pseudo-channel 0 and then one for 1, both into the channel's queue.
    PerPch,
}

/// A controller: a timing and how it is run.
#[derive(Clone, Debug)]
pub struct Controller {
    timing: Timing,
    refresh: bool,
    queue: usize,
    feed: Feed,
}

/// Commands in trace order: one row each, or [`BARRIER`].
#[derive(Clone, Copy, Debug)]
pub struct Trace<'a> {
    rows: &'a [u32],
    /// The channel of each row; all go to channel 0 without.
    of_row: Option<&'a [u16]>,
    channels: usize,
}

/// What a run took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The clock of the last command over all channels; the first clock is 1, an empty trace takes 0.
    pub cycles: u64,
    /// ACTAB issued, over all channels.
    pub activations: u64,
    /// PREA issued.
    pub precharges: u64,
    /// `REFab` issued, two per refresh.
    pub refreshes: u64,
    /// Commands issued of every kind.
    pub commands: u64,
    /// The most refreshes of a channel that were owed when one more had fallen due.
    pub postponed_max: u64,
}

/// One line of a command log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// When.
    pub clk: u64,
    /// Where.
    pub channel: u16,
    /// What.
    pub command: Command,
    /// The row opened, read or wanted next; -1 for a refresh and the precharge it forces.
    pub row: i64,
}

/// Where the commands of a run go.
pub trait Sink {
    /// Takes one command; clocks never fall, and commands of one clock come by channel.
    fn record(&mut self, entry: LogEntry);
}

/// Keeps nothing.
impl Sink for () {
    #[inline]
    fn record(&mut self, _: LogEntry) {}
}

impl Sink for Vec<LogEntry> {
    #[inline]
    fn record(&mut self, entry: LogEntry) {
        self.push(entry);
    }
}

impl<'a> Trace<'a> {
    /// A trace of one channel.
    #[must_use]
    pub fn single(rows: &'a [u32]) -> Self {
        Self { rows, of_row: None, channels: 1 }
    }

    /// A trace of several channels, `of_row[i]` that of `rows[i]`. Channels without a row still refresh.
    pub fn new(rows: &'a [u32], of_row: &'a [u16], channels: usize) -> Result<Self, TimingError> {
        if rows.len() != of_row.len() {
            return Err(TimingError::Unpaired { rows: rows.len(), channels: of_row.len() });
        }
        if !(1..=MAX_CHANNELS).contains(&channels) {
            return Err(TimingError::Channels { value: channels, max: MAX_CHANNELS });
        }
        if let Some(entry) = of_row.iter().position(|&c| usize::from(c) >= channels) {
            return Err(TimingError::Channel { channel: of_row[entry], entry, channels });
        }
        Ok(Self { rows, of_row: Some(of_row), channels })
    }
}

impl Controller {
    /// A controller with `queue` slots per channel. Refuses refresh where the timing has no figures for it.
    pub fn new(timing: Timing, refresh: bool, queue: i64, feed: Feed) -> Result<Self, TimingError> {
        if refresh && timing.refresh_interval().is_none() {
            return Err(TimingError::NoRefreshFigures);
        }
        match usize::try_from(queue) {
            Ok(queue @ 1..=MAX_QUEUE) => Ok(Self { timing, refresh, queue, feed }),
            _ => Err(TimingError::Queue { value: queue, max: MAX_QUEUE }),
        }
    }

    /// What one trace command stands for.
    #[must_use]
    pub fn feed(&self) -> Feed {
        self.feed
    }

    /// Whether it refreshes.
    #[must_use]
    pub fn refreshes(&self) -> bool {
        self.refresh
    }

    /// The timing it obeys.
    #[must_use]
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Runs `trace` from closed banks until every queue is empty and no refresh is owed; each command also
    /// goes to `sink`.
    pub fn run<S: Sink>(&self, trace: Trace, sink: &mut S) -> Outcome {
        let interval = if self.refresh { self.timing.refresh_interval() } else { None };
        let mut front = FrontEnd::new(trace, self.queue, self.feed);
        if trace.channels == 1 {
            let mut channel = Channel::new(interval);
            let cycles = self.run_one(&mut front, &mut channel, sink);
            return outcome(cycles, front.macs, std::slice::from_ref(&channel));
        }
        let mut channels = vec![Channel::new(interval); trace.channels];
        let cycles = self.run_many(&mut front, &mut channels, sink);
        outcome(cycles, front.macs, &channels)
    }

    /// The loop for one channel: no choice of whose turn it is.
    fn run_one<S: Sink>(&self, front: &mut FrontEnd, channel: &mut Channel, sink: &mut S) -> u64 {
        let mut clk = 0;
        loop {
            front.push_one(channel);
            // The front end has pushed what it can: an empty queue means an empty trace.
            if channel.queue.is_empty() && channel.refresh_at > clk {
                return clk;
            }
            let (at, command) = channel.next(clk + 1);
            let row = channel.issue(&self.timing, command, at);
            sink.record(LogEntry { clk: at, channel: 0, command, row });
            clk = at;
        }
    }

    fn run_many<S: Sink>(&self, front: &mut FrontEnd, channels: &mut [Channel], sink: &mut S) -> u64 {
        // What each channel does next, kept until it does it or its queue grows.
        let mut next = vec![(NEVER, Command::Ref); channels.len()];
        let mut stale = vec![true; channels.len()];
        let mut clk = 0;
        loop {
            front.push_all(channels, &mut stale);
            if front.is_done() && channels.iter().all(|ch| ch.queue.is_empty() && ch.refresh_at > clk) {
                return clk;
            }
            let mut soonest = NEVER;
            for ((channel, next), stale) in channels.iter().zip(&mut next).zip(&mut stale) {
                if *stale {
                    *next = channel.next(clk + 1);
                    *stale = false;
                }
                soonest = soonest.min(next.0);
            }
            clk = soonest;
            for (index, channel) in channels.iter_mut().enumerate() {
                let (at, command) = next[index];
                if at == clk {
                    let row = channel.issue(&self.timing, command, at);
                    sink.record(LogEntry { clk, channel: index as u16, command, row });
                    stale[index] = true;
                }
            }
        }
    }
}

fn outcome(cycles: u64, macs: u64, channels: &[Channel]) -> Outcome {
    let mut out = Outcome { cycles, ..Outcome::default() };
    for channel in channels {
        out.activations += channel.activations;
        out.precharges += channel.precharges;
        out.refreshes += channel.refreshes;
        out.postponed_max = out.postponed_max.max(channel.postponed_max);
    }
    out.commands = macs + out.activations + out.precharges + out.refreshes;
    out
}

/// Pushes the trace into the queues in order; stops at the first full one.
struct FrontEnd<'a> {
    trace: Trace<'a>,
    capacity: usize,
    copies: u32,
    /// The entry to push next, and how often it is still to be pushed.
    at: usize,
    left: u32,
    /// Commands pushed; each becomes one MAC.
    macs: u64,
}

impl<'a> FrontEnd<'a> {
    fn new(trace: Trace<'a>, capacity: usize, feed: Feed) -> Self {
        Self { trace, capacity, copies: feed.commands(), at: 0, left: feed.commands(), macs: 0 }
    }

    fn is_done(&self) -> bool {
        self.at == self.trace.rows.len()
    }

    #[inline]
    fn push_one(&mut self, channel: &mut Channel) {
        while channel.queue.slots() < self.capacity {
            let Some(&row) = self.trace.rows.get(self.at) else {
                return;
            };
            channel.push(row);
            self.pushed(row);
        }
    }

    fn push_all(&mut self, channels: &mut [Channel], stale: &mut [bool]) {
        while let Some(&row) = self.trace.rows.get(self.at) {
            let index = self.trace.of_row.map_or(0, |of_row| usize::from(of_row[self.at]));
            let channel = &mut channels[index];
            if channel.queue.slots() >= self.capacity {
                return;
            }
            channel.push(row);
            stale[index] = true;
            self.pushed(row);
        }
    }

    #[inline]
    fn pushed(&mut self, row: u32) {
        self.macs += u64::from(row != BARRIER);
        self.left -= 1;
        if self.left == 0 || row == BARRIER {
            self.at += 1;
            self.left = self.copies;
        }
    }
}
