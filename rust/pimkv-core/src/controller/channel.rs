//! One channel of the controller: its queue, its open row, and which command it issues next and when.

use super::queue::{BARRIER, Queue};
use crate::timing::{Command, Ready, Timing};

/// A clock that never comes.
pub(super) const NEVER: u64 = u64::MAX;

/// The open row of a closed channel: no command is to it, since a barrier is never searched for.
const CLOSED: u32 = BARRIER;

/// State of one channel. The timing it obeys is passed to every call, so that states stay small.
#[derive(Clone, Debug)]
pub(super) struct Channel {
    pub(super) queue: Queue,
    open: u32,
    /// The run of the oldest command of the open row that no barrier hides.
    hit: Option<usize>,
    ready: Ready,
    /// From this clock on a refresh is owed; `NEVER` with refresh off.
    pub(super) refresh_at: u64,
    pub(super) activations: u64,
    pub(super) precharges: u64,
    pub(super) refreshes: u64,
    pub(super) postponed_max: u64,
}

impl Channel {
    /// A channel with all banks closed and nothing queued; `refresh_interval` with refresh on.
    pub(super) fn new(refresh_interval: Option<u64>) -> Self {
        Self {
            queue: Queue::new(),
            open: CLOSED,
            hit: None,
            ready: Ready::default(),
            refresh_at: refresh_interval.unwrap_or(NEVER),
            activations: 0,
            precharges: 0,
            refreshes: 0,
            postponed_max: 0,
        }
    }

    /// Adds a command or barrier behind all others.
    #[inline]
    pub(super) fn push(&mut self, row: u32) {
        let run = self.queue.push(row);
        if self.hit.is_none() && row == self.open && row != CLOSED && !self.queue.has_barrier() {
            self.hit = Some(run);
        }
    }

    /// The next command and its clock, not before `now`, if nothing is pushed until then; the clock is
    /// `NEVER` where nothing will come.
    ///
    /// What a channel wants changes only when a refresh falls due, so the event is the earlier of what it
    /// wants without one, if that comes before, and what it wants from then on.
    #[inline]
    pub(super) fn next(&self, now: u64) -> (u64, Command) {
        let mac_at = match self.hit {
            Some(_) => self.ready.earliest(Command::Mac),
            None => NEVER,
        };
        if now < self.refresh_at {
            let wanted = if self.open == CLOSED {
                let act_at = if self.queue.is_empty() { NEVER } else { self.ready.earliest(Command::Act) };
                (now.max(act_at), Command::Act)
            } else if self.hit == Some(0) || self.queue.is_empty() {
                (now.max(mac_at), Command::Mac)
            } else {
                self.close_or_mac(now, mac_at)
            };
            if wanted.0 < self.refresh_at {
                return wanted;
            }
        }
        let now = now.max(self.refresh_at);
        if self.open == CLOSED { (now, Command::Ref) } else { self.close_or_mac(now, mac_at) }
    }

    /// The open row is to be closed, but a MAC goes ahead where it is legal first.
    #[inline]
    fn close_or_mac(&self, now: u64, mac_at: u64) -> (u64, Command) {
        let mac_at = now.max(mac_at);
        let pre_at = now.max(self.ready.earliest(Command::Pre));
        if pre_at <= mac_at { (pre_at, Command::Pre) } else { (mac_at, Command::Mac) }
    }

    /// Issues `command` at `clk`, both as [`Self::next`] gave them. Returns the row it is for: -1 for a
    /// refresh and the precharge it forces.
    #[inline]
    pub(super) fn issue(&mut self, timing: &Timing, command: Command, clk: u64) -> i64 {
        match command {
            Command::Mac => {
                let row = self.open;
                self.ready.issue(timing, command, clk);
                self.take(1);
                i64::from(row)
            }
            Command::Act => {
                self.ready.issue(timing, command, clk);
                self.open = self.queue.oldest();
                self.hit = Some(0);
                self.activations += 1;
                i64::from(self.open)
            }
            Command::Pre => {
                self.ready.issue(timing, command, clk);
                self.open = CLOSED;
                self.hit = None;
                self.precharges += 1;
                if clk < self.refresh_at { i64::from(self.queue.oldest()) } else { -1 }
            }
            Command::Ref => {
                self.refresh(timing, clk);
                -1
            }
        }
    }

    /// Issues the `count` commands of the hit's run one nCCDAB apart, the first at `clk`; returns the clock
    /// of the last. Right only where nothing could come between them.
    #[inline]
    pub(super) fn issue_run(&mut self, timing: &Timing, clk: u64) -> u64 {
        let count = self.hit.map_or(1, |run| self.queue.count(run));
        let last = clk + (count - 1) * timing.gap(Command::Mac, Command::Mac);
        self.ready.issue(timing, Command::Mac, last);
        self.take(count as u8);
        last
    }

    /// Whether the MACs of a run follow each other unless a refresh falls due or commands of other
    /// channels interfere: no precharge can come between them.
    #[inline]
    pub(super) fn runs_unbroken(&self, timing: &Timing) -> bool {
        self.hit == Some(0) || timing.gap(Command::Mac, Command::Pre) > timing.gap(Command::Mac, Command::Mac)
    }

    #[inline]
    fn take(&mut self, count: u8) {
        if let Some(run) = self.hit
            && self.queue.take(run, count)
        {
            self.hit = self.queue.find(self.open, run);
        }
    }

    fn refresh(&mut self, timing: &Timing, clk: u64) {
        let interval = timing.refresh_interval().unwrap_or(NEVER);
        if self.refreshes.is_multiple_of(2) {
            self.ready.issue(timing, Command::Ref, clk);
            // Of the pairs owed by now, all but the latest were overtaken by one that fell due after them.
            let owed = clk / interval - self.refreshes / 2;
            self.postponed_max = self.postponed_max.max(owed - 1);
        } else {
            self.refresh_at += interval;
        }
        self.refreshes += 1;
    }
}
