"""Config tables in and out of text: TOML files, `--set key=value`, and our writer of resolved configs."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pimkv.errors import ConfigError, Problem
from pimkv.wording import config_error, show

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The tables of a TOML file, not yet checked.

    Raises ConfigError, which names the path and, for malformed TOML, the line.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise _unreadable(path, f"is not UTF-8 text (at line {line})") from None
    except FileNotFoundError:
        raise _unreadable(path, "there is no such file") from None
    except IsADirectoryError:
        raise _unreadable(path, "is a directory, not a TOML file") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _unreadable(path, f"cannot be read: {reason}") from None
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise _unreadable(path, "malformed TOML: nested too deeply") from None
    except ValueError as error:
        last = text.count("\n") + 1
        reason = str(error).replace("at end of document", f"at line {last}, the end of the file")
        raise _unreadable(path, f"malformed TOML: {reason}") from None


def _unreadable(path: Path, message: str) -> ConfigError:
    name = str(path)
    return config_error([Problem(name if name.isprintable() else show(name), None, message)])


def parse_set(text: str) -> dict[str, Any]:
    """The nested table that `section.key=value` stands for, as `--set` takes it.

    The value is read as TOML (`64`, `1.5`, `true`, `[1, 2]`, `"text"`), and as a string where it is no TOML.
    Raises ConfigError when there is no `=` or no proper key.
    """
    key, equals, value = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals:
        wrong = 'has no "="'
    elif not all(_BARE_KEY.fullmatch(part) for part in parts):
        wrong = 'has no proper key before "="'
    else:
        nested: Any = _toml_value(value.strip())
        for part in reversed(parts):
            nested = {part: nested}
        tables: dict[str, Any] = nested
        return tables
    message = f"{wrong}; write section.key=value, as in --set scheduler.max_batch=32"
    raise config_error([Problem("--set", text, message)])


def _toml_value(text: str) -> Any:
    # Inside an array neither a comment nor a second line can slip in beside the value.
    try:
        values = tomllib.loads(f"v = [{text}]")["v"]
    except (ValueError, RecursionError):
        return text
    return values[0] if len(values) == 1 and not text.endswith(",") else text


def write_toml(tables: Mapping[str, Any]) -> str:
    """TOML text of nested tables of scalars, keys in their own order; None and empty tables are left out.

    Writes exactly the shapes of a resolved config: booleans, integers, floats, strings and tables of them.
    """
    lines: list[str] = []
    _write_table(tables, "", lines)
    return "\n".join(lines) + "\n"


def _write_table(table: Mapping[str, Any], path: str, lines: list[str]) -> None:
    scalars = {
        key: value for key, value in table.items() if value is not None and not isinstance(value, Mapping)
    }
    if path and scalars:
        # A blank line before every table but one that opens the file.
        lines.extend([""] * bool(lines) + [f"[{path}]"])
    lines.extend(f"{key} = {_scalar(value)}" for key, value in scalars.items())
    for key, value in table.items():
        if isinstance(value, Mapping):
            _write_table(value, f"{path}.{key}" if path else key, lines)


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        # float's own repr: the shortest text that reads back equal, also for subclasses such as numpy's.
        return float.__repr__(value)
    if isinstance(value, str):
        # JSON escapes are TOML escapes, but for DEL, which TOML wants escaped as well.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    raise TypeError(f"a config value of type {type(value).__name__} has no TOML form here")
