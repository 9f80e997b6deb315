"""A sweep: many configs from one spec, every one of them checked before any is run.

A spec is a table with `base`, a config, and axes that lay values over it: `grid` (each field an axis of its
own), `zip` (fields that move together), `list` (configs one by one) and `seeds`. Points are all combinations,
the last axis fastest, in the order grid, zip, list, seeds. docs/formats.md shows one.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from importlib import resources
from pathlib import Path
from typing import Any

from pimkv.config import Allocator, Config, load, merge, read_toml
from pimkv.errors import ConfigError, Problem, TraceError
from pimkv.section import Section
from pimkv.wording import choose_from, config_error, did_you_mean, kind_of, nearest, show
from pimkv.workload import read_trace

MOST_POINTS = 1_000_000
"""Points of one sweep, at most: a slip of the pen is told, not run."""

_KEYS = ("description", "base", "grid", "zip", "list", "seeds")

Tables = dict[str, Any]


@dataclass(frozen=True)
class Sweep:
    """What is to be run: the config of every point, in the order of the spec; two may be equal."""

    name: str
    description: str
    configs: tuple[Config, ...]
    axes: tuple[str, ...]
    """Dotted names of the fields that vary."""


@dataclass(frozen=True)
class _Axis:
    fields: tuple[str, ...]
    moves: tuple[Tables, ...]
    """What each step along the axis lays over the config: a flat mapping of dotted names."""


def studies() -> dict[str, str]:
    """The studies that come with pimkv: name -> what it shows."""
    found = (entry.name for entry in resources.files(__package__).joinpath("studies").iterdir())
    names = sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml"))
    return {name: str(_study(name)["description"]) for name in names}


def load_sweep(
    spec: str | os.PathLike[str] | Mapping[str, Any],
    *,
    overrides: Mapping[str, Any] | None = None,
    problems: Iterable[Problem] = (),
) -> Sweep:
    """The sweep that a spec describes: a TOML file, the name of a study, or the tables themselves.

    `overrides`, nested tables, are laid over the spec's `base`. `problems` are mistakes found on the way here,
    to be reported with the rest. Raises `ConfigError` with every mistake of the spec and of its points.
    """
    found = list(problems)
    name: str = "sweep"
    tables: Mapping[str, Any] = {}
    try:
        name, tables = _read(spec)
    except ConfigError as error:
        found += error.problems
    description = tables.get("description", "")
    if not isinstance(description, str):
        found.append(Problem("description", description, f"is {kind_of(description)}; must be a string"))
    for key in tables:
        if key not in _KEYS:
            hint = did_you_mean(nearest(key, _KEYS))
            found.append(Problem(key, tables[key], f"unknown key of a sweep; {choose_from(_KEYS)}", hint))
    base = tables.get("base", {})
    if not isinstance(base, Mapping):
        found.append(Problem("base", base, f"is {kind_of(base)}; must be a table, a config"))
        base = {}
    axes = list(_axes(tables, found))
    _check_apart(axes, _flat(overrides or {}), found)
    common = merge(_nested(_flat(base)), overrides or {})
    count = math.prod(len(axis.moves) for axis in axes)
    if count > MOST_POINTS:
        raise config_error([*found, Problem("sweep", None, f"has {count:,} points; at most {MOST_POINTS:,}")])
    configs = _configs(common, axes, count, found)
    if found:
        raise config_error(found)
    fields = tuple(dict.fromkeys(field for axis in axes for field in axis.fields))
    return Sweep(name, description, tuple(configs), fields)


# --- reading -----------------------------------------------------------------------------------------------------


def _read(spec: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    if isinstance(spec, Mapping):
        return "sweep", spec
    path = Path(spec)
    known = studies()
    if str(spec) in known and not path.is_file():
        return str(spec), _study(str(spec))
    if path.suffix == ".toml" or path.exists():
        return path.stem, read_toml(path)
    hint = did_you_mean(nearest(str(spec), known, least=0.01))
    message = f"no such study, and no file of that name; studies are {', '.join(known)}"
    raise config_error([Problem("spec", str(spec), message, hint)])


@cache
def _study(name: str) -> Mapping[str, Any]:
    with resources.as_file(resources.files(__package__).joinpath("studies", f"{name}.toml")) as path:
        return read_toml(path)


def _axes(tables: Mapping[str, Any], found: list[Problem]) -> Iterator[_Axis]:
    """The axes of a spec that can be made sense of; what is wrong with the others goes to `found`."""
    for field, values in _arrays("grid", tables.get("grid", {}), found):
        yield _Axis((field,), tuple({field: value} for value in values))
    given = tables.get("zip", [])
    for index, table in enumerate(given if isinstance(given, list) else [given]):
        path = f"zip[{index}]" if isinstance(given, list) else "zip"
        columns = dict(_arrays(path, table, found))
        lengths = {field: len(values) for field, values in columns.items()}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{field} {length}" for field, length in lengths.items())
            found.append(Problem(path, None, f"fields that move together need as many values each: {said}"))
        elif columns:
            steps = zip(*columns.values(), strict=True)
            yield _Axis(tuple(columns), tuple(dict(zip(columns, step, strict=True)) for step in steps))
    yield from _listed(tables.get("list", []), found)
    yield from _seeds(tables.get("seeds"), found)


def _arrays(path: str, table: object, found: list[Problem]) -> Iterator[tuple[str, list[Any]]]:
    if not isinstance(table, Mapping):
        found.append(
            Problem(path, table, f"is {kind_of(table)}; must be a table of fields with their values")
        )
        return
    for field, values in _flat(table).items():
        if _known(path, field, found):
            if isinstance(values, list) and values:
                yield field, values
            else:
                wrong = "is empty" if values == [] else f"is {kind_of(values)}"
                message = f"{wrong}; must be an array of the values to run"
                found.append(Problem(f"{path}.{field}", values, message))


def _listed(given: object, found: list[Problem]) -> Iterator[_Axis]:
    if not isinstance(given, list) or not all(isinstance(table, Mapping) for table in given):
        found.append(Problem("list", given, "must be an array of tables ([[list]]), each laid over base"))
    elif given:
        moves = []
        for index, table in enumerate(given):
            move = _flat(table)
            moves.append({f: v for f, v in move.items() if _known(f"list[{index}]", f, found)})
        yield _Axis(tuple(dict.fromkeys(field for move in moves for field in move)), tuple(moves))


def _seeds(given: object, found: list[Problem]) -> Iterator[_Axis]:
    if given is None:
        return
    if type(given) is int and 1 <= given <= MOST_POINTS:
        given = list(range(given))
    if isinstance(given, list) and given:
        # Each seed is judged as the config's own.
        yield _Axis(("seed",), tuple({"seed": seed} for seed in given))
    else:
        message = f"must be a number of seeds from 1 to {MOST_POINTS} (0, 1, ...), or an array of seeds"
        found.append(Problem("seeds", given, message))


def _known(path: str, field: str, found: list[Problem]) -> bool:
    fields = _fields()
    if field in fields:
        return True
    last = field.rpartition(".")[2]
    # The right name in a wrong place, unless the whole is closer to something else.
    meant = next((known for known in fields if known.rpartition(".")[2] == last), None)
    guess = nearest(field, fields, least=0.9) or meant or nearest(field, fields, least=0.01)
    found.append(Problem(f"{path}.{field}", None, "the config has no such field", did_you_mean(guess)))
    return False


@cache
def _fields() -> tuple[str, ...]:
    """Dotted names of all fields and tables of a config, with the options of every allocator."""
    names = dict.fromkeys(_paths(Config, ""))
    for kind in Allocator.choices("kind"):
        names |= dict.fromkeys(f"allocator.options.{option}" for option in Allocator.options_of(kind))
    return tuple(names)


def _paths(table: type[Section], path: str) -> Iterator[str]:
    tables = table.tables({})
    for name in table.model_fields:
        yield f"{path}{name}"
        if name in tables:
            yield from _paths(tables[name], f"{path}{name}.")


def _check_apart(axes: Sequence[_Axis], overrides: Mapping[str, Any], found: list[Problem]) -> None:
    """No field may be set from two sides: which of them counts would be anyone's guess."""
    seen: list[str] = []
    for axis in axes:
        for field in axis.fields:
            for other in seen:
                if _overlap(field, other):
                    also = (
                        ""
                        if field == other
                        else f", as part of {other}"
                        if other in field
                        else f" by {other}"
                    )
                    found.append(Problem(field, None, f"is set by two axes{also}; leave one out"))
            for other, value in overrides.items():
                if _overlap(field, other):
                    found.append(
                        Problem(other, value, "is an axis of the sweep; it cannot be set beside that")
                    )
        seen += axis.fields


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _flat(tables: Mapping[str, Any], prefix: str = "") -> Tables:
    """Dotted names, whether they were written as such, as tables, or as both. An array is a value."""
    row: Tables = {}
    for key, value in tables.items():
        if isinstance(value, Mapping) and value:
            row |= _flat(value, f"{prefix}{key}.")
        else:
            row[f"{prefix}{key}"] = value
    return row


def _nested(row: Mapping[str, Any]) -> Tables:
    parts = (reduce(lambda inner, part: {part: inner}, reversed(f.split(".")), v) for f, v in row.items())
    nested: Tables = reduce(merge, parts, {})
    return nested


# --- the points --------------------------------------------------------------------------------------------------


def _configs(common: Tables, axes: Sequence[_Axis], count: int, found: list[Problem]) -> list[Config]:
    configs: list[Config] = []
    mistakes: dict[str, tuple[Problem, list[str]]] = {}
    steps = [[(move, _nested(move)) for move in axis.moves] for axis in axes]
    for combination in itertools.product(*steps):
        tables = reduce(merge, (nested for _, nested in combination), common)
        try:
            configs.append(load(tables))
        except ConfigError as error:
            label = ", ".join(f"{f} = {show(v)}" for move, _ in combination for f, v in move.items())
            for problem in error.problems:
                # One mistake is told once, with how many points make it.
                mistakes.setdefault(repr(problem), (problem, []))[1].append(label)
    for problem, labels in mistakes.values():
        if len(labels) < count:
            where = f" (in {len(labels)} of {count} points, such as {labels[0]})"
            found.append(problem._replace(message=problem.message + where))
        else:
            found.append(problem)
    found += _trace_mistakes(common, axes)
    return configs


def _trace_mistakes(common: Tables, axes: Sequence[_Axis]) -> Iterator[Problem]:
    """What is wrong with the traces themselves, each read once rather than failing in every point."""
    traces = [[_flat(move).get("workload.trace") for move in axis.moves] for axis in axes]
    if all(None in of_axis for of_axis in traces):
        traces.append([_flat(common).get("workload.trace")])
    for path in dict.fromkeys(itertools.chain(*traces)):
        if isinstance(path, str) and path:
            try:
                read_trace(path, step_ms=1.0, requests=None, arrival_rate=None, seed=0)
            except TraceError as error:
                yield Problem("workload.trace", path, str(error).removeprefix(f"{path}: "))
