"""The ledger of published claims as text for the terminal, as Markdown and as JSON."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pimkv.report.tables import aligned
from pimkv.result import SCHEMA_VERSION, dumps

if TYPE_CHECKING:
    from pimkv.reproduce import Check, Entry

# The figures of a row that a line has room for; the others are counted.
SHOWN = {"m1": "M1", "m3_gbps": "M3 GB/s"}
ROW_HEAD = (*(f"published {n}" for n in SHOWN.values()), *(f"measured {n}" for n in SHOWN.values()), "equal")
WORDS_HEAD = ("figure", "published", "measured")


def ledger_table(entries: Sequence[Entry]) -> str:
    """All claims with what was published, what was measured and the verdict; last a line that sums up."""
    rows, words = _kinds(entries)
    parts = []
    if rows:
        parts.append(_table([("claim", *ROW_HEAD, "verdict"), *map(_row_cells, rows)], left=1))
    if words:
        cells: list[tuple[str, ...]] = [("claim", *WORDS_HEAD, "verdict")]
        for entry in words:
            names = [entry.claim.name] + [""] * len(entry.checks)
            cells += [(name, *line) for name, line in zip(names, _word_cells(entry), strict=False)]
        notes = [line for entry in words for line in _note(entry)]
        parts += [_table(cells, left=2), "\n".join(notes)]
    return "\n\n".join([*parts, closing_line(entries)])


def ledger_markdown(entries: Sequence[Entry]) -> str:
    """The same as a Markdown document."""
    rows, words = _kinds(entries)
    lines = ["# Ledger of published claims", "", f"pimkv {version('pimkv')}. {closing_line(entries)}"]
    if rows:
        lines += ["", "## Rows of the published table", ""]
        lines += _markdown_table([("claim", *ROW_HEAD, "verdict"), *map(_row_cells, rows)], left=1)
    if words:
        lines += ["", "## What the writeup says in words"]
    for entry in words:
        lines += ["", f"### {entry.claim.name}: {entry.verdict}", "", _sentence(entry), ""]
        lines += _markdown_table([(*WORDS_HEAD, "verdict"), *_word_cells(entry)], left=1)
    return "\n".join(lines) + "\n"


def ledger_json(entries: Sequence[Entry]) -> str:
    """The same as one JSON object, with the runs that each claim was measured on."""
    return dumps({
        "schema_version": SCHEMA_VERSION,
        "versions": {name: version(name) for name in ("pimkv", "numpy")},
        "claims": [_claim_json(entry) for entry in entries],
        "verdicts": dict(sorted(Counter(entry.verdict for entry in entries).items())),
    })  # fmt: skip


def closing_line(entries: Sequence[Entry]) -> str:
    """How many claims came out how."""
    counted = []
    names = (("row", "rows"), ("claim in words", "claims in words"))
    for (single, kind), of_kind in zip(names, _kinds(entries), strict=True):
        if of_kind:
            found = Counter(entry.verdict for entry in of_kind)
            each = [f"{found['exact']} exact", f"{found['within tolerance']} within tolerance"]
            each = [*(each if found["within tolerance"] else each[:1]), f"{found['differs']} differ"]
            counted.append(f"{len(of_kind)} {kind if len(of_kind) > 1 else single}: {', '.join(each)}.")
    return " ".join(counted)


def _kinds(entries: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    return [e for e in entries if e.claim.row], [e for e in entries if not e.claim.row]


def _verdict(entry: Entry) -> str:
    return f"{entry.verdict}: {'; '.join(entry.why)}" if entry.why else entry.verdict


def _row_cells(entry: Entry) -> tuple[str, ...]:
    checks = {check.what: check for check in entry.checks}
    published = [checks[name].published if name in checks else "-" for name in SHOWN]
    measured = [checks[name].measured if name in checks else "-" for name in SHOWN]
    equal = sum(check.verdict == "exact" for check in entry.checks)
    values = f"{equal} of {len(entry.checks)}" if entry.checks else "-"
    return (entry.claim.name, *published, *measured, values, _verdict(entry))


def _word_cells(entry: Entry) -> list[tuple[str, ...]]:
    if entry.failures:
        return [("-", "-", "-", _verdict(entry))]
    return [(c.what, c.published or "-", c.measured, c.judged) for c in entry.checks]


def _note(entry: Entry) -> list[str]:
    return textwrap.wrap(
        f"{entry.claim.name}: {_sentence(entry)}", 108, initial_indent="  ", subsequent_indent="      "
    )


def _sentence(entry: Entry) -> str:
    setup = f" Measured: {entry.claim.setup}." if entry.claim.setup else ""
    return f"{entry.claim.says}.{setup}"


def _table(rows: Sequence[Sequence[str]], *, left: int) -> str:
    """Lines whose last cell, of any length, stands flush left."""
    lines = aligned([row[:-1] for row in rows], left=left)
    return "\n".join(f"{line}  {row[-1]}" for line, row in zip(lines, rows, strict=True))


def _markdown_table(rows: Sequence[Sequence[str]], *, left: int) -> list[str]:
    head, *body = rows
    rule = ["---" if i < left or i == len(head) - 1 else "--:" for i in range(len(head))]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in (head, rule, *body)]
    return [f"| {' | '.join(row)} |" for row in escaped]


def _claim_json(entry: Entry) -> dict[str, Any]:
    claim = entry.claim
    return {
        "claim": claim.name,
        "kind": "row" if claim.row else "sentence",
        "says": claim.says,
        "setup": claim.setup,
        "verdict": entry.verdict,
        "differs": entry.why,
        "figures": [_check_json(check) for check in entry.checks],
        "runs": {label: dict(tables) for label, tables in claim.runs.items()},
    }


def _check_json(check: Check) -> dict[str, Any]:
    return {
        "figure": check.what,
        "published": check.published or None,
        "measured": check.value,
        "verdict": check.verdict,
        "tolerance": check.tolerance or None,
    }
