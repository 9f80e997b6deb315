//! Speed of the controller's event form and of its incremental states, in commands of the trace per second.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pimkv_core::controller::{Controller, DrainState, Feed, Trace};
use pimkv_core::timing::{RefreshParams, Timing, TimingParams};

const COMMANDS: u32 = 1 << 18;

fn controller(refresh: bool) -> Controller {
    let figures = RefreshParams { interval: 5070, duration: 456, max_postponed: 8 };
    let params = TimingParams { rcd: 19, rp: 19, ras: 45, rc: 63, rtp: 8, ccd_ab: 6, refresh: Some(figures) };
    let timing = Timing::new(&params).expect("a valid timing");
    Controller::new(timing, refresh, 33, Feed::Paired).expect("a valid controller")
}

/// Rows visited `per_row` commands at a time, in an order that never returns to one soon.
fn visits(per_row: u32) -> Vec<u32> {
    (0..COMMANDS).map(|i| (i / per_row).wrapping_mul(2_654_435_761) >> 12).collect()
}

/// A row of 16 per command: the queue's worst case, with hits all over it.
fn scattered() -> Vec<u32> {
    let mut state = 1_u32;
    (0..COMMANDS)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 28
        })
        .collect()
}

fn event_form(c: &mut Criterion) {
    let mut group = c.benchmark_group("event_form");
    group.throughput(Throughput::Elements(u64::from(COMMANDS)));
    for per_row in [1, 4, 32] {
        let rows = visits(per_row);
        for refresh in [false, true] {
            let controller = controller(refresh);
            let name = if refresh { "refresh" } else { "no_refresh" };
            group.bench_with_input(BenchmarkId::new(name, per_row), &rows, |b, rows| {
                b.iter(|| controller.run(Trace::single(black_box(rows)), &mut ()));
            });
        }
    }
    let rows = scattered();
    let controller = controller(true);
    group.bench_function("scattered", |b| {
        b.iter(|| controller.run(Trace::single(black_box(&rows)), &mut ()));
    });
    let rows = visits(64);
    let of_row: Vec<u16> = (0..COMMANDS).map(|i| (i % 16) as u16).collect();
    let trace = Trace::new(&rows, &of_row, 16).expect("a valid trace");
    group.bench_function("16_channels", |b| b.iter(|| controller.run(black_box(trace), &mut ())));
    group.finish();
}

fn drain_state(c: &mut Criterion) {
    let controller = controller(false);
    let rows = visits(4);
    let mut group = c.benchmark_group("drain_state");
    group.throughput(Throughput::Elements(u64::from(COMMANDS)));
    group.bench_function("feed", |b| {
        b.iter(|| {
            let mut state = DrainState::new();
            for &row in black_box(&rows) {
                state.feed(&controller, row, 1);
            }
            state.finish(&controller)
        });
    });
    group.throughput(Throughput::Elements(1));
    let mut state = DrainState::new();
    for &row in &rows[..1000] {
        state.feed(&controller, row, 1);
    }
    group.bench_function("append_4_and_finish", |b| {
        b.iter(|| {
            let mut next = black_box(&state).clone();
            next.feed(&controller, 77, 4);
            next.finish(&controller)
        });
    });
    group.finish();
}

criterion_group!(benches, event_form, drain_state);
criterion_main!(benches);
