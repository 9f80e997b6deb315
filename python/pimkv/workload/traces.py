"""Reads a recorded request trace, CSV or JSON lines, plain or gzip, into one request table.

The format is recognised by content, never by file name: gzip by its magic bytes, JSON lines by a first
character `{` or `[`, the CSV formats by their header, whose order and further columns do not matter.
A time stamp is a plain number of the unit below or, in CSV, an ISO 8601 date and time of day.

| format | prompt tokens | output tokens | time stamp (optional) |
|---|---|---|---|
| Azure LLM inference traces, NanoFlow | `ContextTokens` | `GeneratedTokens` | `TIMESTAMP`, s |
| Vidur, Etalon | `num_prefill_tokens` | `num_decode_tokens` | `arrived_at`, s |
| LLMServingSim | `input_toks` | `output_toks` | `arrival_time_ns`, ns |
| Mooncake (JSON lines) | `input_length` | `output_length` | `timestamp`, ms |

Mooncake's `hash_ids`, the hash chain of a prompt (`pimkv.workload.chains`), are read where chains are asked for.

Nothing malformed is repaired or passed over; the whole file is checked, however few requests are asked for.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import gzip
import io
import itertools
import json
import logging
import os
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, NoReturn

import numpy as np

from pimkv.errors import InvalidArgument, TraceError
from pimkv.workload.chains import ChainReader, Chains
from pimkv.workload.synthetic import DEFAULT_RATE, draw_arrivals
from pimkv.workload.table import MAX_TOKENS, Requests, require_int
from pimkv.workload.timestamps import NO_TIME, common_ticks, exact_step, parse, to_steps

_LOG = logging.getLogger("pimkv.workload")

_LINE_LIMIT: Final = 1 << 26
"""Bytes of the longest line: a binary file has no lines, and must not be read into memory whole."""


@dataclass(frozen=True)
class _Format:
    name: str
    prompt: str
    output: str
    time: str
    places: int  # decimal places between the unit of `time` and a second


_CSV: Final = (
    _Format("Azure", "ContextTokens", "GeneratedTokens", "TIMESTAMP", 0),
    _Format("Vidur", "num_prefill_tokens", "num_decode_tokens", "arrived_at", 0),
    _Format("LLMServingSim", "input_toks", "output_toks", "arrival_time_ns", 9),
)
_MOONCAKE: Final = _Format("Mooncake", "input_length", "output_length", "timestamp", 3)
_HASHES: Final = "hash_ids"

# One request: line number, prompt and output tokens, the text of its time stamp and its hashes if it has them.
_Row = tuple[int, int, int, str | None, list[int] | None]

# A time stamp as messages tell of it: line number, text, kind.
_Stamped = tuple[int, str | None, str]


def read_trace(
    path: str | os.PathLike[str],
    *,
    step_ms: float,
    requests: int | None,
    arrival_rate: float | None,
    seed: int,
    chains: bool | None = False,
    hash_tokens: int | None = None,
) -> Requests:
    """Read the first `requests` requests (None: all) of the trace at `path`.

    Requests are ordered by time stamp, equal ones as in the file. A request with 0 prompt or 0 output tokens
    is skipped: `skipped` of the table counts those of the whole file, and one warning names the first.

    Arrivals are decode steps of `step_ms` milliseconds, floor((t - earliest t) / step_ms) computed exactly:
    0.1 is one tenth, and no digit of a time stamp is lost. The earliest is that of the requests not skipped.
    Where `arrival_rate` (requests per decode step) is given, or the trace has no time stamps (no such column,
    or not one of its values is a time), arrivals are drawn as in `steady` from `default_rng(seed)`, at
    `DEFAULT_RATE` unless a rate is given.

    With `chains` every request must have a hash chain, and the table gets them; None: where the first one has.
    `hash_tokens` is the number of prompt tokens that a hash stands for; None finds the one that fits every line.

    Raises:
        TraceError: a file that cannot be read, is of no known format, holds a malformed line or no usable
            request, or not the chains that are asked for. The message names file, line, column and value.
        InvalidArgument: `step_ms`, `requests`, `arrival_rate` or `seed` out of range.
    """
    step = exact_step(step_ms)
    if requests is not None:
        requests = require_int("requests", requests, 1)
    rng = np.random.default_rng(require_int("seed", seed, 0))

    if hash_tokens is not None:
        hash_tokens = require_int("hash_tokens", hash_tokens, 1)
    reader = ChainReader(hash_tokens, optional=chains is None) if chains is not False else None
    trace = _load(os.fspath(path), reader)
    usable = len(trace.prompt)
    if requests is not None and requests > usable:
        _LOG.warning(
            "%s: asked for %d requests, the trace has %d usable: all of them run", path, requests, usable
        )
    n = usable if requests is None else min(requests, usable)

    ticks, per_second = common_ticks(trace.times, trace.places)
    order = sorted(range(usable), key=ticks.__getitem__)[:n] if ticks else list(range(n))
    if ticks and arrival_rate is None:
        arrival = to_steps([ticks[i] for i in order], per_second, step)
    else:
        arrival = draw_arrivals(rng, n, DEFAULT_RATE if arrival_rate is None else arrival_rate)
    return Requests(
        arrival,
        prompt=np.array(trace.prompt, dtype=np.int64)[order],
        output=np.array(trace.output, dtype=np.int64)[order],
        prefix=np.full(n, -1, dtype=np.int64),
        skipped=trace.skipped,
        chains=None if trace.chains is None else trace.chains.take(order),
    )


# ---- the file, as lists of numbers


@dataclass
class _Trace:
    """The usable requests of a file, in file order."""

    prompt: array[int] = field(default_factory=lambda: array("q"))
    output: array[int] = field(default_factory=lambda: array("q"))
    times: list[int] = field(default_factory=list)  # empty if the trace has no time stamps
    places: list[int] = field(default_factory=list)
    skipped: int = 0
    reader: ChainReader | None = None  # of the chains, if they are wanted and there
    chains: Chains | None = None


def _load(path: str, chains: ChainReader | None) -> _Trace:
    if "\0" in path:
        raise TraceError(f"{path!r}: a null byte cannot be part of a file name")
    try:
        with open(path, "rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            stream: io.BufferedIOBase = gzip.GzipFile(fileobj=raw) if packed else raw
            with stream:
                trace = _collect(path, *_rows(path, _lines(path, stream), chains))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    if trace.reader is not None:
        try:
            trace.chains = trace.reader.chains()
        except InvalidArgument as error:
            raise TraceError(f"{path}: {_HASHES}: {error}") from error
    return trace


def _collect(path: str, form: _Format, rows: Iterator[_Row], chains: ChainReader | None) -> _Trace:
    trace = _Trace(reader=chains)
    kind = ""
    first: _Stamped = (0, None, "")
    seen, first_skipped = 0, 0
    for line, prompt, output, text, hashes in rows:
        stamp, value, places = parse(text, form.places)
        if not seen:
            kind, first = stamp, (line, text, stamp)
        elif stamp != kind:
            raise _mixed(path, form.time, first, (line, text, stamp))
        seen += 1
        if (
            chains is not None
            and hashes is not None
            and prompt
            and (fault := chains.check(prompt, len(hashes)))
        ):
            raise TraceError(f"{path}:{line}: {_HASHES}: {fault}")
        if prompt == 0 or output == 0:
            trace.skipped += 1
            first_skipped = first_skipped or line
            continue
        trace.prompt.append(prompt)
        trace.output.append(output)
        if chains is not None and hashes is not None:
            chains.add(hashes)
        if kind != NO_TIME:
            trace.times.append(value)
            trace.places.append(places)
    if not seen:
        raise TraceError(f"{path}: no requests after the header")
    empty = f"0 {form.prompt} or 0 {form.output}"
    if not trace.prompt:
        raise TraceError(f"{path}:{first_skipped}: no usable request: all {seen} have {empty}")
    if trace.skipped:
        _LOG.warning(
            "%s:%d: the first of %d requests skipped for %s", path, first_skipped, trace.skipped, empty
        )
    if kind == NO_TIME:
        _LOG.info("%s: no time stamps; arrivals are drawn", path)
    return trace


def _mixed(path: str, column: str, one: _Stamped, other: _Stamped) -> TraceError:
    # Blame the one that is not a time, else the later.
    bad, good = (one, other) if one[2] == NO_TIME else (other, one)
    return _bad(path, bad[0], column, bad[1], f"{bad[2]}, but that of line {good[0]} is {good[2]}")


def _lines(path: str, stream: io.BufferedIOBase) -> Iterator[str]:
    """Every line of the file, blank ones too (they count), without its line end."""
    number = 0
    try:
        while raw := stream.readline(_LINE_LIMIT):
            number += 1
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            if b"\0" in raw:
                raise TraceError(f"{path}:{number}: a null byte: not a text file")
            if len(raw) == _LINE_LIMIT:
                raise TraceError(f"{path}:{number}: a line of {_LINE_LIMIT} bytes or more")
            yield raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        bad = error.object[error.start]
        raise TraceError(f"{path}:{number}: byte {error.start + 1} is 0x{bad:02x}: not UTF-8") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}:{number + 1}: gzip data truncated or damaged: {error}") from error


def _rows(
    path: str, lines: Iterator[str], chains: ChainReader | None
) -> tuple[_Format, Iterator[_Row], ChainReader | None]:
    head = []
    for line in lines:
        head.append(line)
        if line.strip():
            break
    else:
        raise TraceError(f"{path}: the file is empty")
    every = itertools.chain(head, lines)
    if head[-1].lstrip()[0] in "{[":
        if chains is not None and chains.optional and f'"{_HASHES}"' not in head[-1]:
            chains = None
        return _MOONCAKE, _json_rows(path, every, chains), chains
    records = _csv_records(path, every)
    first = next(records, None)
    if first is None:  # the line held nothing but quotes
        raise TraceError(f"{path}: the file is empty")
    header = [name.strip() for name in first[1]]
    form = _recognise(path, first[0], header)
    if chains is not None and not chains.optional:
        raise TraceError(
            f"{path}:{first[0]}: {form.name} traces have no hash chains, which a prefix cache needs; allowed "
            f"JSON lines as Mooncake's, with {_HASHES}"
        )
    return form, _csv_rows(path, form, header, records), None


# ---- CSV


def _csv_records(path: str, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """The records that are not blank, each with the line on which it begins."""
    reader = csv.reader(lines, strict=True, skipinitialspace=True)
    begin = 1
    try:
        for record in reader:
            if len(record) > 1 or (record and record[0].strip()):
                yield begin, record
            begin = reader.line_num + 1
    except csv.Error as error:
        raise TraceError(f"{path}:{begin}: not CSV: {error}") from error


def _csv_rows(
    path: str, form: _Format, header: list[str], records: Iterator[tuple[int, list[str]]]
) -> Iterator[_Row]:
    width = len(header)
    prompt, output = header.index(form.prompt), header.index(form.output)
    time = header.index(form.time) if form.time in header else None
    for line, record in records:
        if len(record) != width:
            raise TraceError(
                f"{path}:{line}: number of fields = {len(record)}: the header has {width}: "
                f"{_short(','.join(record))}"
            )
        yield (
            line,
            _tokens(path, line, form.prompt, record[prompt]),
            _tokens(path, line, form.output, record[output]),
            None if time is None else record[time].strip(),
            None,
        )


def _tokens(path: str, line: int, column: str, text: str) -> int:
    digits = text.strip()
    # `int` alone would take 1_000, +5 and the digits of other scripts.
    if digits.isascii() and digits.isdigit() and len(digits) <= 20:
        tokens = int(digits)
        if tokens <= MAX_TOKENS:
            return tokens
    raise _bad(path, line, column, text, f"allowed an integer from 0 to {MAX_TOKENS}")


def _recognise(path: str, line: int, header: list[str]) -> _Format:
    found = [form for form in _CSV if form.prompt in header and form.output in header]
    if len(found) == 1:
        form = found[0]
        for name in (form.prompt, form.output, form.time):
            if (times := header.count(name)) > 1:
                raise TraceError(
                    f"{path}:{line}: the header has the column {name} {times} times; allowed once"
                )
        return form
    if found:
        names = " and ".join(form.name for form in found)
        raise TraceError(f"{path}:{line}: the header has the columns of {names}; allowed one of them")

    def likeness(form: _Format) -> float:
        return sum(_nearest(name, header)[0] for name in (form.prompt, form.output, form.time))

    near = max(_CSV, key=likeness)
    lacks = ", ".join(
        f"{name} (the header has {_short(_nearest(name, header)[1])})"
        for name in (near.prompt, near.output)
        if name not in header
    )
    known = ", ".join(f"{form.name} ({form.prompt}, {form.output}, {form.time})" for form in _CSV)
    raise TraceError(
        f"{path}:{line}: unknown header {_short(','.join(header))}; known columns: {known}, or JSON lines as "
        f"{_MOONCAKE.name} ({_MOONCAKE.prompt}, {_MOONCAKE.output}, {_MOONCAKE.time}); nearest: {near.name}, "
        f"for which it lacks {lacks}"
    )


def _nearest(name: str, among: list[str]) -> tuple[float, str]:
    """How alike `name` and the one most like it are (0 to 1), and that one."""
    # Without capitals, because a slip in them alone is the commonest; cut, because the other may be any text.
    alike = difflib.SequenceMatcher(b=name.casefold())

    def ratio(other: str) -> float:
        alike.set_seq1(other[:100].casefold())
        return alike.ratio()

    return max((ratio(other), other) for other in among)


# ---- JSON lines


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return record


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _json_rows(path: str, lines: Iterator[str], chains: ChainReader | None) -> Iterator[_Row]:
    decode = json.JSONDecoder(object_pairs_hook=_object, parse_float=Decimal, parse_constant=_refuse).decode
    form = _MOONCAKE
    for line, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            record = decode(text)
        except (ValueError, ArithmeticError, RecursionError) as error:
            # ArithmeticError: an exponent beyond what Decimal can hold.
            # JSONDecodeError would add a line number of its own, always 1.
            why = getattr(error, "msg", error)
            raise TraceError(
                f"{path}:{line}: not JSON, one object per line: {why}: {_short(text)}"
            ) from error
        if type(record) is not dict:
            raise TraceError(f"{path}:{line}: not JSON, one object per line: {_short(text)}")
        prompt = _json_tokens(path, line, form.prompt, record)
        yield (
            line,
            prompt,
            _json_tokens(path, line, form.output, record),
            _json_text(record[form.time]) if form.time in record else None,
            None if chains is None else _json_hashes(path, line, record, prompt, chains),
        )


def _json_tokens(path: str, line: int, key: str, record: dict[str, object]) -> int:
    if key not in record:
        near = f"; the nearest is {_short(_nearest(key, list(record))[1])}" if record else ""
        raise TraceError(f"{path}:{line}: the key {key} is missing{near}")
    tokens = record[key]
    # `type`, because True is an int to `isinstance`.
    if type(tokens) is not int or not 0 <= tokens <= MAX_TOKENS:
        raise _bad(path, line, key, _json_text(tokens), f"allowed an integer from 0 to {MAX_TOKENS}")
    return tokens


def _json_hashes(
    path: str, line: int, record: dict[str, object], prompt: int, chains: ChainReader
) -> list[int]:
    if _HASHES not in record:
        raise TraceError(f"{path}:{line}: the key {_HASHES} is missing, which a prefix cache needs")
    hashes = record[_HASHES]
    if not isinstance(hashes, list):
        raise _bad(path, line, _HASHES, _json_text(hashes), "allowed a list of integers")
    for number in hashes:
        if type(number) is not int:
            raise _bad(path, line, _HASHES, _json_text(number), "allowed a list of integers")
    if prompt and (fault := chains.check(prompt, len(hashes))):
        raise TraceError(f"{path}:{line}: {_HASHES}: {fault}")
    return hashes


def _json_text(value: object) -> str:
    """The value as JSON writes it: numbers bare, strings in quotes, so that "5" is not taken for a time."""
    if type(value) is int or isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list | dict):
        return "[...]" if isinstance(value, list) else "{...}"
    return json.dumps(value)


# ---- messages


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _bad(path: str, line: int, column: str, value: str | None, why: str) -> TraceError:
    return TraceError(
        f"{path}:{line}: {column} {'is missing' if value is None else f'= {_short(value)}'}: {why}"
    )
