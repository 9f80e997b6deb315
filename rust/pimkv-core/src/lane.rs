//! The queue that the all-bank commands of one channel, or of a pair of pseudo-channels, enter.
//!
//! A command of some devices acts on both pseudo-channels of a channel at once. Their k-th windows then
//! become one: fed as pairs, a row needs as many commands as the larger of its two counts; fed per
//! pseudo-channel, every command of both enters the queue.
//!
//! Under a stride a row visit, which is a maximal run of commands of the queue to one row, is cut into chunks
//! before its commands are repeated. Each chunk stands for a row of its own, so the controller merges it with
//! nothing. How a visit is cut depends on how long it gets: it enters the queue when it has ended.

use std::collections::VecDeque;

use crate::controller::{Controller, DrainState, Drained, Feed, MAX_QUEUE};
use crate::error::{Error, Result};
use crate::grouper::{Stream, Visit, chunk};

/// Chunks are numbered round: further apart than a queue is deep, two of one number never meet.
const CHUNK_ROWS: u32 = 2 * MAX_QUEUE as u32;

/// How visits become queue commands.
#[derive(Clone, Debug)]
pub struct Timed {
    /// The controller, whose feed says how pairs merge.
    pub controller: Controller,
    /// Pseudo-channels that one command acts on, 1 or 2.
    pub per_command: u32,
    /// Times each command is issued, once per group of queries that it serves.
    pub repeat: u32,
}

impl Timed {
    /// Refuses numbers that no device has.
    pub(crate) fn validate(&self) -> Result<()> {
        if !matches!(self.per_command, 1 | 2) {
            return Err(Error::invalid("per_command", self.per_command, "1 or 2 pseudo-channels"));
        }
        if !(1..=1 << 16).contains(&self.repeat) {
            return Err(Error::invalid("repeat", self.repeat, "allowed 1 to 65536"));
        }
        Ok(())
    }
}

/// How visits become queue commands, and how many of its commands an activation serves.
#[derive(Clone, Debug)]
pub(crate) struct Feeding {
    pub(crate) timed: Timed,
    pub(crate) stride: u32,
}

/// A controller's state, and the visit that has not ended; with stride 1 none is held back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    state: DrainState,
    row: u32,
    commands: u64,
    /// The number of the next chunk.
    next: u32,
}

impl Queue {
    /// Appends commands to `row`, not yet repeated.
    pub(crate) fn feed(&mut self, feeding: &Feeding, row: u32, commands: u32) {
        let Timed { controller, repeat, .. } = &feeding.timed;
        if feeding.stride == 1 {
            self.state.feed(controller, row, commands * repeat);
            return;
        }
        if self.row != row {
            self.end_visit(feeding);
            self.row = row;
        }
        self.commands += u64::from(commands);
    }

    fn end_visit(&mut self, feeding: &Feeding) {
        let size = chunk(self.commands, feeding.stride);
        while self.commands > 0 {
            for _ in 0..size.min(self.commands) {
                self.state.feed(&feeding.timed.controller, self.next, feeding.timed.repeat);
            }
            self.commands = self.commands.saturating_sub(size);
            self.next = (self.next + 1) % CHUNK_ROWS;
        }
    }

    /// What the stream takes if it ends here.
    pub(crate) fn finish(mut self, feeding: &Feeding) -> Drained {
        self.end_visit(feeding);
        self.state.finish(&feeding.timed.controller)
    }
}

/// A queue with the state of its controller.
#[derive(Debug, Default)]
pub(crate) enum Lane {
    /// Nothing is timed.
    #[default]
    Empty,
    /// One channel, or a pair whose two streams are alike: the state after all complete windows.
    Alone(Box<Queue>),
    /// Two channels with streams of their own.
    Pair(Box<Pair>),
}

// By hand: `clone_from` into a snapshot reuses the box, once per block.
impl Clone for Lane {
    fn clone(&self) -> Self {
        match self {
            Self::Empty => Self::Empty,
            Self::Alone(state) => Self::Alone(state.clone()),
            Self::Pair(pair) => Self::Pair(pair.clone()),
        }
    }

    fn clone_from(&mut self, source: &Self) {
        match (self, source) {
            (Self::Alone(state), Self::Alone(source)) => state.clone_from(source),
            (this, source) => *this = source.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Pair {
    /// After the windows that both channels have completed.
    both: Queue,
    /// Complete windows of a channel whose partner has not come as far; one of the two is empty.
    backlog: [VecDeque<Vec<Visit>>; 2],
    /// After the backlog, if the partner stays silent from here on.
    ahead: Queue,
}

impl Lane {
    pub(crate) fn alone() -> Self {
        Self::Alone(Box::default())
    }

    pub(crate) fn pair() -> Self {
        let new = Queue::default;
        Self::Pair(Box::new(Pair { both: new(), backlog: Default::default(), ahead: new() }))
    }

    /// Takes a complete window of channel `side` (0 or 1).
    pub(crate) fn window(&mut self, feeding: &Feeding, side: usize, visits: &mut dyn Iterator<Item = Visit>) {
        match self {
            Self::Empty => {}
            Self::Alone(state) => visits.for_each(|visit| feed_alike(feeding, state, visit)),
            Self::Pair(pair) => pair.window(feeding, side, visits.collect()),
        }
    }

    /// What the stream takes if it ends with what is open in the lane's one or two channels.
    pub(crate) fn finish(&self, feeding: &Feeding, channels: &[&Stream]) -> Drained {
        match self {
            Self::Empty => Drained::default(),
            Self::Alone(state) => {
                let mut state = state.as_ref().clone();
                for visit in channels.iter().flat_map(|stream| stream.open_visits()) {
                    feed_alike(feeding, &mut state, visit);
                }
                state.finish(feeding)
            }
            Self::Pair(pair) => {
                let open =
                    |side: usize| channels.get(side).map(|s| s.open_visits().collect()).unwrap_or_default();
                pair.finish(feeding, &[open(0), open(1)])
            }
        }
    }
}

impl Pair {
    fn window(&mut self, feeding: &Feeding, side: usize, visits: Vec<Visit>) {
        let other = 1 - side;
        if let Some(partner) = self.backlog[other].pop_front() {
            let windows = if side == 0 { [&visits, &partner] } else { [&partner, &visits] };
            feed_pair(feeding, &mut self.both, windows.map(Vec::as_slice));
            self.ahead = self.both.clone();
            let rest = std::mem::take(&mut self.backlog[other]);
            for window in &rest {
                feed_one(feeding, &mut self.ahead, other, window);
            }
            self.backlog[other] = rest;
        } else {
            feed_one(feeding, &mut self.ahead, side, &visits);
            self.backlog[side].push_back(visits);
        }
    }

    fn finish(&self, feeding: &Feeding, open: &[Vec<Visit>; 2]) -> Drained {
        let side = usize::from(self.backlog[0].is_empty());
        let silent = open[1 - side].is_empty();
        let backlog = Some(&self.backlog[side]).filter(|_| !silent);
        let mut state = if silent { self.ahead.clone() } else { self.both.clone() };
        let mut partner: &[Visit] = &open[1 - side];
        for window in backlog.into_iter().flatten() {
            let windows = if side == 0 { [window.as_slice(), partner] } else { [partner, window.as_slice()] };
            feed_pair(feeding, &mut state, windows);
            partner = &[];
        }
        let windows = if side == 0 { [open[0].as_slice(), partner] } else { [partner, open[1].as_slice()] };
        feed_pair(feeding, &mut state, windows);
        state.finish(feeding)
    }
}

/// Feeds a window of one side whose partner has none.
fn feed_one(feeding: &Feeding, state: &mut Queue, side: usize, window: &[Visit]) {
    feed_pair(feeding, state, if side == 0 { [window, &[]] } else { [&[], window] });
}

/// Feeds a visit that both channels of a pair have alike (or the only channel has).
fn feed_alike(feeding: &Feeding, state: &mut Queue, visit: Visit) {
    state.feed(feeding, visit.row, visit.commands * feeding.timed.controller.feed().commands());
}

fn feed_pair(feeding: &Feeding, state: &mut Queue, [first, second]: [&[Visit]; 2]) {
    let mut feed = |row, commands| state.feed(feeding, row, commands);
    let per_pch = feeding.timed.controller.feed() == Feed::PerPch;
    if per_pch && feeding.stride == 1 {
        let commands = |visits: &'_ [Visit]| -> Vec<u32> {
            visits.iter().flat_map(|v| std::iter::repeat_n(v.row, v.commands as usize)).collect()
        };
        let (first, second) = (commands(first), commands(second));
        for i in 0..first.len().max(second.len()) {
            for row in [first.get(i), second.get(i)].into_iter().flatten() {
                feed(*row, 1);
            }
        }
        return;
    }
    // Cut visits do not alternate: the commands of both sides to a row are one visit.
    let count = |visits: &[Visit], row| visits.iter().find(|v| v.row == row).map_or(0, |v| v.commands);
    let merge = |one: u32, other: u32| if per_pch { one + other } else { one.max(other) };
    for visit in first {
        feed(visit.row, merge(visit.commands, count(second, visit.row)));
    }
    for visit in second.iter().filter(|v| count(first, v.row) == 0) {
        feed(visit.row, visit.commands);
    }
}
