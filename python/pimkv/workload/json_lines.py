"""Request traces as JSON lines: one object per request, checked key by key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import NoReturn

from pimkv.errors import TraceError
from pimkv.workload.chains import ChainReader
from pimkv.workload.table import MAX_TOKENS
from pimkv.workload.trace_formats import HASHES, MOONCAKE, Row, bad, nearest, short


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return record


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def json_rows(path: str, lines: Iterator[str], chains: ChainReader | None) -> Iterator[Row]:
    """The requests of JSON lines as Mooncake's, their hashes where `chains` takes them."""
    decode = json.JSONDecoder(object_pairs_hook=_object, parse_float=Decimal, parse_constant=_refuse).decode
    form = MOONCAKE
    for line, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            record = decode(text)
        except (ValueError, ArithmeticError, RecursionError) as error:
            # ArithmeticError: an exponent beyond what Decimal can hold.
            # JSONDecodeError would add a line number of its own, always 1.
            why = getattr(error, "msg", error)
            raise TraceError(f"{path}:{line}: not JSON, one object per line: {why}: {short(text)}") from error
        if type(record) is not dict:
            raise TraceError(f"{path}:{line}: not JSON, one object per line: {short(text)}")
        prompt = _tokens(path, line, form.prompt, record)
        yield (
            line,
            prompt,
            _tokens(path, line, form.output, record),
            _text(record[form.time]) if form.time in record else None,
            None if chains is None else _hashes(path, line, record, prompt, chains),
        )


def _tokens(path: str, line: int, key: str, record: dict[str, object]) -> int:
    if key not in record:
        near = f"; the nearest is {short(nearest(key, list(record))[1])}" if record else ""
        raise TraceError(f"{path}:{line}: the key {key} is missing{near}")
    tokens = record[key]
    # `type`, because True is an int to `isinstance`.
    if type(tokens) is not int or not 0 <= tokens <= MAX_TOKENS:
        raise bad(path, line, key, _text(tokens), f"allowed an integer from 0 to {MAX_TOKENS}")
    return tokens


def _hashes(path: str, line: int, record: dict[str, object], prompt: int, chains: ChainReader) -> list[int]:
    if HASHES not in record:
        raise TraceError(f"{path}:{line}: the key {HASHES} is missing, which a prefix cache needs")
    hashes = record[HASHES]
    if not isinstance(hashes, list):
        raise bad(path, line, HASHES, _text(hashes), "allowed a list of integers")
    for number in hashes:
        if type(number) is not int:
            raise bad(path, line, HASHES, _text(number), "allowed a list of integers")
    if prompt and (fault := chains.check(prompt, len(hashes))):
        raise TraceError(f"{path}:{line}: {HASHES}: {fault}")
    return hashes


def _text(value: object) -> str:
    """The value as JSON writes it: numbers bare, strings in quotes, so that "5" is not taken for a time."""
    if type(value) is int or isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list | dict):
        return "[...]" if isinstance(value, list) else "{...}"
    return json.dumps(value)
