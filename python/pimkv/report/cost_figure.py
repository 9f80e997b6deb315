"""The figure of what an allocator costs the CPU and saves the memory, from the JSON of `pimkv bench cost`.

Times never enter a store, so they come from a file of their own.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pimkv.errors import Problem
from pimkv.report.drawn import Drawn, Table
from pimkv.report.style import CONTROLLER, FORMULA, NEUTRAL, PAIR, VERMILLION, new_figure, rendered
from pimkv.report.tables import figure as digits
from pimkv.wording import config_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "allocator-cost"
TITLE = "CPU time that an allocator adds and attention time that it saves"
WANTED = "an object of pimkv bench cost --json"
MARKS = (
    ("added_us_per_step", "added by the allocator (CPU)", VERMILLION, "o"),
    ("saved_us_per_step", "saved by attention (formula)", FORMULA, "s"),
    ("saved_us_per_step_controller", "saved by attention (controller)", CONTROLLER, "D"),
)
GAINS = (("benefit_cost", 36), ("benefit_cost_controller", 76))
"""Benefit over cost and where its column ends, in points from the axes."""

_KEYS = ("host", "requests", "twin_requests", "repeats", "workloads", "mix")


def read_cost(path: str) -> dict[str, Any]:
    """The table in a file; `ConfigError` if it cannot be read or is no JSON of `pimkv bench cost`."""
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise _refused(path, error.strerror or "cannot be read") from None
    except ValueError as error:
        raise _refused(path, f"is no JSON ({error}); must be {WANTED}") from None
    missing = [key for key in _KEYS if not isinstance(table, dict) or key not in table]
    if missing:
        raise _refused(path, f"lacks {', '.join(missing)}; must be {WANTED}")
    if table.get("schema_version") != 1:
        raise _refused(path, f"has schema version {table.get('schema_version')}; this pimkv reads 1")
    if any("saved_us_per_step_controller" not in row for *_, row in _rows(table)):
        raise _refused(
            path, "lacks saved_us_per_step_controller: an earlier pimkv wrote it; measure it again"
        )
    found: dict[str, Any] = table
    return found


def _refused(path: str, message: str) -> Exception:
    return config_error([Problem("cost", path, message, flag="--cost")])


def command_of(table: dict[str, Any]) -> str:
    """The command that measures such a table."""
    sizes = (
        f"--requests {table['requests']} --twin-requests {table['twin_requests']} --repeat {table['repeats']}"
    )
    return f"pimkv bench cost --json {sizes}"


def draw_cost(table: dict[str, Any]) -> Drawn:
    """The figure; the same table gives the same bytes."""
    host = table["host"]
    caption = (
        f"Measured on {host['cpu']}, {host['cores']} cores; {table['requests']} requests. Per decode step, all layers: "
        "CPU time added over paged, and time of attention reads saved against paged, by the published formula and by "
        "the PIM controller; beside them benefit over cost by either. A row without a mark adds less than can be measured. Right: median ns per "
        f"operation on {table['mix']['blocks']:,} blocks, in Rust."
    )
    command = command_of(table)
    files = rendered(functools.partial(_draw, table), title=TITLE, command=command)
    return Drawn(NAME, TITLE, caption, command, "", files)


def cost_table(table: dict[str, Any]) -> Table:
    """The same in figures."""
    rows = [
        (
            workload,
            policy,
            digits(row["policy_us_per_step"], 4),
            digits(row["added_us_per_step"], 4),
            digits(row["saved_us_per_step"], 1),
            digits(row["saved_us_per_step_controller"], 1),
            digits(row["benefit_cost"], 0),
            digits(row["benefit_cost_controller"], 0),
            digits(row["bookkeeping_kib"], 1),
        )
        for workload, policy, row in _rows(table)
    ]
    head = (
        "workload",
        "allocator",
        "policy us/step",
        "added us/step",
        "saved us/step, formula",
        "saved us/step, controller",
        "benefit / cost, formula",
        "benefit / cost, controller",
        "KiB",
    )
    note = "Times are of one machine and one run; compare ratios. docs/cost.md defines every figure."
    return Table("Allocator cost", note, head, rows, words=2)


def _rows(table: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """(workload, policy, figures) of every policy that was run and is compared with another."""
    return [
        (workload, policy, row)
        for workload, policies in table["workloads"].items()
        for policy, row in policies.items()
        if row.get("saved_us_per_step") is not None and policy != "paged"
    ]


def _beside(ax: Any, y: float, end: float, text: str) -> None:
    """A figure right of the axes, in a column that ends so many points from them."""
    ax.annotate(
        text, (1, y), (end, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
        fontsize=6.5, ha="right", va="center", annotation_clip=False,
    )  # fmt: skip


def _draw(table: dict[str, Any]) -> Figure:
    rows, mix = _rows(table), table["mix"]["policies"]
    figure, (steps, each) = new_figure(1.6 + 0.19 * len(rows), 2, width_ratios=(1.7, 1))
    labels, places, y = [], [], 0.0
    for i, (workload, policy, row) in enumerate(rows):
        # A little room between workloads.
        y += 1.0 if i == 0 or rows[i - 1][0] == workload else 1.9
        labels.append(policy)
        places.append(y)
        if i == 0 or rows[i - 1][0] != workload:
            steps.annotate(
                workload, (0, y - 0.85), xycoords=("axes fraction", "data"), fontsize=8, fontweight="bold"
            )
        marks = [(row[key], *look) for key, *look in MARKS if row[key] > 0]
        steps.plot([value for value, *_ in marks], [y] * len(marks), color=NEUTRAL, linewidth=1, zorder=1)
        for value, _, colour, marker in marks:
            steps.plot([value], [y], color=colour, marker=marker, linestyle="", markersize=5)
        for key, end in GAINS:
            _beside(steps, y, end, "" if row[key] is None else f"{row[key]:,.0f}x")
    for (_, end), word in zip(GAINS, ("formula", "controller"), strict=True):
        _beside(steps, -0.7, end, word)
    _beside(steps, -1.7, GAINS[-1][1], "saved / added")
    for _, label, colour, marker in MARKS:
        steps.plot([], [], color=colour, marker=marker, linestyle="", label=label)
    steps.set_xscale("log")
    steps.xaxis.set_major_formatter("{x:,g}")
    steps.set_yticks(places, labels, fontsize=7.5)
    steps.set_ylim(y + 0.8, -0.3)
    steps.set_xlabel("µs per decode step (log scale)")
    for shift, kind, colour in ((-0.19, "take", PAIR[0]), (0.19, "give", PAIR[1])):
        values = [got["kinds"][kind]["median_ns"] for got in mix.values()]
        bars = each.barh([i + shift for i in range(len(mix))], values, height=0.35, color=colour, label=kind)
        each.bar_label(bars, [f"{value:.1f}" for value in values], padding=3, fontsize=7.5)
    each.set_yticks(range(len(mix)), list(mix), fontsize=7.5)
    # Bars about as thick as the rows beside them, however few there are.
    each.set_ylim(max(len(mix) - 0.5, 0.4 * y), -0.5)
    each.set_xlim(0, 1.25 * each.get_xlim()[1])
    each.set_xlabel("ns, median")
    for ax in (steps, each):
        ax.tick_params(axis="y", left=False)
        ax.grid(visible=False, axis="y")
        ax.grid(visible=True, axis="x")
    handles = [h for ax in (steps, each) for h in ax.get_legend_handles_labels()[0]]
    names = [n for ax in (steps, each) for n in ax.get_legend_handles_labels()[1]]
    figure.legend(handles, names, loc="outside lower center", ncols=3)
    return figure
