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
import gzip
import io
import itertools
import logging
import os
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from pimkv.errors import InvalidArgument, TraceError
from pimkv.workload.chains import ChainReader, Chains
from pimkv.workload.json_lines import json_rows
from pimkv.workload.synthetic import DEFAULT_RATE, draw_arrivals
from pimkv.workload.table import MAX_TOKENS, Requests, require_int
from pimkv.workload.timestamps import NO_TIME, common_ticks, exact_step, parse, to_steps
from pimkv.workload.trace_formats import CSV, HASHES, MOONCAKE, Format, Row, bad, nearest, short

_LOG = logging.getLogger("pimkv.workload")

_LINE_LIMIT: Final = 1 << 26
"""Bytes of the longest line: a binary file has no lines, and must not be read into memory whole."""


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
            raise TraceError(f"{path}: {HASHES}: {error}") from error
    return trace


def _collect(path: str, form: Format, rows: Iterator[Row], chains: ChainReader | None) -> _Trace:
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
            raise TraceError(f"{path}:{line}: {HASHES}: {fault}")
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
    wrong, right = (one, other) if one[2] == NO_TIME else (other, one)
    return bad(path, wrong[0], column, wrong[1], f"{wrong[2]}, but that of line {right[0]} is {right[2]}")


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
) -> tuple[Format, Iterator[Row], ChainReader | None]:
    head = []
    for line in lines:
        head.append(line)
        if line.strip():
            break
    else:
        raise TraceError(f"{path}: the file is empty")
    every = itertools.chain(head, lines)
    if head[-1].lstrip()[0] in "{[":
        if chains is not None and chains.optional and f'"{HASHES}"' not in head[-1]:
            chains = None
        return MOONCAKE, json_rows(path, every, chains), chains
    records = _csv_records(path, every)
    first = next(records, None)
    if first is None:  # the line held nothing but quotes
        raise TraceError(f"{path}: the file is empty")
    header = [name.strip() for name in first[1]]
    form = _recognise(path, first[0], header)
    if chains is not None and not chains.optional:
        raise TraceError(
            f"{path}:{first[0]}: {form.name} traces have no hash chains, which a prefix cache needs; allowed "
            f"JSON lines as Mooncake's, with {HASHES}"
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
    path: str, form: Format, header: list[str], records: Iterator[tuple[int, list[str]]]
) -> Iterator[Row]:
    width = len(header)
    prompt, output = header.index(form.prompt), header.index(form.output)
    time = header.index(form.time) if form.time in header else None
    for line, record in records:
        if len(record) != width:
            raise TraceError(
                f"{path}:{line}: number of fields = {len(record)}: the header has {width}: "
                f"{short(','.join(record))}"
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
    raise bad(path, line, column, text, f"allowed an integer from 0 to {MAX_TOKENS}")


def _recognise(path: str, line: int, header: list[str]) -> Format:
    found = [form for form in CSV if form.prompt in header and form.output in header]
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

    def likeness(form: Format) -> float:
        return sum(nearest(name, header)[0] for name in (form.prompt, form.output, form.time))

    near = max(CSV, key=likeness)
    lacks = ", ".join(
        f"{name} (the header has {short(nearest(name, header)[1])})"
        for name in (near.prompt, near.output)
        if name not in header
    )
    known = ", ".join(f"{form.name} ({form.prompt}, {form.output}, {form.time})" for form in CSV)
    raise TraceError(
        f"{path}:{line}: unknown header {short(','.join(header))}; known columns: {known}, or JSON lines as "
        f"{MOONCAKE.name} ({MOONCAKE.prompt}, {MOONCAKE.output}, {MOONCAKE.time}); nearest: {near.name}, "
        f"for which it lacks {lacks}"
    )
