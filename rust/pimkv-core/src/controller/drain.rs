//! Incremental timing of one channel's stream without refresh, and the refresh charged on top of it.

use super::channel::{Channel, NEVER};
use super::queue::BARRIER;
use super::{Controller, Feed};
use crate::timing::{Command, Timing, TimingError};

/// The controller state after some commands of a stream, from closed banks, with refresh off.
///
/// It holds everything that the commands fed so far decide whatever follows: the queue is one short of
/// full, because the controller's next choice may depend on the next command. So a command costs one
/// queue turn when it is fed, and [`DrainState::finish`] plays out the queue on a copy.
#[derive(Clone, Debug)]
pub struct DrainState {
    channel: Channel,
    now: u64,
}

/// What a stream took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// The clock of the last command; 0 for an empty stream.
    pub cycles: u64,
    /// Row visits: activations of a row in all banks.
    pub activations: u64,
}

impl Default for DrainState {
    fn default() -> Self {
        Self::new()
    }
}

impl DrainState {
    /// Closed banks, nothing fed.
    #[must_use]
    pub fn new() -> Self {
        Self { channel: Channel::new(None), now: 1 }
    }

    /// Appends `count` commands to `row` to the stream. `controller` must be the same on every call; its
    /// refresh and feed do not matter here: every command fed is one command of the queue.
    #[inline]
    pub fn feed(&mut self, controller: &Controller, row: u32, count: u32) {
        debug_assert_ne!(row, BARRIER, "a drain state knows no barriers");
        for _ in 0..count {
            self.channel.push(row);
            if self.channel.queue.slots() == controller.queue {
                while self.step(&controller.timing) != Command::Mac {}
            }
        }
    }

    /// What the stream fed so far takes if nothing follows. Feeding may go on afterwards.
    #[must_use]
    pub fn finish(&self, controller: &Controller) -> Drained {
        let mut end = self.clone();
        while !end.channel.queue.is_empty() {
            end.step_run(&controller.timing);
        }
        Drained { cycles: end.now - 1, activations: end.channel.activations }
    }

    fn step(&mut self, timing: &Timing) -> Command {
        let (clk, command) = self.channel.next(self.now);
        self.channel.issue(timing, command, clk);
        self.now = clk + 1;
        command
    }

    /// As `step`, but issues a whole run of MACs at once: nothing is pushed between them.
    fn step_run(&mut self, timing: &Timing) {
        let (clk, command) = self.channel.next(self.now);
        debug_assert_ne!(clk, NEVER, "a queued command always issues");
        self.now = 1 + if command == Command::Mac && self.channel.runs_unbroken(timing) {
            self.channel.issue_run(timing, clk)
        } else {
            self.channel.issue(timing, command, clk);
            clk
        };
    }
}

/// Charges refresh to streams that were timed without it: one clock runs on over all of them, and every
/// interval of it adds one refresh.
#[derive(Clone, Debug)]
pub struct RefreshClock {
    interval: u64,
    charge: u64,
    work: u64,
    charged: u64,
}

impl RefreshClock {
    /// A clock at zero; refuses a timing without refresh figures.
    pub fn new(timing: &Timing) -> Result<Self, TimingError> {
        let interval = timing.refresh_interval().ok_or(TimingError::NoRefreshFigures)?;
        Ok(Self { interval, charge: Self::charge(timing), work: 0, charged: 0 })
    }

    /// Cycles one refresh adds: nRFC and its own command, less the nRP it hides, for the precharge it
    /// forces was due anyway.
    #[must_use]
    pub fn charge(timing: &Timing) -> u64 {
        let precharge = timing.gap(Command::Pre, Command::Act);
        (timing.gap(Command::Ref, Command::Act) + 1).max(precharge) - precharge
    }

    /// Runs the clock over `cycles` of work and returns the refresh cycles to add to them. The clock runs
    /// during refreshes too, so that a share of charge / interval of all time goes to them.
    pub fn advance(&mut self, cycles: u64) -> u64 {
        self.work += cycles;
        // The k-th refresh falls due when work + (k - 1) charge reaches k intervals.
        let refreshes = if self.work < self.interval {
            0
        } else {
            (self.work - self.charge) / (self.interval - self.charge)
        };
        let total = refreshes * self.charge;
        let added = total - self.charged;
        self.charged = total;
        added
    }

    /// Refresh cycles charged so far.
    #[must_use]
    pub fn charged(&self) -> u64 {
        self.charged
    }
}

impl Feed {
    /// Queue commands per trace command: `AttAcc` acts on both pseudo-channels of a channel at once, and a
    /// harness that issues a command for each of them issues two.
    #[must_use]
    pub fn commands(self) -> u32 {
        match self {
            Self::Paired => 1,
            Self::PerPch => 2,
        }
    }
}
