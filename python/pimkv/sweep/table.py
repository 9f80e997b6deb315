"""Rows of a store as one flat table, for files and data frames: the same bytes however the points were run."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from pimkv.result import flat, imported
from pimkv.sweep.store import Row

FORMATS = ("csv", "parquet")


def columns(rows: Iterable[Row]) -> dict[str, list[Any]]:
    """The finished points of `rows`, in their order: name -> values, None where a point has none.

    `key`, then the fields of the resolved config (`config.scheduler.headroom`), then the figures of the summary
    (`exact.m3_gbps`), both in alphabetical order. A column without a value in any row is left out.
    """
    keys, configs, summaries = [], [], []
    for row in rows:
        if row.summary is not None:
            keys.append(row.key)
            configs.append(flat(row.config, "config."))
            summaries.append(flat(row.summary))
    table: dict[str, list[Any]] = {"key": keys}
    for part in (configs, summaries):
        for name in sorted({name for values in part for name in values}):
            column = [values.get(name) for values in part]
            if any(value is not None for value in column):
                table[name] = column
    return table


def to_csv(table: dict[str, list[Any]]) -> str:
    """CSV with a header; floats with all their digits, true and false, empty where there is no value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table)
    for row in zip(*table.values(), strict=True):
        writer.writerow(_cell(value) for value in row)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else value


def frame(table: dict[str, list[Any]]) -> Any:
    """A polars DataFrame of typed columns. Raises `MissingExtra` where polars is not installed."""
    polars = imported("polars", "report")
    types = {bool: polars.Boolean, int: polars.Int64, float: polars.Float64, str: polars.String}
    schema = {}
    for name, values in table.items():
        kinds = {type(value) for value in values if value is not None} or {str}
        # A figure that is whole in some rows only is a float in all.
        kind = float if kinds == {int, float} else kinds.pop()
        schema[name] = types[kind]
        if kind is float:
            table = table | {name: [None if value is None else float(value) for value in values]}
    return polars.DataFrame(table, schema=schema)


def to_parquet(table: dict[str, list[Any]]) -> bytes:
    """An Apache Parquet file of `frame`."""
    out = io.BytesIO()
    frame(table).write_parquet(out)
    return out.getvalue()
