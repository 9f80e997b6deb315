"""How a mistake in a request is worded: values on one line, kinds of values, the nearest valid name."""

from __future__ import annotations

import datetime
import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from pimkv.errors import ConfigError, Problem

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN = 100  # characters of a value that a message repeats; a map string fits


def show(value: object) -> str:
    """`value` as TOML would write it, on one line, shortened in the middle when it is long."""
    # What no terminal shows as it is (control and bidirectional characters, lone surrogates) is escaped.
    text = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in _toml_like(value)
    )
    if len(text) <= _SHOWN:
        return text
    return f"{text[: _SHOWN - 20]} ... {text[-15:]}"


def show_key(key: object) -> str:
    """A key as TOML would write it: bare where it can be, else quoted."""
    return key if isinstance(key, str) and _BARE_KEY.fullmatch(key) else show(key)


def _toml_like(value: object) -> str:
    # Only the outermost level is written out: a message is no place for a document.
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{show_key(key)} = {_leaf(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_leaf, value)) + "]"
    return _leaf(value)


def _leaf(value: object) -> str:
    match value:
        case Mapping():
            text = "{...}" if value else "{}"
        case list() | tuple():
            text = "[...]" if value else "[]"
        case bool():
            text = "true" if value else "false"
        case int():
            # Python refuses to print integers of more than 4,300 digits; hexadecimal always works.
            text = str(value) if value.bit_length() <= 128 else hex(value)
        case float():
            text = float.__repr__(value)
        case str():
            text = json.dumps(value, ensure_ascii=False)
        case datetime.date() | datetime.time():
            text = str(value)
        case _:
            text = " ".join(repr(value).split())
    return text


def kind_of(value: object) -> str:
    """What kind of value this is, in the words of TOML: `a boolean`, `an array`, ..."""
    # bool before int: Python counts True as an integer, a config does not.
    kinds: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a float"),
        (str, "a string"),
        (Mapping, "a table"),
        ((list, tuple), "an array"),
        ((datetime.date, datetime.time), "a date or time"),
        (type(None), "None"),
    )
    for kind, words in kinds:
        if isinstance(value, kind):
            return words
    return f"of type {type(value).__name__}"


def nearest(name: object, choices: Iterable[str], *, least: float = 0.45) -> str | None:
    """The choice that `name` most likely stands for: a near spelling, else one that contains it or is closest.

    `least` is how alike the closest one must be, 0 to 1.
    """
    if not isinstance(name, str) or not name.strip():
        return None
    wanted = name.strip().lower().replace("_", "-")
    spelled = {choice.lower().replace("_", "-"): choice for choice in choices}
    close = difflib.get_close_matches(wanted, spelled, n=1, cutoff=0.6)
    if close:
        return spelled[close[0]]
    if len(wanted) < 3 and least > 0.1:
        return None
    held = next((choice for key, choice in spelled.items() if wanted in key), None)
    if held is None:
        # Far off, but a family name such as "hbm9" still points somewhere.
        held = next(
            (spelled[key] for key in difflib.get_close_matches(wanted, spelled, n=1, cutoff=least)), None
        )
    return held


def nearest_power_of_two(value: int, low: int, high: int) -> int:
    """The power of two nearest to `value` by ratio, within low..high (both powers of two)."""
    if value <= low:
        return low
    if value >= high:
        return high
    return min(high, max(low, 1 << round(math.log2(value))))


def did_you_mean(choice: object) -> str:
    """The hint that proposes `choice`; empty for None."""
    return "" if choice is None else f"did you mean {show(choice)}?"


def choose_from(choices: Sequence[object]) -> str:
    """The list of what is allowed, as a clause."""
    return f"choose from {', '.join(map(str, choices))}"


def line(problem: Problem) -> str:
    """One mistake as one line: `field = value (flag): what is wrong; what is allowed; hint`."""
    where = problem.field
    if problem.value is not None:
        # A flag is followed by its value as on the command line, a field as in the file.
        where += f" {show(problem.value)}" if where.startswith("--") else f" = {show(problem.value)}"
    if problem.flag:
        where += f" ({problem.flag})"
    said = f"{problem.message}; {problem.hint}" if problem.hint else problem.message
    return f"{where}: {said}"


def config_error(problems: Sequence[Problem]) -> ConfigError:
    """The error that reports all `problems`, one per line."""
    return ConfigError("\n".join(map(line, problems)), problems)
