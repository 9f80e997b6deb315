"""Timing presets of the PIM controller: its intervals, which values are refused, and presets from TOML.

A preset file is TOML with one table per preset; `presets/timing.toml` documents the keys and holds the
built-in ones. Values in picoseconds (`tRCD_ps`) become cycles (`nRCD`) here, in integers. A timing is
refused where the controller could not run it, and only there: nRAS below nRCD is a real device's (AiM).
"""

from __future__ import annotations

import difflib
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pimkv.errors import ConfigError

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
    """The intervals of one preset, in cycles of `tCK_ps` picoseconds. Immutable and always valid."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    name: str = "custom"
    source: str = ""
    tCK_ps: Annotated[int, Field(ge=1, le=MAX_INTERVAL)]
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
        if (self.nREFI is None) != (self.nRFC is None):
            given, missing = ("nREFI", "nRFC") if self.nRFC is None else ("nRFC", "nREFI")
            raise ValueError(
                f"{given} = {getattr(self, given)}: refresh needs both intervals, {missing} is missing"
            )
        if self.nREFI is None or self.nRFC is None:
            return self
        if self.nRFC >= self.nREFI:
            raise ValueError(
                f"nRFC = {self.nRFC}: a refresh must be shorter than its interval, nREFI = {self.nREFI}"
            )
        if self.nREFI <= 2:
            raise ValueError(
                f"nREFI = {self.nREFI}: must exceed 2, the clocks that the two REFab of an interval take"
            )
        # Where a row may close before its first MAC, a refresh could close every row unread for ever.
        longest = max(self.nRFC, self.nRP, self.nRC)
        needed = 2 * longest + self.nRAS + self.nRCD + 3
        if self.nRAS <= self.nRCD and self.nREFI <= needed:
            raise ValueError(
                f"nREFI = {self.nREFI}: with nRAS <= nRCD must exceed 2 max(nRFC, nRP, nRC) + nRAS + nRCD "
                f"+ 3 = {needed}, or refresh could close every row before it is read"
            )
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


def cycles_of(ps: int, tck_ps: int) -> int:
    """`ps` picoseconds in cycles of `tck_ps`, by the JEDEC rounding rule in integers."""
    return (ps * 1000 // tck_ps + 974) // 1000


def make_timing(**fields: Any) -> Timing:
    """A validated timing from its fields; every mistake in one `ConfigError`."""
    try:
        return Timing(**fields)
    except ValidationError as error:
        raise ConfigError("\n".join(_mistakes(fields.get("name", "custom"), error))) from None


def load_presets(path: Path | str) -> dict[str, Timing]:
    """The presets of a TOML file by name. A `base` may name a preset of the file or a built-in one.

    Raises `ConfigError` naming preset, field, value and rule: all mistakes of the file at once.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"timing presets {path}: {error.strerror}") from None
    return _parse(text, str(path), presets())


@cache
def presets() -> dict[str, Timing]:
    """The built-in presets by name."""
    text = resources.files("pimkv").joinpath("presets", "timing.toml").read_text(encoding="utf-8")
    return _parse(text, "presets/timing.toml", {})


def preset(name: str) -> Timing:
    """The built-in preset `name`; an unknown name raises `ConfigError` with the nearest valid one."""
    known = presets()
    if name not in known:
        raise ConfigError(
            f"timing = {name!r}: no such preset{_nearest(name, known)}; known: {', '.join(known)}"
        )
    return known[name]


def _parse(text: str, where: str, built_in: dict[str, Timing]) -> dict[str, Timing]:
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"timing presets {where}: {error}") from None
    mistakes: list[str] = []
    found: dict[str, Timing] = {}
    for name, table in tables.items():
        if not isinstance(table, dict):
            mistakes.append(f"timing.{name} = {table!r}: must be a table of intervals")
            continue
        fields = _inherit(name, table, {**built_in, **found}, mistakes)
        if fields is None:
            continue
        try:
            found[name] = make_timing(name=name, **_in_cycles(name, fields, mistakes))
        except ConfigError as error:
            mistakes.extend(str(error).splitlines())
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return found


def _inherit(
    name: str, table: dict[str, Any], known: dict[str, Timing], mistakes: list[str]
) -> dict[str, Any] | None:
    """The fields of a table on top of those of its `base`: one above it in the file, or built in."""
    own = dict(table)
    base = own.pop("base", None)
    if base is None:
        return own
    if base not in known:
        mistakes.append(
            f"timing.{name}.base = {base!r}: no preset of that name above it{_nearest(str(base), known)}"
        )
        return None
    inherited = known[base].model_dump(exclude={"name", "source"}, exclude_none=True)
    # A value given in picoseconds replaces the base's cycles rather than meeting them.
    return {field: value for field, value in inherited.items() if f"t{field[1:]}_ps" not in own} | own


def _in_cycles(name: str, fields: dict[str, Any], mistakes: list[str]) -> dict[str, Any]:
    """The fields with every `tXXX_ps` turned into `nXXX`."""
    result = dict(fields)
    tck = fields.get("tCK_ps")
    for field in INTERVALS:
        key = f"t{field[1:]}_ps"
        if key not in result:
            continue
        ps = result.pop(key)
        if field in result:
            mistakes.append(f"timing.{name}.{key} = {ps!r}: {field} is given as well; give one of the two")
        elif type(ps) is not int:
            mistakes.append(f"timing.{name}.{key} = {ps!r}: must be a whole number of picoseconds")
            result[field] = 1
        elif type(tck) is int and tck >= 1:
            result[field] = cycles_of(ps, tck)
        else:
            result[field] = 1  # tCK_ps is the mistake, and is reported as one
    return result


def _mistakes(name: str, error: ValidationError) -> list[str]:
    lines = []
    for item in error.errors(include_url=False):
        place = ".".join(str(part) for part in item["loc"])
        path = f"timing.{name}.{place}" if place else f"timing.{name}"
        if item["type"] == "missing":
            lines.append(f"{path}: missing")
        elif item["type"] == "extra_forbidden":
            lines.append(f"{path} = {item['input']!r}: unknown key{_nearest(place, Timing.model_fields)}")
        elif place:
            lines.append(f"{path} = {item['input']!r}: {item['msg']}")
        else:
            lines.append(f"{path}.{item['msg'].removeprefix('Value error, ')}")
    return lines


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
