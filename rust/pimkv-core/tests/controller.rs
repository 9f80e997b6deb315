//! The event form against what can be said of it without running it: the closed form, each rule alone,
//! streams fed piece by piece, refresh charged by a continuous clock.

use pimkv_core::controller::{
    BARRIER, Controller, DrainState, Drained, Feed, LogEntry, MAX_QUEUE, Outcome, RefreshClock, Trace,
};
use pimkv_core::timing::{CONSTRAINTS, Command, Constraint, Interval, RefreshParams, Timing, TimingParams};
use proptest::prelude::*;

const HBM3: TimingParams = TimingParams {
    rcd: 19,
    rp: 19,
    ras: 45,
    rc: 63,
    rtp: 8,
    ccd_ab: 6,
    refresh: Some(RefreshParams { interval: 5070, duration: 456, max_postponed: 8 }),
};

fn controller(params: &TimingParams, refresh: bool, queue: usize, feed: Feed) -> Controller {
    let timing = Timing::new(params).expect("a valid timing");
    let queue = i64::try_from(queue).expect("a small queue");
    Controller::new(timing, refresh, queue, feed).expect("a valid controller")
}

fn plain(params: &TimingParams, queue: usize) -> Controller {
    controller(params, false, queue, Feed::Paired)
}

fn log_of(controller: &Controller, rows: &[u32]) -> Vec<LogEntry> {
    let mut log = Vec::new();
    controller.run(Trace::single(rows), &mut log);
    log
}

/// Sizes of the drain groups of a stream: the controller opens the oldest command's row and drains it
/// from the queue, which is refilled after each command.
fn drain_groups(rows: &[u32], queue: usize) -> Vec<i64> {
    let mut waiting = rows.iter().copied();
    let mut held: Vec<u32> = waiting.by_ref().take(queue).collect();
    let mut groups = Vec::new();
    while let Some(&row) = held.first() {
        let mut size = 0;
        while let Some(hit) = held.iter().position(|&other| other == row) {
            held.remove(hit);
            held.extend(waiting.next());
            size += 1;
        }
        groups.push(size);
    }
    groups
}

fn closed_form(groups: &[i64], p: &TimingParams) -> u64 {
    let Some((last, others)) = groups.split_last() else { return 0 };
    let turn = |n: &i64| p.rc.max(p.ras + p.rp).max(p.rcd + p.rtp + p.rp - p.ccd_ab + p.ccd_ab * n);
    let cycles = 1 + p.rcd + p.ccd_ab * (last - 1) + others.iter().map(turn).sum::<i64>();
    cycles.unsigned_abs()
}

fn any_timing() -> impl Strategy<Value = TimingParams> {
    prop::array::uniform6(1..60_i64).prop_map(|[rcd, rp, ras, rc, rtp, ccd_ab]| TimingParams {
        rcd,
        rp,
        ras,
        rc,
        rtp,
        ccd_ab,
        refresh: None,
    })
}

/// Rows out of a few, in short runs.
fn any_rows(runs: usize) -> impl Strategy<Value = Vec<u32>> {
    (1..12_u32, prop::collection::vec((any::<u32>(), 1..6_usize), 0..runs)).prop_map(|(rows, runs)| {
        runs.into_iter().flat_map(|(row, n)| std::iter::repeat_n(row % rows, n)).collect()
    })
}

proptest! {
    #[test]
    fn without_refresh_the_closed_form_holds(
        rows in any_rows(80), queue in 1..=MAX_QUEUE, rtp in 7..40_i64, ras in 20..80_i64,
    ) {
        // It assumes that no precharge fits between two MACs, and a row that outlives its first MAC.
        let params = TimingParams { rtp, ras, refresh: None, ..HBM3 };
        let groups = drain_groups(&rows, queue);
        let run = plain(&params, queue).run(Trace::single(&rows), &mut ());
        prop_assert_eq!(run.cycles, closed_form(&groups, &params));
        prop_assert_eq!(run.activations, groups.len() as u64);
    }

    #[test]
    fn a_stream_fed_piece_by_piece_is_the_whole_stream(
        params in any_timing(), rows in any_rows(40), queue in 1..=MAX_QUEUE,
    ) {
        let controller = plain(&params, queue);
        let mut state = DrainState::new();
        for (at, &row) in rows.iter().enumerate() {
            state.feed(&controller, row, 1);
            let whole = controller.run(Trace::single(&rows[..=at]), &mut ());
            let finish = state.finish(&controller);
            prop_assert_eq!((finish.cycles, finish.activations), (whole.cycles, whole.activations));
        }
    }

    #[test]
    fn feeding_many_at_once_is_feeding_one_by_one(
        params in any_timing(), visits in prop::collection::vec((0..8_u32, 0..90_u32), 0..20),
        queue in 1..=MAX_QUEUE,
    ) {
        let controller = plain(&params, queue);
        let mut state = DrainState::new();
        let mut rows = Vec::new();
        for (row, n) in visits {
            state.feed(&controller, row, n);
            rows.extend(std::iter::repeat_n(row, n as usize));
        }
        let whole = controller.run(Trace::single(&rows), &mut ());
        prop_assert_eq!(state.finish(&controller).cycles, whole.cycles);
    }

    #[test]
    fn channels_that_never_stall_each_other_run_as_if_alone(
        streams in prop::collection::vec(prop::collection::vec(0..4_u32, 0..33), 1..6),
    ) {
        // Streams no longer than the queue: the front end pushes everything before the first clock.
        let controller = plain(&HBM3, 33);
        let rows: Vec<u32> = streams.concat();
        let of_row: Vec<u16> =
            streams.iter().enumerate().flat_map(|(c, s)| std::iter::repeat_n(c as u16, s.len())).collect();
        let trace = Trace::new(&rows, &of_row, streams.len()).expect("a valid trace");
        let together = controller.run(trace, &mut ());
        let alone = streams.iter().map(|rows| controller.run(Trace::single(rows), &mut ()).cycles);
        prop_assert_eq!(together.cycles, alone.max().unwrap_or(0));
    }

    #[test]
    fn the_refresh_clock_is_one_clock_over_all_work(steps in prop::collection::vec(0..30_000_u64, 0..40)) {
        let timing = Timing::new(&HBM3).expect("a valid timing");
        let mut clock = RefreshClock::new(&timing).expect("refresh figures");
        let (mut now, mut due, mut charged) = (0, 5070, 0);
        for step in steps {
            now += step;
            let mut added = 0;
            while now >= due {
                now += 438;
                due += 5070;
                added += 438;
            }
            charged += added;
            prop_assert_eq!(clock.advance(step), added);
            prop_assert_eq!(clock.charged(), charged);
        }
    }
}

/// The closest that `rule`'s two commands come in a log; of a pair of refreshes the first counts.
fn closest(log: &[LogEntry], rule: Constraint) -> Option<u64> {
    let mut since = None;
    let mut closest = None;
    let mut refreshes = 0;
    for entry in log {
        if let Some(start) = since
            && entry.command == rule.later
        {
            let gap = entry.clk - start;
            closest = Some(closest.map_or(gap, |least: u64| least.min(gap)));
        }
        let is_refresh = entry.command == Command::Ref;
        refreshes += u32::from(is_refresh);
        if entry.command == rule.earlier && !(is_refresh && refreshes % 2 == 0) {
            since = Some(entry.clk);
        }
    }
    closest
}

#[test]
fn each_rule_alone_sets_the_pace() {
    // All intervals 1 but one: the closest that its two commands come is then exactly that.
    for rule in CONSTRAINTS {
        let mut params = TimingParams { rcd: 1, rp: 1, ras: 1, rc: 1, rtp: 1, ccd_ab: 1, refresh: None };
        match rule.interval {
            Interval::Rcd => params.rcd = 50,
            Interval::Rp => params.rp = 50,
            Interval::Ras => params.ras = 50,
            Interval::Rc => params.rc = 50,
            Interval::Rtp => params.rtp = 50,
            Interval::CcdAb => params.ccd_ab = 50,
            Interval::Rfc => {
                params.refresh = Some(RefreshParams { interval: 200, duration: 50, max_postponed: 8 });
            }
        }
        let controller = controller(&params, params.refresh.is_some(), 33, Feed::Paired);
        let rows: Vec<u32> = (0..400).map(|i| i / 2).collect();
        assert_eq!(closest(&log_of(&controller, &rows), rule), Some(50), "{rule:?}");
    }
}

#[test]
fn an_empty_trace_takes_nothing() {
    let controller = controller(&HBM3, true, 33, Feed::Paired);
    for rows in [&[][..], &[BARRIER, BARRIER]] {
        assert_eq!(controller.run(Trace::single(rows), &mut ()), Outcome::default());
    }
    assert_eq!(DrainState::new().finish(&controller), Drained::default());
}

#[test]
fn a_command_for_each_pseudo_channel_is_two_commands() {
    let rows = [3, 3, BARRIER, 5, 3];
    let twice = [3, 3, 3, 3, BARRIER, 5, 5, 3, 3];
    let per_pch = controller(&HBM3, true, 33, Feed::PerPch);
    let paired = controller(&HBM3, true, 33, Feed::Paired);
    assert_eq!(log_of(&per_pch, &rows), log_of(&paired, &twice));
}

#[test]
fn row_hits_postpone_refresh_until_they_end() {
    // 10 intervals of hits: at the precharge 10 refreshes are owed, 9 of them overtaken by the next.
    let controller = controller(&HBM3, true, 33, Feed::Paired);
    let run = controller.run(Trace::single(&vec![0; 8500]), &mut ());
    assert_eq!((run.refreshes, run.postponed_max), (20, 9));
    let on_time: Vec<u32> = (0..8500).map(|i| i / 32).collect();
    assert_eq!(controller.run(Trace::single(&on_time), &mut ()).postponed_max, 0);
}

#[test]
fn an_idle_channel_refreshes_on_time() {
    let controller = controller(&HBM3, true, 33, Feed::Paired);
    let rows: Vec<u32> = (0..100).collect();
    let trace = Trace::new(&rows, &[0; 100], 2).expect("a valid trace");
    let mut log = Vec::new();
    assert_eq!(controller.run(trace, &mut log).refreshes, 4);
    let idle: Vec<u64> = log.iter().filter(|e| e.channel == 1).map(|e| e.clk).collect();
    assert_eq!(idle, [5070, 5071]);
}

#[test]
fn what_cannot_be_run_is_refused() {
    let refused = |queue| {
        let timing = Timing::new(&HBM3).expect("a valid timing");
        Controller::new(timing, true, queue, Feed::Paired).expect_err("refused").to_string()
    };
    assert_eq!(refused(0), "queue = 0: must be between 1 and 64 commands");
    assert_eq!(refused(65), "queue = 65: must be between 1 and 64 commands");
    let bare = Timing::new(&TimingParams { refresh: None, ..HBM3 }).expect("a valid timing");
    assert!(RefreshClock::new(&bare).is_err());
    let error = Controller::new(bare, true, 33, Feed::Paired).expect_err("refused").to_string();
    assert!(error.starts_with("refresh = true:"), "{error}");
    assert!(Trace::new(&[1], &[], 1).is_err());
    assert!(Trace::new(&[], &[], 0).is_err());
    let error = Trace::new(&[1, 2], &[0, 2], 2).expect_err("refused").to_string();
    assert_eq!(error, "channel = 2 (entry 1): must be below channels = 2");
}
