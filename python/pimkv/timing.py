"""Timing presets of the PIM controller: its intervals, which values are refused, and presets from TOML.

A preset file is TOML with one table per preset; `presets/timing.toml` documents the keys and holds the
built-in ones. Values in picoseconds (`tRCD_ps`) become cycles (`nRCD`) here, in integers. A timing is
refused where the controller could not run it, and only there: nRAS below nRCD is a real device's (AiM).
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from pimkv.errors import ConfigError, Problem
from pimkv.toml_io import read_toml
from pimkv.wording import choose_from, config_error, did_you_mean, kind_of, nearest

INTERVALS = ("nRCD", "nRP", "nRAS", "nRC", "nRTP", "nCCDAB", "nREFI", "nRFC")
"""The interval fields of a timing, in the order of the preset tables."""

MAX_INTERVAL = 1 << 30
"""The longest interval a timing may hold, in cycles; keeps every sum of a run far inside 64 bits."""

MAX_QUEUE = 64
"""The deepest command queue the controller models, in commands."""

Cycles = Annotated[int, Field(ge=1, le=MAX_INTERVAL)]


class Command(NamedTuple):
    """One line of a command log: what a channel's command bus carried at clock `clk`.

    `name` is ACTAB, MACAB, PREA or REFab. `row` is the row opened (ACTAB), read (MACAB) or wanted next
    (PREA); -1 for a refresh and for the precharge it forces.
    """

    clk: int
    channel: int
    name: str
    row: int


class Timing(BaseModel):
    """The intervals of one preset, in cycles of `tCK_ps` picoseconds. Immutable and always valid.

    `make_timing` builds one and reports every mistake as a `ConfigError`.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    name: str = "custom"
    note: str = ""
    tCK_ps: Cycles
    nRCD: Cycles
    nRP: Cycles
    nRAS: Cycles
    nRC: Cycles
    nRTP: Cycles
    nCCDAB: Cycles
    nREFI: Cycles | None = None
    nRFC: Cycles | None = None
    max_postponed: Annotated[int, Field(ge=0, le=MAX_INTERVAL)] = 8

    @model_validator(mode="after")
    def _refresh_leaves_room(self) -> Timing:
        """Refuses a refresh that leaves the stream no clock to go on; the Rust core has the same rules."""
        if self.nREFI is None and self.nRFC is None:
            return self
        if self.nREFI is None or self.nRFC is None:
            given, missing = ("nREFI", "nRFC") if self.nRFC is None else ("nRFC", "nREFI")
            raise _refused(given, f"refresh needs both intervals; {missing} is missing")
        if self.nRFC >= self.nREFI:
            raise _refused("nRFC", f"a refresh must be shorter than its interval, nREFI = {self.nREFI}")
        if self.nREFI <= 2:
            raise _refused("nREFI", "must exceed 2, the clocks that the two REFab of an interval take")
        # Where a row may close before its first MAC, a refresh could close every row unread for ever.
        least = 2 * max(self.nRFC, self.nRP, self.nRC) + self.nRAS + self.nRCD + 3
        if self.nRAS <= self.nRCD and self.nREFI <= least:
            rule = f"with nRAS <= nRCD must exceed 2 max(nRFC, nRP, nRC) + nRAS + nRCD + 3 = {least}"
            raise _refused("nREFI", f"{rule}, or refresh could close every row before it is read")
        return self

    @property
    def has_refresh(self) -> bool:
        """Whether the preset has refresh figures."""
        return self.nREFI is not None

    @property
    def refresh_charge(self) -> int:
        """Cycles that one refresh adds to a stream timed without it; 0 without refresh figures.

        The precharge it forces was due anyway, so a refresh costs nRFC and its own command, less the nRP
        that it hides.
        """
        return 0 if self.nRFC is None else max(self.nRFC + 1, self.nRP) - self.nRP


def _refused(field: str, message: str) -> PydanticCustomError:
    return PydanticCustomError("refresh", "{message}", {"field": field, "message": message})


def cycles_of(ps: int, tck_ps: int) -> int:
    """`ps` picoseconds in cycles of `tck_ps`, by the JEDEC rounding rule in integers."""
    return (ps * 1000 // tck_ps + 974) // 1000


def make_timing(**fields: Any) -> Timing:
    """A validated timing from its fields; every mistake in one `ConfigError`."""
    try:
        return Timing(**fields)
    except ValidationError as error:
        raise config_error(list(_problems(fields, error))) from None


def load_presets(path: str | os.PathLike[str]) -> dict[str, Timing]:
    """The presets of a TOML file by name. A `base` may name a preset of the file or a built-in one.

    Raises `ConfigError` naming preset, field, value and rule: all mistakes of the file at once.
    """
    return _timings(read_toml(path), presets())


@cache
def presets() -> dict[str, Timing]:
    """The built-in presets by name."""
    text = resources.files("pimkv.presets").joinpath("timing.toml").read_text(encoding="utf-8")
    return _timings(tomllib.loads(text), {})


def preset(name: str) -> Timing:
    """The built-in preset `name`; an unknown name raises `ConfigError` with the nearest valid one."""
    known = presets()
    if name not in known:
        message = f"no such preset; {choose_from(list(known))}"
        raise config_error([Problem("timing", name, message, did_you_mean(nearest(name, known)))])
    return known[name]


def _timings(tables: Mapping[str, Any], built_in: Mapping[str, Timing]) -> dict[str, Timing]:
    problems: list[Problem] = []
    found: dict[str, Timing] = {}
    for name, table in tables.items():
        path = f"timing.{name}"
        if not isinstance(table, dict):
            problems.append(Problem(path, table, f"is {kind_of(table)}; must be a table of intervals"))
            continue
        fields = dict(table)
        base = fields.pop("base", None)
        above = {**built_in, **found}
        if base is not None and base not in above:
            hint = did_you_mean(nearest(base, above))
            problems.append(Problem(f"{path}.base", base, "no preset of that name above this one", hint))
            continue
        if base is not None:
            fields = _on_top_of(above[base], fields)
        try:
            found[name] = make_timing(name=name, **_in_cycles(path, fields, problems))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise config_error(problems)
    return found


def _on_top_of(base: Timing, own: dict[str, Any]) -> dict[str, Any]:
    """The fields of a table on top of those of its base."""
    inherited = base.model_dump(exclude={"name", "note"}, exclude_none=True)
    # A value given in picoseconds replaces the base's cycles rather than meeting them.
    return {field: value for field, value in inherited.items() if _ps_key(field) not in own} | own


def _in_cycles(path: str, fields: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """The fields with every `tXXX_ps` turned into `nXXX`; what cannot be is reported and stood in for."""
    result = dict(fields)
    tck = fields.get("tCK_ps")
    for field in INTERVALS:
        key = _ps_key(field)
        if key not in result:
            continue
        ps = result.pop(key)
        if field in result:
            problems.append(Problem(f"{path}.{key}", ps, f"{field} is given as well; give one of the two"))
        elif type(ps) is not int:
            problems.append(Problem(f"{path}.{key}", ps, "must be a whole number of picoseconds"))
            result[field] = 1
        elif type(tck) is int and tck >= 1:
            result[field] = cycles_of(ps, tck)
        else:
            result[field] = 1  # tCK_ps is the mistake, and is reported as one
    return result


def _ps_key(field: str) -> str:
    """The key that gives an interval in picoseconds: tRCD_ps for nRCD."""
    return f"t{field[1:]}_ps"


def _problems(fields: Mapping[str, Any], error: ValidationError) -> Iterator[Problem]:
    """What pydantic refused, in the words of every other config mistake."""
    path = f"timing.{fields.get('name', 'custom')}"
    for item in error.errors(include_url=False):
        field = str(item["loc"][0]) if item["loc"] else item["ctx"]["field"]
        value = fields.get(field)
        hint = ""
        if item["type"] == "missing":
            message = "is missing"
        elif item["type"] == "extra_forbidden":
            message = "unknown key"
            hint = did_you_mean(nearest(field, _keys()))
        elif item["type"] == "refresh":
            message = item["msg"]
        elif field in ("name", "note"):
            message = f"is {kind_of(value)}; must be a string"
        else:
            low = 0 if field == "max_postponed" else 1
            wrong = {"greater_than_equal": "is too small", "less_than_equal": "is too large"}
            message = wrong.get(item["type"], f"is {kind_of(value)}")
            message += f"; must be an integer from {low} to {MAX_INTERVAL}"
        yield Problem(f"{path}.{field}", value, message, hint)


def _keys() -> Iterable[str]:
    return [*Timing.model_fields, "base", *map(_ps_key, INTERVALS)]
