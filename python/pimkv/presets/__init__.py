"""The named presets of the config (`dram.toml`, `model.toml`, `addrmap.toml`, `timing.toml`), as plain tables."""

from __future__ import annotations

import copy
import functools
import tomllib
from importlib import resources
from typing import Any

from pimkv.errors import Problem
from pimkv.wording import choose_from, config_error, did_you_mean, nearest

KINDS = ("dram", "model", "addrmap", "timing")


def presets(kind: str) -> dict[str, dict[str, Any]]:
    """Every preset of `kind` ("dram", "model", "addrmap" or "timing") by name, in the order of its file.

    Each has its values (`map` for an address map) and a one-line `note` with its source; a model that
    cannot be run yet also has `needs`, the reason. The tables are the caller's to change.
    Raises ConfigError for another kind.
    """
    if kind not in KINDS:
        message = f"no such kind of preset; {choose_from(KINDS)}"
        raise config_error([Problem("presets", kind, message, did_you_mean(nearest(kind, KINDS)))])
    return copy.deepcopy(_read(kind))


def values(kind: str, name: str) -> dict[str, Any]:
    """The bare values of one preset, without `note` and `needs`; KeyError when there is none."""
    return {key: value for key, value in _read(kind)[name].items() if key not in {"note", "needs"}}


def needs(kind: str, name: object) -> str | None:
    """Why the preset of this name cannot be run yet; None when it can, or there is none."""
    entry = _read(kind).get(name, {}) if isinstance(name, str) else {}
    return entry.get("needs")


def usable(kind: str) -> tuple[str, ...]:
    """The names of the presets that can be run, in the order of the file."""
    return tuple(name for name, entry in _read(kind).items() if "needs" not in entry)


def known(kind: str, name: object) -> bool:
    """Whether there is a preset of this name, usable or not."""
    return isinstance(name, str) and name in _read(kind)


@functools.cache
def _read(kind: str) -> dict[str, dict[str, Any]]:
    text = resources.files(__name__).joinpath(f"{kind}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
