"""Request traces: every format reads exactly, and every malformed line is named."""

from __future__ import annotations

import csv
import gzip
import io
import json
import logging
import math
import os
import pickle
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimkv.errors import InvalidArgument, TraceError
from pimkv.workload import MAX_STEP, MAX_TOKENS, Requests, draw_arrivals, read_trace, traces

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
VIDUR = "num_prefill_tokens,num_decode_tokens,arrived_at"
SERVINGSIM = "input_toks,output_toks,arrival_time_ns"


def read(path: Path, **options: Any) -> Requests:
    defaults: dict[str, Any] = {"step_ms": 30, "requests": None, "arrival_rate": None, "seed": 0}
    return read_trace(path, **(defaults | options))


def columns(requests: Requests) -> list[list[int]]:
    return [requests.arrival.tolist(), requests.prompt.tolist(), requests.output.tolist()]


def drawn(n: int, rate: float = 0.25, seed: int = 0) -> list[int]:
    return draw_arrivals(np.random.default_rng(seed), n, rate).tolist()


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write lines (or bytes as they are) to a file whose name says nothing about its content."""

    def to_file(*lines: str, data: bytes | None = None) -> Path:
        path = tmp_path / "trace"
        path.write_bytes("".join(f"{line}\n" for line in lines).encode() if data is None else data)
        return path

    return to_file


def mooncake(stamp: Any, prompt: Any, output: Any) -> str:
    return json.dumps(
        {"timestamp": stamp, "input_length": prompt, "output_length": output, "hash_ids": [0, 1]}
    )


# ---- the formats


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([AZURE, "0.00,374,44", "0.09,396,109", "0.1,879,55"], id="azure-seconds"),
        pytest.param(
            [
                AZURE,
                "2023-11-16 23:59:59.9500000,374,44",
                "2023-11-17 00:00:00.0400000,396,109",
                "2023-11-17 00:00:00.05,879,55",
            ],
            id="azure-date-time",
        ),
        pytest.param(
            [
                AZURE,
                "2024-05-10 00:00:00+00:00,374,44",
                "2024-05-10T02:00:00.090000+02:00,396,109",
                "2024-05-09 18:30:00.1000-0530,879,55",
            ],
            id="azure-time-zones",
        ),
        pytest.param([VIDUR, "374,44,7.5", "396,109,7.59", "879,55,76e-1"], id="vidur"),
        pytest.param([SERVINGSIM, "374,44,1000", "396,109,90001000", "879,55,100001000"], id="llmservingsim"),
        pytest.param(
            [mooncake(3000, 374, 44), mooncake(3090, 396, 109), mooncake(3100.25, 879, 55)], id="mooncake"
        ),
    ],
)
def test_every_format_gives_the_same_table(write: Write, lines: list[str]) -> None:
    requests = read(write(*lines))
    assert columns(requests) == [[0, 3, 3], [374, 396, 879], [44, 109, 55]]
    assert requests.prefix.tolist() == [-1, -1, -1]
    assert (requests.prefix_tokens, requests.skipped) == (0, 0)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "a,GeneratedTokens,TIMESTAMP,b,ContextTokens\nx,2,0,y,1\nx,4,60e-3,,3\n", id="order-extra"
        ),
        pytest.param("TIMESTAMP , ContextTokens, GeneratedTokens\n 0 , 1 , 2 \n 0.060, 3,4\n", id="spaces"),
        pytest.param("\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\n0,1,2\n0.06,3,4\n", id="bom"),
        pytest.param("TIMESTAMP,ContextTokens,GeneratedTokens\r\n0,1,2\r\n0.06,3,4", id="crlf-no-last-end"),
        pytest.param(
            "\n  \nTIMESTAMP,ContextTokens,GeneratedTokens\n\n0,1,2\n \t\n0.06,3,4\n\n", id="blanks"
        ),
        pytest.param(
            'TIMESTAMP,"ContextTokens",GeneratedTokens,t\n0,"1",2,"a\n,""b"\n0.06,3,4,c\n', id="quotes"
        ),
        pytest.param("TIMESTAMP,ContextTokens,GeneratedTokens\n0,0001,2\n0.06,003,4\n", id="leading-zeros"),
        pytest.param(f"\ufeff\r\n{mooncake(5, 1, 2)}\r\n\r\n  {mooncake(65.0, 3, 4)}", id="json"),
    ],
)
def test_layout_does_not_matter(write: Write, text: str, pack: Callable[[bytes], bytes]) -> None:
    assert columns(read(write(data=pack(text.encode())))) == [[0, 2], [1, 3], [2, 4]]


def test_gzip_of_several_members_reads_as_one(write: Write) -> None:
    data = gzip.compress(f"{AZURE}\n0,1,2\n".encode()) + gzip.compress(b"0.06,3,4\n")
    assert columns(read(write(data=data))) == [[0, 2], [1, 3], [2, 4]]


def test_further_json_keys_do_not_matter(write: Write) -> None:
    line = (
        '{"session": null, "output_length": 2, "timestamp": 0, "input_length": 1, "ids": [[1.5], {"a": 1}]}'
    )
    assert columns(read(write(line))) == [[0], [1], [2]]


def test_the_table_pickles(write: Write) -> None:
    requests = read(write(AZURE, "0,1,2"))
    assert columns(pickle.loads(pickle.dumps(requests))) == columns(requests)


# ---- time stamps


def test_requests_are_ordered_by_time_stamp_and_ties_as_in_the_file(write: Write) -> None:
    path = write(AZURE, "0.3,1,1", "0.1,2,1", "0.3,3,1", "0.1,4,1", "0.2,5,1")
    assert columns(read(path, step_ms=100))[:2] == [[0, 0, 1, 2, 2], [2, 4, 5, 1, 3]]
    # The first N in time, not the first N in the file.
    assert columns(read(path, step_ms=100, requests=3))[:2] == [[0, 0, 1], [2, 4, 5]]


@pytest.mark.parametrize(
    ("step_ms", "stamps", "arrivals"),
    [
        # In binary floating point 0.3 / 0.1 is 2.99..., and so is (0.8 - 0.5) / 0.1.
        (0.1, ["0", "0.0003"], [0, 3]),
        (100, ["0.5", "0.8"], [0, 3]),
        (0.5, ["-1", "-0.5"], [0, 1000]),
        (1e-06, ["1700000000.000000001", "1700000000.000000003"], [0, 2]),
        (1e-06, ["1700000000", "1700000000.0000000009999999"], [0, 0]),
        (0.0001, ["2023-11-16 18:15:46.6805900", "2023-11-16 18:15:46.6805901"], [0, 1]),
        (1, ["2023-11-16 18:15:46.680590099", "2023-11-16 18:15:46.681590098"], [0, 0]),
        (1, ["2023-11-16 18:15:46.680590099", "2023-11-16 18:15:46.681590099"], [0, 1]),
        (86_400_000, ["2024-02-28 00:00:00Z", "2024-03-01 00:00:00Z"], [0, 2]),
        (86_400_000, ["2023-02-28 00:00:00", "2023-03-01 00:00:00"], [0, 1]),
        (1000, ["2023-01-01 00:00:00 +00:00", "2022-12-31T23:00:01-01:00"], [0, 1]),
        (Fraction(1, 3), ["0", "0.001"], [0, 3]),
        (np.float64(0.1), ["0", "0.0003"], [0, 3]),
        (np.float32(0.1), ["0", "0.0003"], [0, 3]),
    ],
)
def test_arrivals_are_exact(write: Write, step_ms: float, stamps: list[str], arrivals: list[int]) -> None:
    path = write(AZURE, *(f"{stamp},1,1" for stamp in stamps))
    assert read(path, step_ms=step_ms).arrival.tolist() == arrivals


@given(
    stamps=st.lists(st.decimals(0, 10**6, places=9) | st.decimals(-5, 5, places=3), min_size=1, max_size=20),
    step_ms=st.decimals("0.001", 1000, places=3),
    unit=st.sampled_from(["s", "ms", "ns"]),
)
def test_arrivals_equal_those_in_fractions(
    tmp_path_factory: pytest.TempPathFactory, stamps: list[Any], step_ms: Any, unit: str
) -> None:
    if unit == "ms":
        lines = [
            f'{{"timestamp": {s:f}, "input_length": {i}, "output_length": 1}}'
            for i, s in enumerate(stamps, 1)
        ]
    else:
        header = AZURE if unit == "s" else "arrival_time_ns,input_toks,output_toks"
        lines = [header, *(f"{s},{i},1" for i, s in enumerate(stamps, 1))]
    path = tmp_path_factory.getbasetemp() / "fractions"
    path.write_text("\n".join(lines))

    per_ms = {"s": 1000, "ms": 1, "ns": Fraction(1, 10**6)}[unit]
    ms = [Fraction(s) * per_ms for s in stamps]
    order = sorted(range(len(ms)), key=ms.__getitem__)
    expected = [math.floor((ms[i] - min(ms)) / Fraction(step_ms)) for i in order]
    requests = read(path, step_ms=float(step_ms))
    assert requests.arrival.tolist() == expected
    assert requests.prompt.tolist() == [i + 1 for i in order]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(["ContextTokens,GeneratedTokens", "5,1", "6,1", "7,1"], id="azure-no-column"),
        pytest.param(["num_prefill_tokens,num_decode_tokens", "5,1", "6,1", "7,1"], id="vidur-no-column"),
        pytest.param(["output_toks,input_toks", "1,5", "1,6", "1,7"], id="llmservingsim-no-column"),
        pytest.param([AZURE, "XXX,5,1", "XXX,6,1", "XXX,7,1"], id="all-xxx"),
        pytest.param([AZURE, ",5,1", "yesterday,6,1", "16/11/2023,7,1"], id="nothing-parses"),
        pytest.param([mooncake(None, 5, 1), mooncake("3", 6, 1), mooncake([], 7, 1)], id="json-no-times"),
        pytest.param(
            [f'{{"input_length": {n}, "output_length": 1}}' for n in (5, 6, 7)], id="mooncake-no-key"
        ),
    ],
)
def test_without_time_stamps_arrivals_are_drawn(write: Write, lines: list[str]) -> None:
    path = write(*lines)
    assert columns(read(path)) == [drawn(3), [5, 6, 7], [1, 1, 1]]
    assert columns(read(path, seed=7, requests=2)) == [drawn(2, seed=7), [5, 6], [1, 1]]
    assert read(path, arrival_rate=3.0).arrival.tolist() == drawn(3, rate=3.0)


def test_a_rate_replaces_time_stamps_and_keeps_their_order(write: Write) -> None:
    path = write(AZURE, "2,5,1", "1,6,1", "3,7,1")
    assert columns(read(path, arrival_rate=0.5, seed=4)) == [drawn(3, 0.5, 4), [6, 5, 7], [1, 1, 1]]


# What is not a time.
NO_TIMES = [
    "XXX",
    "",
    "nan",
    "inf",
    "1_000",
    "0x10",
    "1e100",
    "٣",  # a digit, but not of ASCII
    "1" * 41,
    "2023-13-01 00:00:00",
    "2023-02-29 00:00:00",
    "2023-11-16 24:00:00",
    "2023-11-16 18:15:60",
    "2023-11-16",
    "2023-11-16 18:15",
    "2023-11-16 18:15:46+24:00",
    "2023-11-16 18:15:46+00:60",
    "0000-01-01 00:00:00",
]


@pytest.mark.parametrize("bad", NO_TIMES)
@pytest.mark.parametrize("first", [True, False])
def test_a_mix_of_times_and_none_names_the_line_that_is_none(write: Write, bad: str, first: bool) -> None:
    good, line = ["1,5,1", "2,6,1"], 2 if first else 4
    lines = [f"{bad},7,1", *good] if first else [*good, f"{bad},7,1"]
    path = write(AZURE, *lines)
    shown = bad if len(bad) <= 80 else bad[:77] + "..."
    message = (
        f"{path}:{line}: TIMESTAMP = {shown!r}: not a time, but that of line {3 if first else 2} is a number"
    )
    for rate in (None, 0.5):
        with pytest.raises(TraceError, match=f"^{re.escape(message)}$"):
            read(path, arrival_rate=rate)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            [AZURE, "1,5,1", "2023-11-16 18:15:46,6,1"],
            ":3: TIMESTAMP = '2023-11-16 18:15:46': a date-time without time zone, but that of line 2 is "
            "a number",
        ),
        (
            [AZURE, "2023-11-16 18:15:46,5,1", "2023-11-16 18:15:46Z,6,1"],
            ":3: TIMESTAMP = '2023-11-16 18:15:46Z': a date-time with time zone, but that of line 2 is a "
            "date-time without time zone",
        ),
        # A skipped request is still read.
        ([AZURE, "1,5,1", "XXX,0,1"], ":3: TIMESTAMP = 'XXX': not a time, but that of line 2 is a number"),
        (
            [mooncake(1, 5, 1), mooncake(True, 6, 1)],
            ":2: timestamp = 'true': not a time, but that of line 1 is a number",
        ),
        (
            ['{"input_length": 5, "output_length": 1}', mooncake(1, 5, 1)],
            ":1: timestamp is missing: not a time, but that of line 2 is a number",
        ),
    ],
)
def test_time_stamps_of_two_kinds_are_refused(write: Write, lines: list[str], message: str) -> None:
    path = write(*lines)
    with pytest.raises(TraceError, match=f"^{re.escape(str(path) + message)}$"):
        read(path)


def test_time_stamps_too_far_apart_are_refused(write: Write) -> None:
    path = write(AZURE, "0,1,1", "1e9,1,1")
    assert read(path, step_ms=0.001).arrival[-1] == 10**15
    with pytest.raises(
        TraceError, match=f"^step_ms = 1e-05: .* decode step 1{'0' * 17}; allowed up to {MAX_STEP}"
    ):
        read(path, step_ms=0.00001)
    # Only the requests taken count.
    assert len(read(path, step_ms=0.00001, requests=1)) == 1


# ---- skipped requests, and how many are taken


def test_requests_without_tokens_are_skipped_and_logged_once(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(AZURE, "0,0,9", "0.9,1,1", "", "1.2,5,0", "1.3,0,0", "1.5,2,2")
    requests = read(path)
    # Neither the time nor the place of a skipped request counts.
    assert columns(requests) == [[0, 20], [1, 2], [1, 2]]
    assert requests.skipped == 3
    [record] = caplog.records
    assert (record.name, record.levelno) == ("pimkv.workload", logging.WARNING)
    assert record.getMessage() == (
        f"{path}:2: the first of 3 requests skipped for 0 ContextTokens or 0 GeneratedTokens"
    )


def test_skipped_requests_of_the_whole_file_count(write: Write) -> None:
    path = write(mooncake(0, 1, 1), mooncake(1, 2, 2), mooncake(2, 0, 3))
    assert read(path, requests=1).skipped == 1


def test_nothing_is_logged_for_a_clean_trace(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    read(write(AZURE, "XXX,1,1"))
    assert not caplog.records


@pytest.mark.parametrize("rows", [1, 5])
def test_of_a_short_trace_all_run_with_a_warning(
    write: Write, rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(AZURE, *(f"{i},1,1" for i in range(rows)))
    assert len(read(path, requests=rows)) == rows
    assert not caplog.records
    assert len(read(path, requests=1000)) == rows
    assert f"asked for 1000 requests, the trace has {rows} usable" in caplog.text


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("step_ms", [0, 0.0, -1, math.nan, math.inf, 1e13, 10**40, True, "30", None]),
        ("requests", [0, -1, True, 1.0, "1"]),
        ("seed", [-1, True, 0.0, None]),
        ("arrival_rate", [0, -1.0, math.nan, math.inf, True, "1"]),
    ],
)
def test_options_out_of_range_are_refused(write: Write, name: str, values: list[Any]) -> None:
    path = write(AZURE, "0,1,1")
    for value in values:
        with pytest.raises(InvalidArgument, match=f"^{name} = {re.escape(repr(value))}: allowed "):
            read(path, **{name: value})


# ---- malformed files


def refused(path: Path, message: str) -> None:
    with pytest.raises(TraceError, match=f"^{re.escape(str(path))}{message}"):
        read(path, requests=1)  # the whole file is checked, even so


# Texts that are not a token count.
NO_COUNTS = [
    *("", "-1", "-0", "+1", "3.5", "3.0", "1e3", "1_0", "0x1", "abc", "nan", "True", "1 2", "٣", "²", "½"),
    *(str(MAX_TOKENS + 1), "9" * 19, "9" * 5000),
]


@pytest.mark.parametrize("bad", NO_COUNTS)
@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("header", [AZURE, VIDUR, SERVINGSIM])
def test_csv_token_counts_are_checked(write: Write, header: str, column: int, bad: str) -> None:
    names = [name for name in header.split(",") if not name.lower().startswith(("time", "arriv"))]
    good = dict.fromkeys(header.split(","), "1")
    row = ",".join((good | {names[column]: bad}).values())
    path = write(header, ",".join(good.values()), "", row)
    shown = bad if len(bad) <= 80 else bad[:77] + "..."
    refused(
        path, re.escape(f":4: {names[column]} = {shown!r}: allowed an integer from 0 to 2147483648") + "$"
    )


def test_the_largest_token_counts_are_taken(write: Write) -> None:
    assert columns(read(write(AZURE, f"0,{MAX_TOKENS},{MAX_TOKENS}")))[1:] == [[MAX_TOKENS], [MAX_TOKENS]]
    assert columns(read(write(mooncake(0, MAX_TOKENS, 1))))[1:] == [[MAX_TOKENS], [1]]


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        ("-1", "-1"),
        ("3.5", "3.5"),
        ("3.0", "3.0"),
        ("1e2", "1E+2"),
        ("true", "true"),
        ("null", "null"),
        ('"5"', '"5"'),
        ("[1]", "[...]"),
        ('{"a": 1}', "{...}"),
        (str(MAX_TOKENS + 1), str(MAX_TOKENS + 1)),
        ("9" * 90, "9" * 77 + "..."),
        ('"' + "x" * 90 + '"', '"' + "x" * 76 + "..."),
    ],
)
@pytest.mark.parametrize("key", ["input_length", "output_length"])
def test_json_token_counts_are_checked(write: Write, key: str, bad: str, shown: str) -> None:
    line = mooncake(1, 1, 1).replace(f'"{key}": 1', f'"{key}": {bad}')
    path = write(mooncake(0, 1, 1), line)
    refused(path, re.escape(f":2: {key} = {shown!r}: allowed an integer from 0 to 2147483648") + "$")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,2", ":3: number of fields = 2: the header has 3: '1,2'$"),
        ("1", ":3: number of fields = 1: the header has 3: '1'$"),
        ("1,2,3,", ":3: number of fields = 4: the header has 3: '1,2,3,'$"),
        (",,", ":3: ContextTokens = '': allowed"),
        ('1,2,"3', ":3: not CSV: "),
        ('1,"2"x,3', ":3: not CSV: "),
        ("1,2\r,3", ":3: not CSV: "),
        (f'1,2,"{"x" * 200_000}"', ":3: not CSV: field larger than field limit"),
    ],
)
def test_broken_csv_lines_are_named(write: Write, row: str, message: str) -> None:
    refused(write(AZURE, "0,1,1", row, "2,1,1"), message)


def test_a_line_number_counts_the_lines_inside_a_quoted_field(write: Write) -> None:
    refused(write(f"{AZURE},text", '0,1,1,"a', "", 'b"', "1,x,1,c"), ":5: ContextTokens = 'x'")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"timestamp": 1, ', ":2: not JSON, one object per line: Expecting property name"),
        (mooncake(1, 1, 1) + mooncake(2, 1, 1), ":2: not JSON, one object per line: Extra data: '{"),
        (mooncake(math.nan, 1, 1), ":2: not JSON, one object per line: NaN is not JSON: '{"),
        (mooncake(-math.inf, 1, 1), ":2: not JSON, one object per line: -Infinity is not JSON: '{"),
        ('{"input_length": 1, "input_length": 2}', ":2: not JSON, one object per line: a key occurs twice"),
        ("[" * 100_000, ":2: not JSON, one object per line: maximum recursion depth"),
        ('{"timestamp": 1e9999999999999999999}', ":2: not JSON, one object per line: "),
        ('{"timestamp": ' + "9" * 5000 + "}", ":2: not JSON, one object per line: Exceeds the limit"),
        ("[1, 2, 3]", r":2: not JSON, one object per line: '\[1, 2, 3\]'$"),
        ("17", ":2: not JSON, one object per line: '17'$"),
        ("null", ":2: not JSON, one object per line: 'null'$"),
        (AZURE, ":2: not JSON, one object per line: Expecting value: 'TIMESTAMP,"),
        ("{}", ":2: the key input_length is missing$"),
        (
            '{"timestamp": 1, "input_lenght": 1, "output_length": 1}',
            ":2: the key input_length is missing; the nearest is 'input_lenght'$",
        ),
        (
            '{"timestamp": 1, "input_length": 1}',
            ":2: the key output_length is missing; the nearest is 'input_l",
        ),
    ],
)
def test_broken_json_lines_are_named(write: Write, line: str, message: str) -> None:
    refused(write(mooncake(0, 1, 1), line), message)


def test_a_json_array_is_named_on_its_first_line(write: Write) -> None:
    refused(write(f"[{mooncake(0, 1, 1)}]"), ":1: not JSON, one object per line: '")
    refused(write("{", '"timestamp": 1}'), ":1: not JSON, one object per line: Expecting property name")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("a,b,c", ":1: unknown header 'a,b,c'; known columns: Azure .*Vidur .*LLMServingSim .*Mooncake "),
        (
            "timestamp,contexttokens,generatedtokens",
            r".*nearest: Azure, for which it lacks ContextTokens \(the header has 'contexttokens'\), "
            r"GeneratedTokens \(the header has 'generatedtokens'\)$",
        ),
        (
            "num_prefill_tokens,num_decode_token,arrived_at",
            r".*nearest: Vidur, for which it lacks num_decode_tokens \(the header has 'num_decode_token'\)$",
        ),
        ("input_toks,arrival_time_ns", ".*nearest: LLMServingSim, for which it lacks output_toks "),
        ("TIMESTAMP;ContextTokens;GeneratedTokens", ".*unknown header .*nearest: Azure"),
        ("0,374,44", ".*unknown header '0,374,44'"),
        ("x" * 1000, f":1: unknown header '{'x' * 77}[.]{{3}}';"),
        (
            "ContextTokens,GeneratedTokens,ContextTokens",
            ":1: the header has the column ContextTokens 2 times; allowed once$",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens,TIMESTAMP",
            ":1: the header has the column TIMESTAMP 2 times",
        ),
        (
            "ContextTokens,GeneratedTokens,input_toks,output_toks",
            ":1: the header has the columns of Azure and LLMServingSim; allowed one of them$",
        ),
    ],
)
def test_unknown_headers_are_named(write: Write, header: str, message: str) -> None:
    refused(write(header, "1,1,1"), message)


@pytest.mark.parametrize("data", [b"", b"\n\r\n  \n", b"\xef\xbb\xbf", b'""\n', gzip.compress(b"")])
def test_an_empty_file_is_refused(write: Write, data: bytes) -> None:
    refused(write(data=data), ": the file is empty$")


def test_a_header_alone_is_refused(write: Write) -> None:
    refused(write(AZURE, "", ""), ": no requests after the header$")


def test_a_trace_of_skipped_requests_alone_is_refused(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    message = ":3: no usable request: all 2 have 0 ContextTokens or 0 GeneratedTokens$"
    refused(write(AZURE, "", "0,0,1", "1,1,0"), message)
    refused(write(mooncake(0, 1, 0)), ":1: no usable request: all 1 have 0 input_length or 0 output_length$")
    assert not caplog.records


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"0,1,1\n1,1,\x001\n", ":3: a null byte: not a text file$"),
        (b"0,1,1\n1,1,\xff1\n", ":3: byte 5 is 0xff: not UTF-8$"),
        (b"0,1,1\n\n1,1,1\xc3", ":4: byte 6 is 0xc3: not UTF-8$"),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_bytes_that_are_no_text_are_named(
    write: Write, data: bytes, message: str, pack: Callable[[bytes], bytes]
) -> None:
    refused(write(data=pack(AZURE.encode() + b"\n" + data)), message)


@pytest.mark.parametrize("data", [f"{AZURE}\n0,1,1".encode("utf-16"), b"\x7fELF\x00\x00", b"PK\x03\x04\xff"])
def test_other_files_are_refused_on_their_first_line(write: Write, data: bytes) -> None:
    refused(write(data=data), ":1: ")


def test_truncated_and_damaged_gzip_is_refused(write: Write) -> None:
    rows = "".join(f"{i},{i * 7919 % 977 + 1},{i * 104729 % 991 + 1}\n" for i in range(5000))
    packed = gzip.compress(f"{AZURE}\n{rows}".encode())
    for cut in (2, 5, 12, len(packed) // 2, len(packed) - 1):
        refused(write(data=packed[:cut]), r":\d+: gzip data truncated or damaged: ")
    middle = len(packed) // 2
    damaged = packed[:middle] + bytes(b ^ 0x55 for b in packed[middle : middle + 40]) + packed[middle + 40 :]
    with pytest.raises(TraceError):  # whichever is found first: the damage, or a line it made
        read(write(data=damaged))
    refused(write(data=packed[:-8] + b"\0" * 8), r":5002: gzip data truncated or damaged: CRC check failed")
    refused(write(data=packed + b"more"), r":5002: gzip data truncated or damaged: Not a gzipped file")


@given(
    data=st.binary(max_size=200), head=st.sampled_from([b"", AZURE.encode() + b"\n", b"{", b"\x1f\x8b\x08\0"])
)
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, head: bytes, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(head + data)
    try:
        read(path)
    except TraceError as error:
        message = str(error)
    else:
        return
    assert message.startswith(f"{path}:")


def test_a_line_without_end_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_LINE_LIMIT", 1000)
    refused(write(AZURE, "x" * 1001), ":2: a line of 1000 bytes or more$")


def test_files_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    refused(tmp_path / "none.csv", ": cannot be read: No such file or directory$")
    refused(tmp_path, ": cannot be read: Is a directory$")
    with pytest.raises(TraceError, match="a null byte cannot be part of a file name"):
        read(Path("a\0b"))


def test_a_file_without_permission_is_named(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(AZURE, "0,1,1")

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    # By the call, because for the superuser no file lacks permission.
    monkeypatch.setattr(traces, "open", denied, raising=False)
    refused(path, ": cannot be read: Permission denied$")


# ---- real traces


@pytest.fixture(scope="module")
def shared_traces() -> Path:
    """The folder of real traces, which is never part of the repository."""
    default = Path(__file__).resolve().parents[1].parent / "shared"
    folder = Path(os.environ.get("PIMKV_SHARED", default)) / "traces"
    if not folder.is_dir():
        pytest.skip("no shared traces: set PIMKV_SHARED to the folder that holds `traces/`")
    return folder


# Rows as the folder's source list gives them; first and last arrival at 30 ms per step, None where the trace
# has no times; first and last request in order of time.
REAL = [
    ("azure2023_conv.csv", 19_366, [0, 116_724], (374, 44), (197, 183)),
    ("mooncake_conversation.jsonl.gz", 12_031, [0, 117_899], (6758, 500), (20774, 508)),
    ("agent_miniswe.jsonl.gz", 402, [0, 1517], (1408, 93), (6638, 100)),
    ("sharegpt_v3_firstturn.csv.gz", 58_787, None, (42, 285), (17, 310)),
    ("sharegpt4_multiturn_8k.csv.gz", 30_731, None, (74, 918), (2285, 363)),
    ("arxiv_summarization_4k.csv.gz", 28_257, None, (3772, 54), (3178, 313)),
]


@pytest.mark.parametrize(("name", "rows", "ends", "head", "tail"), REAL, ids=[row[0] for row in REAL])
def test_real_traces_read_whole(
    shared_traces: Path,
    *,
    name: str,
    rows: int,
    ends: list[int] | None,
    head: tuple[int, int],
    tail: tuple[int, int],
) -> None:
    requests = read(shared_traces / name)
    assert (len(requests) + requests.skipped, requests.skipped) == (rows, 0)
    assert (np.diff(requests.arrival) >= 0).all()
    assert requests.arrival[[0, -1]].tolist() == (ends or [drawn(rows)[0], drawn(rows)[-1]])
    assert (requests.prompt[0], requests.output[0]) == head
    assert (requests.prompt[-1], requests.output[-1]) == tail


@pytest.mark.parametrize("name", [row[0] for row in REAL])
def test_real_traces_equal_a_plain_reading(shared_traces: Path, name: str) -> None:
    data = (shared_traces / name).read_bytes()
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    if "jsonl" in name:
        records = sorted((json.loads(line) for line in text.splitlines()), key=lambda r: r["timestamp"])
        rows = [(r["input_length"], r["output_length"]) for r in records]
    else:
        keys = (
            ("ContextTokens", "GeneratedTokens")
            if "ContextTokens" in text
            else ("num_prefill_tokens", "num_decode_tokens")
        )
        rows = [(int(r[keys[0]]), int(r[keys[1]])) for r in csv.DictReader(io.StringIO(text))]
    requests = read(shared_traces / name)
    assert list(zip(requests.prompt.tolist(), requests.output.tolist(), strict=True)) == rows
