//! DRAM timing of all-bank PIM commands: the constraint table, the intervals of a device, and what
//! the table says about the next legal clock.
//!
//! The table is data: [`CONSTRAINTS`] has one row per rule, [`Timing`] turns it and the intervals of a
//! device into a matrix of gaps, and [`Ready`] keeps the earliest legal clock of every command. The
//! controller holds no timing rule of its own.

/// What a channel's command bus carries; each acts on all banks of the channel at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// ACTAB: opens one row index in every bank.
    Act,
    /// PREA: closes the open row in every bank.
    Pre,
    /// MACAB: one burst of the open row in every bank.
    Mac,
    /// `REFab`: refreshes; two of them fall due together.
    Ref,
}

impl Command {
    /// The name the command has in a log.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Act => "ACTAB",
            Self::Pre => "PREA",
            Self::Mac => "MACAB",
            Self::Ref => "REFab",
        }
    }
}

/// An interval of the constraint table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interval {
    /// nRCD, row to column delay.
    Rcd,
    /// nRP, row precharge.
    Rp,
    /// nRAS, row active time.
    Ras,
    /// nRC, row cycle.
    Rc,
    /// nRTP, column read to precharge.
    Rtp,
    /// nCCDAB, column to column on all banks.
    CcdAb,
    /// nRFC, refresh cycle.
    Rfc,
}

/// One rule: `later` may not issue before `interval` cycles have passed since `earlier`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constraint {
    /// The command that starts the interval; of a pair of refreshes, the first.
    pub earlier: Command,
    /// The command that has to wait.
    pub later: Command,
    /// How long.
    pub interval: Interval,
}

const fn rule(earlier: Command, later: Command, interval: Interval) -> Constraint {
    Constraint { earlier, later, interval }
}

/// The timing rules of a channel. Commands not paired here do not constrain each other; beyond the
/// table, a channel issues one command per clock, and `REFab` waits only for the row to be closed.
pub const CONSTRAINTS: [Constraint; 7] = [
    // The sense amplifiers need nRCD to settle before a column can be read.
    rule(Command::Act, Command::Mac, Interval::Rcd),
    // The charge of a row is restored only after nRAS; closing it sooner loses data.
    rule(Command::Act, Command::Pre, Interval::Ras),
    // A bank takes nRC from one row to the next, however short the visit.
    rule(Command::Act, Command::Act, Interval::Rc),
    // The processing units (and, where it binds, the power supply) take a burst every nCCDAB.
    rule(Command::Mac, Command::Mac, Interval::CcdAb),
    // The last burst must have left the sense amplifiers before they are precharged.
    rule(Command::Mac, Command::Pre, Interval::Rtp),
    // The bit lines need nRP to equalise before another row may be opened.
    rule(Command::Pre, Command::Act, Interval::Rp),
    // A refresh occupies all banks for nRFC, counted from the first REFab of its pair.
    rule(Command::Ref, Command::Act, Interval::Rfc),
];

/// The longest interval accepted, in cycles: keeps every sum of a run far inside 64 bits.
pub const MAX_INTERVAL: i64 = 1 << 30;

/// Refresh figures of a device, in cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefreshParams {
    /// nREFI: two `REFab` fall due at every multiple of it.
    pub interval: i64,
    /// nRFC: from a refresh to the next activation.
    pub duration: i64,
    /// How many refreshes may be overtaken by the next one that falls due.
    pub max_postponed: i64,
}

/// The intervals of a device in cycles, not yet validated: plain numbers, as a user may give them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimingParams {
    /// nRCD.
    pub rcd: i64,
    /// nRP.
    pub rp: i64,
    /// nRAS; below nRCD on devices whose rows are restored before they can be read (`AiM`).
    pub ras: i64,
    /// nRC.
    pub rc: i64,
    /// nRTP.
    pub rtp: i64,
    /// nCCDAB.
    pub ccd_ab: i64,
    /// Refresh figures, where the device's are public.
    pub refresh: Option<RefreshParams>,
}

/// Why a timing or a controller cannot be run; names the field, its value and the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// An interval outside its range.
    #[error("{field} = {value}: must be between 1 and {MAX_INTERVAL} cycles")]
    Interval {
        /// The field's name.
        field: &'static str,
        /// Its value.
        value: i64,
    },
    /// A postponement limit outside its range.
    #[error("max_postponed = {0}: must be between 0 and {MAX_INTERVAL} refreshes")]
    Postponed(i64),
    /// A refresh that takes as long as its interval.
    #[error("nRFC = {duration}: a refresh must be shorter than its interval, nREFI = {interval}")]
    RefreshTooLong {
        /// nRFC.
        duration: i64,
        /// nREFI.
        interval: i64,
    },
    /// An interval that its two `REFab` commands fill.
    #[error("nREFI = {0}: must exceed 2, the clocks that the two REFab of an interval take")]
    RefreshTooOften(i64),
    /// Refresh could close every row before its first MAC, for ever.
    #[error(
        "nREFI = {interval}: with nRAS <= nRCD must exceed 2 max(nRFC, nRP, nRC) + nRAS + nRCD + 3 \
         = {needed}, or refresh could close every row before it is read"
    )]
    RefreshStarvesReads {
        /// nREFI.
        interval: i64,
        /// What it must exceed.
        needed: i64,
    },
    /// Refresh asked of a timing without refresh figures.
    #[error("refresh = true: this timing has no nREFI and nRFC; run it with refresh = false")]
    NoRefreshFigures,
    /// A queue depth outside its range.
    #[error("queue = {value}: must be between 1 and {max} commands")]
    Queue {
        /// The depth asked for.
        value: i64,
        /// The deepest queue modelled.
        max: usize,
    },
    /// A channel count outside its range.
    #[error("channels = {value}: must be between 1 and {max}")]
    Channels {
        /// The count asked for.
        value: usize,
        /// The most channels modelled.
        max: usize,
    },
    /// A trace entry for a channel that does not exist.
    #[error("channel = {channel} (entry {entry}): must be below channels = {channels}")]
    Channel {
        /// The channel named.
        channel: u16,
        /// Its place in the trace.
        entry: usize,
        /// How many channels there are.
        channels: usize,
    },
    /// Rows and channels of a trace that do not pair up.
    #[error("rows and channels differ in length: {rows} and {channels}")]
    Unpaired {
        /// Number of rows.
        rows: usize,
        /// Number of channels.
        channels: usize,
    },
}

impl TimingParams {
    fn interval(&self, interval: Interval) -> Option<i64> {
        Some(match interval {
            Interval::Rcd => self.rcd,
            Interval::Rp => self.rp,
            Interval::Ras => self.ras,
            Interval::Rc => self.rc,
            Interval::Rtp => self.rtp,
            Interval::CcdAb => self.ccd_ab,
            Interval::Rfc => self.refresh?.duration,
        })
    }

    fn validate(&self) -> Result<(), TimingError> {
        let intervals = [
            ("nRCD", self.rcd),
            ("nRP", self.rp),
            ("nRAS", self.ras),
            ("nRC", self.rc),
            ("nRTP", self.rtp),
            ("nCCDAB", self.ccd_ab),
        ];
        let refresh = self.refresh.map(|r| [("nREFI", r.interval), ("nRFC", r.duration)]);
        for (field, value) in intervals.into_iter().chain(refresh.into_iter().flatten()) {
            if !(1..=MAX_INTERVAL).contains(&value) {
                return Err(TimingError::Interval { field, value });
            }
        }
        match self.refresh {
            Some(refresh) => self.validate_refresh(refresh),
            None => Ok(()),
        }
    }

    fn validate_refresh(&self, refresh: RefreshParams) -> Result<(), TimingError> {
        let RefreshParams { interval, duration, max_postponed } = refresh;
        if !(0..=MAX_INTERVAL).contains(&max_postponed) {
            return Err(TimingError::Postponed(max_postponed));
        }
        if duration >= interval {
            return Err(TimingError::RefreshTooLong { duration, interval });
        }
        if interval <= 2 {
            return Err(TimingError::RefreshTooOften(interval));
        }
        // Only where a row may close before its first MAC can a refresh, falling due in that gap, close
        // it unread: then the interval must hold a whole refresh and a row visit from any starting point.
        let needed = 2 * duration.max(self.rp).max(self.rc) + self.ras + self.rcd + 3;
        if self.ras <= self.rcd && interval <= needed {
            return Err(TimingError::RefreshStarvesReads { interval, needed });
        }
        Ok(())
    }
}

/// The commands that some rule makes wait: all but `REFab`.
const WAITING: usize = 3;

/// A valid timing: the constraint table filled with the intervals of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// `gaps[earlier][later]`; 0 where no rule applies, which a later clock satisfies by itself.
    gaps: [[u64; WAITING]; 4],
    /// nREFI, where the device has refresh figures.
    refresh_interval: Option<u64>,
    max_postponed: u64,
}

impl Timing {
    /// Validates `params` and fills the table with them.
    pub fn new(params: &TimingParams) -> Result<Self, TimingError> {
        params.validate()?;
        let mut gaps = [[0; WAITING]; 4];
        for rule in CONSTRAINTS {
            if let Some(cycles) = params.interval(rule.interval) {
                gaps[rule.earlier as usize][rule.later as usize] = cycles.unsigned_abs();
            }
        }
        Ok(Self {
            gaps,
            refresh_interval: params.refresh.map(|r| r.interval.unsigned_abs()),
            max_postponed: params.refresh.map_or(0, |r| r.max_postponed.unsigned_abs()),
        })
    }

    /// The cycles the table asks for between two commands; 0 where it has no rule for them.
    #[must_use]
    pub fn gap(&self, earlier: Command, later: Command) -> u64 {
        self.gaps[earlier as usize].get(later as usize).copied().unwrap_or(0)
    }

    /// nREFI, where the device has refresh figures.
    #[must_use]
    pub fn refresh_interval(&self) -> Option<u64> {
        self.refresh_interval
    }

    /// How many refreshes may be overtaken by the next one that falls due.
    #[must_use]
    pub fn max_postponed(&self) -> u64 {
        self.max_postponed
    }
}

/// The earliest clock at which each command is legal, given those issued so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    at: [u64; WAITING],
}

impl Ready {
    /// Notes that `command` issued at `clk`. Of a pair of `REFab` only the first may be noted.
    #[inline]
    pub fn issue(&mut self, timing: &Timing, command: Command, clk: u64) {
        let gaps = &timing.gaps[command as usize];
        for (ready, gap) in self.at.iter_mut().zip(gaps) {
            *ready = (*ready).max(clk + gap);
        }
    }

    /// The earliest clock at which `command` is legal; 0 for `REFab`, which waits for no interval.
    #[inline]
    #[must_use]
    pub fn earliest(&self, command: Command) -> u64 {
        match command {
            Command::Ref => 0,
            _ => self.at[command as usize],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 5.2 Gbps HBM3 of `AttAcc`.
    fn params() -> TimingParams {
        let refresh = RefreshParams { interval: 5070, duration: 456, max_postponed: 8 };
        TimingParams { rcd: 19, rp: 19, ras: 45, rc: 63, rtp: 8, ccd_ab: 6, refresh: Some(refresh) }
    }

    #[test]
    fn each_rule_is_illegal_one_cycle_early_and_legal_on_time() {
        let params = params();
        let timing = Timing::new(&params).expect("a valid timing");
        for rule in CONSTRAINTS {
            let cycles = params.interval(rule.interval).expect("refresh figures").unsigned_abs();
            let mut ready = Ready::default();
            ready.issue(&timing, rule.earlier, 1000);
            assert_eq!(ready.earliest(rule.later), 1000 + cycles, "{rule:?}");
            assert_eq!(timing.gap(rule.earlier, rule.later), cycles, "{rule:?}");
        }
    }

    #[test]
    fn a_pair_without_a_rule_does_not_wait() {
        let timing = Timing::new(&params()).expect("a valid timing");
        assert_eq!(timing.gap(Command::Mac, Command::Act), 0);
        assert_eq!(timing.gap(Command::Pre, Command::Ref), 0);
        let mut ready = Ready::default();
        ready.issue(&timing, Command::Pre, 7);
        assert_eq!(ready.earliest(Command::Ref), 0);
    }

    #[test]
    fn a_shorter_rule_never_shortens_a_longer_one() {
        let timing = Timing::new(&params()).expect("a valid timing");
        let mut ready = Ready::default();
        ready.issue(&timing, Command::Act, 1);
        ready.issue(&timing, Command::Mac, 20);
        assert_eq!(ready.earliest(Command::Pre), 46);
        ready.issue(&timing, Command::Mac, 44);
        assert_eq!(ready.earliest(Command::Pre), 52);
    }

    #[test]
    fn refusals_name_field_value_and_rule() {
        let refused = |change: fn(&mut TimingParams)| {
            let mut params = params();
            change(&mut params);
            Timing::new(&params).expect_err("must be refused").to_string()
        };
        let refresh = |p: &mut TimingParams, interval, duration| {
            p.refresh = Some(RefreshParams { interval, duration, max_postponed: 8 });
        };
        assert_eq!(refused(|p| p.rp = 0), "nRP = 0: must be between 1 and 1073741824 cycles");
        assert!(refused(|p| p.ccd_ab = -6).starts_with("nCCDAB = -6:"));
        assert!(refused(|p| p.rc = MAX_INTERVAL + 1).starts_with("nRC = 1073741825:"));
        for (interval, duration, text) in [
            (0, 1, "nREFI = 0:"),
            (5070, -1, "nRFC = -1:"),
            (456, 456, "nRFC = 456: a refresh must be shorter than its interval, nREFI = 456"),
            (2, 1, "nREFI = 2: must exceed 2"),
        ] {
            let mut params = params();
            refresh(&mut params, interval, duration);
            let message = Timing::new(&params).expect_err("must be refused").to_string();
            assert!(message.starts_with(text), "{message}");
        }
        assert!(
            refused(|p| {
                p.refresh = Some(RefreshParams { interval: 5070, duration: 456, max_postponed: -1 });
            })
            .starts_with("max_postponed = -1:")
        );
        assert!(
            refused(|p| {
                p.ras = 19;
                p.refresh = Some(RefreshParams { interval: 953, duration: 456, max_postponed: 8 });
            })
            .starts_with("nREFI = 953: with nRAS <= nRCD must exceed")
        );
    }

    #[test]
    fn a_row_restored_before_it_can_be_read_is_a_real_device() {
        let aim = TimingParams { rcd: 56, rp: 32, ras: 54, rc: 89, rtp: 12, ccd_ab: 2, refresh: None };
        let timing = Timing::new(&aim).expect("nRAS below nRCD is allowed");
        assert_eq!(timing.refresh_interval(), None);
        assert_eq!(timing.gap(Command::Ref, Command::Act), 0);
    }
}
