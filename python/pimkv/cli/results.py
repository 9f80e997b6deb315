"""`pimkv results`: what sweeps have stored, listed, shown, compared, exported and removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pimkv.cli.options import json_option, reports_errors
from pimkv.cli.sweep import DEFAULT_STORE

if TYPE_CHECKING:
    from pimkv.sweep.store import Row

_KEY_SHOWN = 12
_FIGURES = (
    ("M3 exact GB/s", "exact", "m3_gbps", 1),
    ("M1 exact", "exact", "m1", 4),
    ("controller GB/s", "exact", "controller_gbps", 1),
    ("M3 published GB/s", "published", "m3_gbps", 1),
)

store_option = click.option(
    "--store", default=DEFAULT_STORE, show_default=True, metavar="FILE", help="The store of the sweep."
)


@click.group("results")
def command() -> None:
    """List, show, compare, export or remove what sweeps have stored.

    A point is named by its key, or as much of it as no other point begins with.
    """


@command.command("ls")
@reports_errors
@store_option
@click.option("--failed", is_flag=True, help="Only points whose last run failed.")
@json_option
def ls(store: str, failed: bool, as_json: bool) -> None:
    """List the points with the fields that vary among them."""
    everything = _rows(store)
    rows = [row for row in everything if row.error is not None or not failed]
    varying = _varying(rows, everything)
    if as_json:
        from pimkv.result import dumps

        points = [
            {"key": row.key, "error": row.error, "fields": fields, "figures": _named_figures(row)}
            for row, fields in zip(rows, varying, strict=True)
        ]
        click.echo(dumps(points))
        return
    if not rows:
        click.echo(f"{store} holds no {'failed ' if failed else ''}point")
        return
    from pimkv.report.tables import aligned

    names = list(varying[0])
    lines = [("key", *names, *(title for title, *_ in _FIGURES), "")]
    for row, values in zip(rows, varying, strict=True):
        lines.append(
            (row.key[:_KEY_SHOWN], *(_text(values[n]) for n in names), *_figures(row), _short(row.error))
        )
    click.echo("\n".join(line.rstrip() for line in aligned(lines, left=1 + len(names), indent="")))
    done = sum(row.error is None for row in rows)
    click.echo(f"{len(rows):,} points: {done:,} finished, {len(rows) - done:,} failed")


@command.command("show")
@reports_errors
@click.argument("key")
@store_option
@json_option
def show(key: str, store: str, as_json: bool) -> None:
    """Show one point: config, figures, and when and where it ran."""
    from pimkv.sweep.store import Store

    with Store.open(store, readonly=True) as opened:
        row = opened.find(key)
        facts = opened.run_facts(row.key)
    if as_json:
        from pimkv.result import dumps

        click.echo(dumps({"key": row.key, "config": row.config, "summary": row.summary, "error": row.error}))
        return
    from pimkv.report.tables import aligned
    from pimkv.result import flat
    from pimkv.toml_io import write_toml

    lines = [f"# {row.key}"]
    if facts is not None:
        lines.append(
            f"# {facts.wall_s:.3f} s on {facts.host or 'an unknown host'}, finished {facts.finished}; "
            f"pimkv {facts.pimkv}, numpy {facts.numpy}"
        )
    lines += ["", write_toml(row.config)]
    if row.summary is None:
        lines.append(f"failed: {row.error}")
    else:
        lines += aligned([(name, _text(value)) for name, value in flat(row.summary).items()], indent="")
    click.echo("\n".join(lines))


@command.command("export")
@reports_errors
@store_option
@click.option("--format", "kind", default="csv", show_default=True, metavar="NAME", help="csv or parquet.")
@click.option("--out", metavar="FILE", help="Write here.  [default: stdout, CSV only]")
def export(store: str, kind: str, out: str | None) -> None:
    """Write all finished points as one table, the same bytes however they were run.

    Columns and their order are in docs/formats.md. Failed points have no figures and are left out.
    """
    from pimkv.errors import Problem
    from pimkv.result import write_file
    from pimkv.sweep.table import FORMATS, columns, to_csv, to_parquet
    from pimkv.wording import choose_from, config_error, did_you_mean, nearest

    problems = []
    if kind not in FORMATS:
        hint = did_you_mean(nearest(kind, FORMATS, least=0.01))
        problems.append(Problem("format", kind, f"unknown; {choose_from(FORMATS)}", hint, "--format"))
    if kind == "parquet" and out is None:
        problems.append(Problem("format", kind, "is no text; name a file with --out", flag="--format"))
    if out is not None and not Path(out).absolute().parent.is_dir():
        problems.append(Problem("out", out, "its folder does not exist", flag="--out"))
    elif out is not None and (not out.strip() or Path(out).is_dir()):
        problems.append(Problem("out", out, "must name a file", flag="--out"))
    if problems:
        raise config_error(problems)
    rows = _rows(store)
    table = columns(rows)
    content = to_csv(table) if kind == "csv" else to_parquet(table)
    if out is None:
        click.echo(content, nl=False)
    else:
        write_file(Path(out), content)
    if failed := sum(row.error is not None for row in rows):
        click.echo(f"pimkv results export: {failed:,} failed points left out", err=True)


@command.command("diff")
@reports_errors
@click.argument("a")
@click.argument("b")
@store_option
@json_option
def diff(a: str, b: str, store: str, as_json: bool) -> None:
    """Show in which fields and figures two points differ."""
    from pimkv.sweep.store import Store

    with Store.open(store, readonly=True) as opened:
        one, two = opened.find(a), opened.find(b)
    from pimkv.result import flat

    parts = {
        "config": (flat(one.config), flat(two.config)),
        "summary": (flat(one.summary or {}), flat(two.summary or {})),
        "error": ({"error": one.error}, {"error": two.error}),
    }
    found = {
        part: {name: [x.get(name), y.get(name)] for name in {**x, **y} if x.get(name) != y.get(name)}
        for part, (x, y) in parts.items()
    }
    if as_json:
        from pimkv.result import dumps

        click.echo(dumps({"a": one.key, "b": two.key, **found}))
        return
    from pimkv.report.tables import aligned

    lines = [("", one.key[:_KEY_SHOWN], two.key[:_KEY_SHOWN], "B / A")]
    for fields in found.values():
        lines += [(name, _text(x), _text(y), _ratio(x, y)) for name, (x, y) in fields.items()]
    click.echo("\n".join(aligned(lines, indent="")) if len(lines) > 1 else "the same point")


@command.command("rm")
@reports_errors
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@store_option
@click.option("--failed", is_flag=True, help="All points whose last run failed.")
def rm(keys: Sequence[str], store: str, failed: bool) -> None:
    """Remove points; a sweep would run them again."""
    from pimkv.errors import ConfigError, Problem
    from pimkv.sweep.store import Store, path_mistakes
    from pimkv.wording import config_error

    if not keys and not failed:
        raise config_error([Problem("key", None, "name at least one point, or give --failed")])
    # Removing from what is not there must not make it.
    if problems := path_mistakes(store, readonly=True):
        raise config_error(problems)
    with Store.open(store) as opened:
        doomed = dict.fromkeys(sorted(opened.failed()) if failed else ())
        for key in keys:
            try:
                doomed[opened.find(key).key] = None
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise config_error(problems)
        opened.remove(list(doomed))
    click.echo(f"{len(doomed):,} point{'s' if len(doomed) != 1 else ''} removed from {store}")


def _rows(store: str) -> list[Row]:
    from pimkv.sweep.store import Store

    with Store.open(store, readonly=True) as opened:
        return opened.rows()


def _varying(rows: Sequence[Row], among: Sequence[Row]) -> list[dict[str, Any]]:
    """Of each of `rows` the fields of its config that tell the points in `among` apart."""
    from pimkv.result import flat

    everything = {row.key: flat(row.config) for row in among}
    names = sorted({name for fields in everything.values() for name in fields})
    telling = [name for name in names if _tells(name, list(everything.values()))]
    return [{name: everything[row.key].get(name) for name in telling} for row in rows]


def _tells(name: str, everything: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a field varies, and not only because another one does: its allocator, or its section's preset."""
    having = [fields for fields in everything if name in fields]
    preset = f"{name.partition('.')[0]}.preset"
    if name == preset or preset not in everything[0]:
        return len({fields[name] for fields in having}) > 1
    values: dict[object, set[object]] = {}
    for fields in having:
        values.setdefault(fields[preset], set()).add(fields[name])
    return any(len(of_preset) > 1 for of_preset in values.values())


def _figures(row: Row) -> list[str]:
    from pimkv.report.tables import figure

    summary: Mapping[str, Any] | None = row.summary
    if summary is None:
        return [""] * len(_FIGURES)
    return [figure(summary[part][name], digits) for _, part, name, digits in _FIGURES]


def _named_figures(row: Row) -> dict[str, float | None] | None:
    if row.summary is None:
        return None
    return {f"{part}.{name}": row.summary[part][name] for _, part, name, _ in _FIGURES}


def _text(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:.8g}"
        case _:
            return str(value)


def _ratio(x: object, y: object) -> str:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (x, y))
    return f"{y / x:.4g}" if numbers and x else ""  # type: ignore[operator]


def _short(error: str | None) -> str:
    """The first line of an error, as much as fits a table."""
    line = "" if error is None else error.splitlines()[0]
    return f"{line[:57]}..." if len(line) > 60 else line
