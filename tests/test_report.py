"""`pimkv report`: figures show what the store holds, twice the same bytes, and the page keeps to itself."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from report_inputs import make_store, record

import pimkv
from pimkv.cli import main
from pimkv.cli.options import FLAGS as ALL_FLAGS
from pimkv.cli.options import gather
from pimkv.cli.run import command as run_command
from pimkv.config import load
from pimkv.report import commands, cost_figure, figures, rowmap_figure, style
from pimkv.report.assemble import PAGE, Report, build
from pimkv.report.cost_figure import draw_cost, read_cost
from pimkv.report.page import page
from pimkv.report.palette import colour_of
from pimkv.report.points import BLOCK_TOKENS, HEADROOM, MODEL, NO_AXIS, best_slice, fixed, points, spec_of
from pimkv.report.rowmap import Recording, figures_of, named, page_data
from pimkv.result import resolved
from pimkv.sweep.keys import Keys
from pimkv.sweep.spec import load_sweep
from pimkv.sweep.store import Row, Store

FIGURES = ("allocators", "bandwidth-block-size", "bandwidth-headroom", "bandwidth-model", "ablation")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("store") / "sweep.db")


@pytest.fixture(scope="module")
def rows(store: Path) -> list[Row]:
    with Store.open(store, readonly=True) as opened:
        return opened.rows()


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[Recording]:
    folder = tmp_path_factory.mktemp("placements")
    found = []
    for kind in ("pim-aware", "paged", "pim-gather"):
        more = ("--allocator", kind, "--requests", "20", "--workload", "prefix", "--record-every", "3")
        path = record(folder / f"{kind}.placement", *more)
        found.append(Recording(path.name, pimkv.read_placement(path)))
    return found


@pytest.fixture(scope="module")
def cost_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table as `pimkv bench cost --json` prints it, with made-up times."""
    row = {"policy_us_per_step": 0.2, "added_us_per_step": 0.1, "saved_us_per_step": 900.0, "benefit_cost": 9000.0,
           "saved_us_per_step_controller": 700.0, "benefit_cost_controller": 7000.0,
           "bookkeeping_kib": 7.0}  # fmt: skip
    nothing = {
        **row,
        "added_us_per_step": 0.0,
        "saved_us_per_step": 0.0,
        "benefit_cost": None,
        "saved_us_per_step_controller": 0.0,
        "benefit_cost_controller": None,
    }
    kinds = {"take": {"median_ns": 11.0}, "give": {"median_ns": 5.0}}
    table = {
        "schema_version": 1, "host": {"cpu": "a CPU", "cores": 2}, "requests": 10, "twin_requests": 5, "repeats": 3,
        "workloads": {"steady": {"paged": nothing, "pim-aware, indexed": row},
                      "tight": {"paged": nothing, "contiguous": {"refused": "why"}, "pim-gather": nothing}},
        "mix": {"blocks": 1024, "policies": {"paged": {"kinds": kinds}}},
    }  # fmt: skip
    path = tmp_path_factory.mktemp("cost") / "cost.json"
    path.write_text(json.dumps(table))
    return path


@pytest.fixture(scope="module")
def full(rows: list[Row], recordings: list[Recording], cost_file: Path) -> Report:
    """A report of everything there is."""
    return build(store="s.db", rows=rows, recordings=recordings, cost=read_cost(str(cost_file)))


def cli(*args: str) -> Result:
    return CliRunner().invoke(main, args)


# ---- figures ----


def test_every_figure_has_its_files_and_the_sweep_that_makes_it(full: Report) -> None:
    assert full.left_out == []
    expected = {f"figures/{name}.{kind}" for name in FIGURES for kind in ("pdf", "png", "toml")}
    expected |= {
        f"figures/{name}.{kind}" for name in ("allocator-cost", "row-map") for kind in ("pdf", "png")
    }
    assert set(full.files) == {PAGE} | expected
    for name in FIGURES:
        command = f"pimkv sweep figures/{name}.toml"
        assert full.files[f"figures/{name}.pdf"].startswith(b"%PDF")
        assert command.encode() in full.files[f"figures/{name}.png"]
        assert command in full.files[PAGE].decode()


def test_the_same_store_gives_the_same_bytes_in_another_process(store: Path, tmp_path: Path) -> None:
    folders = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        command = [sys.executable, "-m", "pimkv", "report", str(store), "--out", str(folder)]
        subprocess.run(
            command, check=True, env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.DEVNULL
        )
        folders.append({p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()})
    assert folders[0].keys() == folders[1].keys() and len(folders[0]) == 1 + 3 * len(FIGURES)
    for name, content in folders[0].items():
        assert content == folders[1][name], name
        assert b"CreationDate" not in content


def test_lines_are_the_means_of_the_store_formula_beside_controller(rows: list[Row]) -> None:
    chosen = best_slice(points(rows), BLOCK_TOKENS, places=2)
    assert chosen is not None
    assert (chosen.places, chosen.series, chosen.seeds) == ([4, 16, 32], ["paged", "pim-aware"], [0, 1])
    figure = figures._lines(chosen, "tokens per block", log=True)
    assert [ax.get_title() for ax in figure.axes] == ["published formula", "PIM controller"]
    for ax, field in zip(figure.axes, ("m3_gbps", "controller_gbps"), strict=True):
        assert ax.get_ylim()[0] == 0
        for kind, container in zip(chosen.series, ax.containers, strict=True):
            line = container.lines[0]
            for tokens, drawn in zip(line.get_xdata(), line.get_ydata(), strict=True):
                held = [
                    row.summary["exact"][field]
                    for row in rows
                    if row.summary
                    and row.config["allocator"]["kind"] == kind
                    and row.config["layout"]["block_tokens"] == tokens
                    and row.config["model"]["preset"] == "llama-gqa-8kv"
                    and row.config["scheduler"]["admission"] == "oracle"
                ]
                assert len(held) == 2 and drawn == pytest.approx(sum(held) / 2, rel=1e-12)


def test_bars_are_those_of_the_store_with_copies_beside_the_gain(rows: list[Row]) -> None:
    chosen = best_slice(points(rows), NO_AXIS, variants=True, series=3)
    assert chosen is not None
    assert chosen.series == ["paged", "pim-gather", "pim-gather, own_first off, relocate_tail off, repair 0",
                             "pim-gather, own_first off, relocate_tail off, repair 4", "pim-gather, repair 16"]  # fmt: skip
    figure = figures._ablation(chosen)
    bandwidth, copies = figure.axes
    for container, field in zip(bandwidth.containers, ("m3_gbps", "controller_gbps"), strict=True):
        drawn = [bar.get_width() for bar in container]
        assert drawn == [chosen.at(s)[0].summary["exact"][field] for s in chosen.series]
    shares = [bar.get_width() for bar in copies.containers[0]]
    assert shares == [100 * chosen.at(s)[0].copies for s in chosen.series]
    assert shares[0] == shares[2] == 0 < shares[1]
    assert [t.get_text() for t in bandwidth.get_yticklabels()][:2] == ["paged", "pim-gather"]


@pytest.mark.parametrize("axis", [NO_AXIS, BLOCK_TOKENS, HEADROOM, MODEL])
@pytest.mark.parametrize("variants", [False, True])
def test_the_sweep_beside_a_figure_makes_exactly_its_points(
    rows: list[Row], axis: Any, variants: bool
) -> None:
    chosen = best_slice(points(rows), axis, variants=variants)
    assert chosen is not None and len(chosen.points) > 1
    keys = Keys()
    again = {keys.of(config) for config in load_sweep(tomllib.loads(spec_of(chosen, "title"))).configs}
    assert again == {keys.of(load(point.config)) for point in chosen.points}


def test_series_are_compared_over_the_same_seeds_only(rows: list[Row]) -> None:
    """A third seed of one allocator is another set of requests and must not move its mean."""
    paged = next(r for r in rows if r.config["allocator"]["kind"] == "paged" and r.config["seed"] == 1)
    more = Row("more", {**paged.config, "seed": 2}, paged.summary, None)
    chosen = best_slice(points([*rows, more]), BLOCK_TOKENS, places=2)
    assert chosen is not None and chosen.seeds == [0, 1]


def test_an_allocator_with_a_unit_of_its_own_stands_beside_the_others(rows: list[Row]) -> None:
    """And not where it was run with the setting of the others; points with one place each make no curve."""
    summary = next(row.summary for row in rows if row.summary)

    def row(kind: str, headroom: float = 1.3, order: str | None = None, **layout: int) -> Row:
        scheduler = {"headroom": headroom, **({"free_order": order} if order else {})}
        tables = {"allocator": {"kind": kind}, "layout": layout, "scheduler": scheduler}
        return Row(kind, resolved(load(tables)), summary, None)

    kinds = ["paged", "blockpim", "grow-block", "neupims", "paged-fifo", "pimphony"]
    keys = Keys()
    found = points([row(kind, headroom) for kind in kinds for headroom in (1.3, 2.0)])
    for axis in (NO_AXIS, HEADROOM):
        chosen = best_slice(found, axis, series=2)
        assert chosen is not None and chosen.series == kinds
        assert chosen.others == (axis is NO_AXIS)  # the other headroom
        told = fixed(chosen)
        assert "; 16 tokens per block; " in told and "; grow-block with its own block tokens 128; " in told
        assert "neupims with its own block tokens 32 and passes 2" in told and "paged with" not in told
        again = {keys.of(config) for config in load_sweep(tomllib.loads(spec_of(chosen, "title"))).configs}
        assert again == {keys.of(load(point.config)) for point in chosen.points}
    assert len(chosen.points) == len(found)
    assert best_slice(found, BLOCK_TOKENS, places=2) is None

    both = points([row("paged"), row("paged-fifo"), row("paged-fifo", order="table")])
    chosen = best_slice(both, series=2)
    assert chosen is not None
    assert [p.values["scheduler.free_order"] for p in chosen.points] == ["table", "table"]
    curve = points([row("paged"), row("paged", block_tokens=32), row("pimphony")])
    chosen = best_slice(curve, BLOCK_TOKENS, places=2)
    assert chosen is not None and chosen.places == [16, 32, 256] and chosen.series == ["paged", "pimphony"]


def test_a_mean_of_equal_figures_has_no_error_bar_whatever_the_rounding() -> None:
    config = resolved(load({}))
    exact = {"m3_gbps": 0.1, "controller_gbps": 1204.6}
    summary = {"exact": exact, "blocks_read": 0, "relocated_blocks": 0}
    equal = points([Row(str(seed), {**config, "seed": seed}, summary, None) for seed in range(80)])
    assert figures._spread(equal, "m3_gbps") == (0.1, 0, 0)
    assert figures._spread(equal, "controller_gbps") == (1204.6, 0, 0)


def test_what_a_store_has_no_points_for_is_left_out_with_the_sweep_that_makes_them(rows: list[Row]) -> None:
    one = [row for row in rows if row.config["layout"]["block_tokens"] == 4]
    report = build(store="s.db", rows=one)
    assert "figures/allocators.png" in report.files and "figures/ablation.png" not in report.files
    told = "\n".join(report.left_out)
    for study in ("block-size", "headroom", "models"):
        assert f"pimkv sweep {study}" in told
        load_sweep(study)
    assert "pimkv bench cost --json" in told
    assert all(line.split(":")[0] in report.files[PAGE].decode() for line in report.left_out)


def test_failed_points_are_in_no_figure_and_counted(rows: list[Row]) -> None:
    failed = Row("k", rows[0].config, None, "ConfigError: no")
    report = build(store="s.db", rows=[failed])
    assert "1 points, 1 of them failed" in report.files[PAGE].decode()
    assert list(report.files) == [PAGE] and len(report.left_out) == len(FIGURES) + 1


def test_two_dozen_series_look_different() -> None:
    found = style.looks([f"allocator-{i}" for i in range(24)])
    assert len(set(found.values())) == 24


def test_the_cost_figure_shows_what_was_measured(cost_file: Path) -> None:
    table = read_cost(str(cost_file))
    drawn = draw_cost(table)
    assert "a CPU" in drawn.caption
    assert drawn.command == "pimkv bench cost --json --requests 10 --twin-requests 5 --repeat 3"
    assert drawn.files == draw_cost(table).files
    figure = cost_figure._draw(table)
    told = {text.get_text() for text in figure.axes[0].texts}
    assert {"9,000x", "7,000x", "formula", "controller"} <= told
    marks = {x for line in figure.axes[0].lines if line.get_marker() != "None" for x in line.get_xdata()}
    assert marks == {0.1, 900.0, 700.0}
    head, (row, _) = cost_figure.cost_table(table).head, cost_figure.cost_table(table).rows
    shown = dict(zip(head, row, strict=True))
    assert (shown["saved us/step, formula"], shown["saved us/step, controller"]) == ("900.0", "700.0")
    assert (shown["benefit / cost, formula"], shown["benefit / cost, controller"]) == ("9,000", "7,000")


def test_a_cost_table_without_the_controller_is_refused(cost_file: Path, tmp_path: Path) -> None:
    table = json.loads(cost_file.read_text())
    del table["workloads"]["steady"]["pim-aware, indexed"]["saved_us_per_step_controller"]
    (tmp_path / "old.json").write_text(json.dumps(table))
    refused = cli("report", "--cost", str(tmp_path / "old.json"), "--out", str(tmp_path / "r"))
    assert refused.exit_code == 2 and "lacks saved_us_per_step_controller" in refused.stderr
    assert "measure it again" in refused.stderr and not (tmp_path / "r").exists()


# ---- commands ----


def test_flags_are_those_of_the_command_line() -> None:
    known = {field: flag for flag, field, *_ in ALL_FLAGS}
    assert {field: known.get(field) for field in commands.FLAGS} == commands.FLAGS


def test_the_command_of_a_config_runs_it_again(rows: list[Row]) -> None:
    others = [
        {"experiment": "realistic", "model": {"preset": "phi-4"}, "controller": {"refresh": False}},
        {"workload": {"kind": "spec"}, "speculation": {"adopt": "copyback"}, "dram": {"preset": "gddr6-pim"}},
        {"allocator": {"kind": "pim-aware", "options": {"compact": 0.25}}, "layout": {"block_tokens": 0}},
    ]
    for config in [*(row.config for row in rows), *(resolved(load(tables)) for tables in others)]:
        words = commands.options(commands.given(config))
        given = run_command.make_context("run", words).params
        flags = {flag: given[flag.removeprefix("--").replace("-", "_")] for flag, *_ in ALL_FLAGS}
        again = gather(given["config_file"], flags, given["assignments"]).load()
        assert resolved(again) == config


# ---- the page and the row map ----


def test_map_figures_count_regions_per_sequence(recordings: list[Recording]) -> None:
    for recording in recordings:
        placement = recording.placement
        found = figures_of(placement)
        for i, (_, table) in enumerate(placement.frames()):
            lies: dict[int, set[int]] = {}
            counts: dict[int, int] = {}
            for block, seq, _, _ in table.tolist():
                lies.setdefault(seq, set()).add(block // 8)
                counts[seq] = counts.get(seq, 0) + 1
            assert found["running"][i] == len(lies)
            assert found["held"][i] == len({block for block, *_ in table.tolist()})
            assert found["pairs"][i] == sum(map(len, lies.values()))
            assert found["fewest"][i] == sum(-(-n // 8) for n in counts.values())
    paged = figures_of(recordings[1].placement)
    assert sum(paged["pairs"]) > 1.5 * sum(paged["fewest"])


def test_paged_is_shown_beside_gather_and_no_two_names_are_alike(recordings: list[Recording]) -> None:
    data = page_data(recordings)
    assert (data["left"], data["right"]) == (1, 2)
    assert [r["name"] for r in data["recordings"]] == ["pim-aware", "paged", "pim-gather"]
    records = base64.b64decode(data["recordings"][0]["records"])
    assert records == recordings[0].placement.records.tobytes()
    assert (page_data(recordings[:1])["left"], page_data(recordings[:1])["right"]) == (0, 0)
    twice = [recordings[0], Recording("b", recordings[0].placement), recordings[0]]
    assert len(set(named(twice))) == 3


def test_bars_of_the_drawn_map_are_runs_of_the_same_sequences(recordings: list[Recording]) -> None:
    for recording in recordings:
        step, table = max(recording.placement.frames(), key=lambda frame: len(frame[1]))
        held: dict[int, list[int]] = {}
        for block, sequence, *_ in table.tolist():
            held.setdefault(block, []).append(sequence)
        covered: list[int] = []
        for block, width, filled, colour in rowmap_figure._runs(table, 8, 16):
            mine = list(range(block, block + width))
            covered += mine
            assert len({tuple(held[b]) for b in mine}) == 1 and block // 8 == mine[-1] // 8
            assert width - 1 < filled <= width
            assert (colour == colour_of(held[block][0])) is (len(held[block]) == 1)
        assert covered == sorted(held), step
    drawn = rowmap_figure.draw_row_map(recordings)
    assert drawn.files == rowmap_figure.draw_row_map(recordings).files and set(drawn.files) == {"pdf", "png"}
    assert len({colour_of(n) for n in range(21)}) == 21


def test_the_policy_allows_this_script_and_this_style_and_nothing_else(full: Report) -> None:
    text = full.files[PAGE].decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    (sheet,) = re.findall(r"<style>(.*?)</style>", text, re.S)
    for name, content in (("script-src", script), ("style-src", sheet)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert directives.pop(name) == f"'sha256-{digest}'"
    assert directives == {
        "default-src": "'none'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    links = re.findall(r'\b(?:src|href|srcset|action)="([^"]*)"', text)
    assert links and all(link.startswith("data:") for link in links)
    assert not re.search(r"<[^>]* (?:style|on[a-z]+)=", text.split("<script")[0])


def test_a_page_without_placements_says_how_to_record_one() -> None:
    text = build(store="s.db").files[PAGE].decode()
    assert "--record-placement paged.placement" in text
    assert '<canvas id="map-left"' not in text


def test_a_recording_without_a_step_is_left_out_and_said(recordings: list[Recording]) -> None:
    whole = recordings[0].placement
    empty = replace(whole, steps=whole.steps[:0], records=whole.records[:0])
    report = build(recordings=[Recording("empty.placement", empty)])
    assert report.left_out == ["row map of empty.placement: it holds no decode step"]
    assert '<canvas id="map-left"' not in report.files[PAGE].decode()
    assert page_data([Recording("e", empty)])["recordings"][0]["pairs"] == []


def test_names_from_outside_stay_text(recordings: list[Recording]) -> None:
    evil = "</script><script>alert(1)</script>&amp;"
    text = page(
        title=evil, sources=evil, recordings=[Recording(evil, recordings[0].placement)] * 2, left_out=[evil]
    )
    assert "alert(1)</script>" not in text
    (data,) = re.findall(r'<script type="application/json" id="placements">(.*?)</script>', text, re.S)
    assert json.loads(data)["recordings"][0]["name"].startswith(f"pim-aware ({evil})")


# ---- the command ----


def test_the_command_writes_and_lists_every_file(
    store: Path, recordings: list[Recording], tmp_path: Path
) -> None:
    placement = record(tmp_path / "x.placement", "--requests", "5")
    out = tmp_path / "report"
    done = cli("report", str(store), "--placement", str(placement), "--out", str(out))
    assert done.exit_code == 0, done.stderr
    written = sorted(str(p) for p in out.rglob("*") if p.is_file())
    assert sorted(line for line in done.stdout.splitlines() if not line.startswith("left out: ")) == written
    assert "left out: CPU time of the allocator" in done.stdout
    maps = ["figures/row-map.pdf", "figures/row-map.png"]
    told = json.loads(cli("report", "--placement", str(placement), "--out", str(out), "--json").stdout)
    assert told == {"page": "report.html", "files": ["report.html", *maps], "left_out": []}


def test_all_mistakes_come_in_one_report(store: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"nothing")
    (tmp_path / "y").write_text("{}")
    bad = str(tmp_path / "x")
    refused = cli("report", bad, "--placement", bad, "--cost", str(tmp_path / "y"))
    assert refused.exit_code == 2 and refused.stdout == ""
    assert "4 mistakes" in refused.stderr
    assert "(--out): names no folder" in refused.stderr
    assert "no store of pimkv" in refused.stderr
    assert "placement, offset 0: this is not a recorded placement" in refused.stderr
    assert "(--cost): lacks host, requests" in refused.stderr
    nothing = cli("report", "--out", str(tmp_path / "r"))
    assert nothing.exit_code == 2 and "nothing to report: name a STORE" in nothing.stderr
    assert not (tmp_path / "r").exists()
    for content, what in (("[1", "is no JSON"), ("[]", "lacks host")):
        (tmp_path / "y").write_text(content)
        told = cli("report", "--cost", str(tmp_path / "y"), "--out", str(tmp_path / "r"))
        assert told.exit_code == 2 and what in told.stderr


def test_without_matplotlib_the_extra_is_named_and_a_map_alone_still_works(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused = cli("report", str(store), "--out", str(tmp_path / "r"))
    assert refused.exit_code == 2 and "pip install 'pimkv[report]'" in refused.stderr
    assert not (tmp_path / "r").exists()
    placement = record(tmp_path / "p", "--requests", "5")
    done = cli("report", "--placement", str(placement), "--out", str(tmp_path / "r"))
    assert done.exit_code == 0 and "left out: row map as a figure: matplotlib is not installed" in done.stdout
    assert [p.name for p in (tmp_path / "r").iterdir()] == [PAGE]


def test_every_recorded_step_is_an_entry_of_each_list_of_the_page(recordings: list[Recording]) -> None:
    for recording, shown in zip(recordings, page_data(recordings)["recordings"], strict=True):
        lengths = {len(shown[name]) for name in ("steps", "running", "held", "pairs", "fewest")}
        assert lengths == {len(recording.placement.steps)}
        assert np.all(np.diff(shown["steps"]) > 0)
