"""The ledger of published claims: what was said, what our own code measures, and the verdict.

A claim names the runs it needs and judges their summaries; runs that several claims need are made once.
`row_claims` are the rows of the published table, `pimkv.sentences` holds what the writeup says in words.

Verdicts: `exact`, every printed digit and counter of a row is equal, or a count, an identity or a bound
holds as it stands; `within tolerance`, a figure that was rounded for a sentence is within half a unit of
its last printed digit, or within what stands beside the verdict; `differs`, and why.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any

from pimkv import published
from pimkv.config import Config, load
from pimkv.errors import ConfigError, Problem
from pimkv.published import COUNTERS, FIGURES, Row
from pimkv.sweep.runner import Failure, Outcome, Progress, Summary, run_all
from pimkv.wording import config_error

EXACT, WITHIN, DIFFERS, BESIDE = "exact", "within tolerance", "differs", "not judged"
VERDICTS = (EXACT, WITHIN, DIFFERS)


@dataclass(frozen=True)
class Check:
    """One figure of a claim: as published, as measured, and whether the one stands for the other."""

    what: str
    published: str
    measured: str
    value: Any  # what was measured, for machines
    verdict: str
    tolerance: str = ""

    @property
    def judged(self) -> str:
        """The verdict with the tolerance it needed."""
        return f"{self.verdict} ({self.tolerance})" if self.tolerance else self.verdict


def rounded(what: str, value: float, printed: str, unit: str = "", *, about: str = "") -> Check:
    """A figure printed rounded: right within half a unit of its last digit, or within `about` if given.

    `about` is for a figure that the writeup itself calls approximate.
    """
    text = Decimal(printed)
    places = -int(text.as_tuple().exponent)
    allowed = Decimal(about) if about else Decimal(1).scaleb(-places) / 2
    # By their decimal digits: 0.0079 as a float is a little more than 0.0079.
    holds = abs(Decimal(str(value)) - text) <= allowed
    return Check(
        what,
        f"{'about ' if about else ''}{printed}{unit}",
        f"{value:.{max(places, 0) + 2}f}{unit}",
        value,
        WITHIN if holds else DIFFERS,
        f"±{allowed}",
    )


def at_most(what: str, value: float, printed: str, unit: str = "") -> Check:
    """An upper bound; a value above it may still be the printed one before it was rounded."""
    if Decimal(str(value)) > Decimal(printed):
        check = rounded(what, value, printed, unit)
        return Check(what, f"at most {printed}{unit}", check.measured, value, check.verdict, check.tolerance)
    places = -int(Decimal(printed).as_tuple().exponent) + 2
    return Check(what, f"at most {printed}{unit}", f"{value:.{places}f}{unit}", value, EXACT)


def more_than(what: str, value: int, limit: int) -> Check:
    """A count that exceeds a limit."""
    return Check(what, f"over {limit:,}", f"{value:,}", value, EXACT if value > limit else DIFFERS)


def equal(what: str, value: int | str, printed: str) -> Check:
    """A value that must read exactly as printed."""
    return Check(what, printed, str(value), value, EXACT if str(value) == printed else DIFFERS)


def alike(what: str, values: Sequence[float], tolerance: float = 0.0) -> Check:
    """Several runs that must give one value; equal to the last bit where no tolerance is given."""
    low, high = min(values), max(values)
    text = f"{low:.8g}" if low == high else f"{low:.8g} to {high:.8g}"
    if low == high:
        return Check(what, "one value", text, low, EXACT)
    holds = high - low <= tolerance
    return Check(
        what,
        "one value",
        text,
        [low, high],
        WITHIN if holds else DIFFERS,
        f"apart by at most {tolerance:g}" if tolerance else "",
    )


def beside(what: str, value: float, digits: int, unit: str = "") -> Check:
    """A figure that is shown beside a claim and judged by nobody."""
    return Check(what, "", f"{value:.{digits}f}{unit}", value, BESIDE)


Tables = Mapping[str, Any]
Summaries = Mapping[str, Summary]


@dataclass(frozen=True)
class Claim:
    """One published claim. `runs` are the configs it needs, as tables for `pimkv.config.load`, by label;
    `measure` receives their summaries by the same labels."""

    name: str
    says: str
    runs: Mapping[str, Tables]
    measure: Callable[[Summaries], Sequence[Check]]
    setup: str = ""  # what was run, above all where the writeup does not say
    row: bool = False  # of the published table, else said in words


@dataclass(frozen=True)
class Entry:
    """A claim that was judged."""

    claim: Claim
    checks: tuple[Check, ...] = ()
    failures: Mapping[str, Failure] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`: the worst of the claim's figures."""
        found = {check.verdict for check in self.checks}
        if self.failures or DIFFERS in found:
            return DIFFERS
        return WITHIN if WITHIN in found else EXACT

    @property
    def why(self) -> list[str]:
        """What differs, in words; empty if nothing does."""
        failed = [f"run {label} failed: {failure}" for label, failure in self.failures.items()]
        return failed + [
            f"{check.what}: published {check.published}, measured {check.measured}"
            for check in self.checks
            if check.verdict == DIFFERS
        ]


def judge(
    claims: Sequence[Claim], *, jobs: int | None = None, progress: Progress | None = None
) -> list[Entry]:
    """Makes every run that the claims need, each once, and judges them; entries in the order of the claims."""
    wanted = [{label: _loaded(tables) for label, tables in claim.runs.items()} for claim in claims]
    points = {point: None for runs in wanted for point in runs.values() if isinstance(point, Config)}
    outcomes = dict(zip(points, run_all(list(points), jobs=jobs, progress=progress), strict=True))
    return [
        _judged(claim, {label: _outcome(point, outcomes) for label, point in runs.items()})
        for claim, runs in zip(claims, wanted, strict=True)
    ]


def _loaded(tables: Tables) -> Config | Failure:
    try:
        return load(tables)
    except ConfigError as error:
        return Failure(type(error).__name__, str(error))


def _outcome(point: Config | Failure, outcomes: Mapping[Config, Outcome]) -> Outcome:
    return point if isinstance(point, Failure) else outcomes[point]


def _judged(claim: Claim, outcomes: Mapping[str, Outcome]) -> Entry:
    failures = {label: found for label, found in outcomes.items() if isinstance(found, Failure)}
    if failures:
        return Entry(claim, failures=failures)
    summaries = {label: found for label, found in outcomes.items() if not isinstance(found, Failure)}
    return Entry(claim, tuple(claim.measure(summaries)))


def row_claims() -> tuple[Claim, ...]:
    """The published table, a claim per row, under the rows' names."""
    return tuple(
        Claim(row.name, "a row of the published table", {"row": row.config}, _row_measure(row), row=True)
        for row in published.rows()
    )


def _row_measure(row: Row) -> Callable[[Summaries], list[Check]]:
    def measure(summaries: Summaries) -> list[Check]:
        summary = summaries["row"]
        wrong = {text.partition(":")[0] for text in row.differences(summary)}
        measured = (
            {name: summary[name] for name in COUNTERS}
            | {name: summary["published"][name] for name in FIGURES}
            | {"region_spread": summary["placement"]["region_spread"]}
        )
        return [
            Check(
                name,
                row.values[name],
                # What is equal prints as published, whatever number of digits that was.
                _text(value) if name in wrong else row.values[name],
                value,
                DIFFERS if name in wrong else EXACT,
            )
            for name, value in measured.items()
            if row.values[name]
        ]

    return measure


def _text(value: float | None) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def choose(claims: Sequence[Claim], pattern: str, more: Sequence[Claim] = ()) -> list[Claim]:
    """The claims whose name contains `pattern` or matches it as a glob.

    `more` are claims that could have been asked for: a pattern that fits only those says so.
    Raises `ConfigError` if no claim fits, with the nearest names.
    """
    chosen = _fitting(claims, pattern)
    if chosen:
        return chosen
    if fitting := _fitting(more, pattern):
        hint = f"add --sentences for {', '.join(claim.name for claim in fitting[:3])}"
        raise _no_claim(pattern, "names only what the writeup says in words", hint)
    names = [claim.name for claim in (*claims, *more)]
    near = _near(pattern, names)
    hint = f"nearest: {', '.join(near)}" if near else f"names are such as {', '.join(names[:1] + names[-1:])}"
    raise _no_claim(pattern, "no claim has such a name", hint)


def _fitting(claims: Sequence[Claim], pattern: str) -> list[Claim]:
    return [claim for claim in claims if pattern in claim.name or fnmatchcase(claim.name, pattern)]


def _no_claim(pattern: str, message: str, hint: str) -> ConfigError:
    return config_error([Problem("only", pattern, message, hint, "--only")])


def _near(pattern: str, names: Sequence[str]) -> list[str]:
    # A long name is far from any short pattern, so each word is looked up among the pieces of the names.
    pieces = sorted({piece for name in names for piece in name.split("/")})
    words: list[str] = []
    for word in filter(None, re.split(r"[/*?\[\]]+", pattern)):
        known = any(word in name for name in names)
        words += [word] if known else difflib.get_close_matches(word, pieces, n=1, cutoff=0.6)
    if not words:
        return []
    near = [name for name in names if all(word in name for word in words)]
    # Words that occur, but in no one name: a name for each.
    return near[:3] or [next(name for name in names if word in name) for word in words]
