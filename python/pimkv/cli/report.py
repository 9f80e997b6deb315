"""`pimkv report`: figures and one self-contained page from what was stored, recorded and measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from pimkv.cli.options import json_option, out_folder, reports_errors

if TYPE_CHECKING:
    from pimkv.sweep.store import Row

Argument = TypeVar("Argument")
Read = TypeVar("Read")


@click.command("report")
@reports_errors
@click.argument("store", required=False, metavar="[STORE]")
@click.option(
    "--placement",
    "--placements",
    "placements",
    multiple=True,
    metavar="FILE",
    help="Placement of pimkv run --record-placement, for the row map; may be repeated.",
)
@click.option("--cost", metavar="FILE", help="Times of pimkv bench cost --json, for the cost figure.")
@click.option("--out", metavar="DIR", help="Write the page and the figures here.")
@json_option
def command(
    store: str | None, placements: tuple[str, ...], cost: str | None, out: str | None, as_json: bool
) -> None:
    """Draw figures (PDF, PNG) and one HTML page with tables, figures and the row map.

    STORE is a store of pimkv sweep. Figures that it has no points for are left out, and it is said which sweep
    makes them. The same files give the same report, byte for byte.
    """
    from pimkv.errors import ConfigError
    from pimkv.placement import read_placement
    from pimkv.report.assemble import PAGE, build
    from pimkv.report.cost_figure import read_cost
    from pimkv.report.rowmap import Recording
    from pimkv.result import dumps
    from pimkv.sweep.store import Store

    def stored(path: str) -> list[Row]:
        with Store.open(path, readonly=True) as opened:
            return opened.rows()

    mistakes: list[str] = []
    folder = _tried(mistakes, _folder, out)
    if store is None and not placements and cost is None:
        mistakes.append("nothing to report: name a STORE, --placement FILE or --cost FILE")
    rows = None if store is None else _tried(mistakes, stored, store)
    read = [(Path(path).name, _tried(mistakes, read_placement, path)) for path in placements]
    table = None if cost is None else _tried(mistakes, read_cost, cost)
    if mistakes or folder is None:
        raise ConfigError("\n".join(mistakes))

    report = build(
        store=None if store is None else Path(store).name,
        rows=rows or (),
        recordings=[Recording(name, placement) for name, placement in read if placement is not None],
        cost=table,
    )
    _write(folder, report.files)
    if as_json:
        click.echo(dumps({"page": PAGE, "files": list(report.files), "left_out": report.left_out}))
        return
    for file in report.files:
        click.echo(str(folder / file))
    for line in report.left_out:
        click.echo(f"left out: {line}")


def _folder(out: str | None) -> Path:
    folder = out_folder(out)
    if folder is None:
        from pimkv.errors import Problem
        from pimkv.wording import config_error

        raise config_error([Problem("out", None, "names no folder to write to", flag="--out")])
    return folder


def _tried(mistakes: list[str], read: Callable[[Argument], Read], argument: Argument) -> Read | None:
    """What `read` gives; None where it cannot be read, with the reason added to the mistakes."""
    from pimkv.errors import ConfigError, LogError

    try:
        return read(argument)
    except (ConfigError, LogError) as error:
        mistakes.append(str(error))
        return None


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    from pimkv.errors import Problem
    from pimkv.result import write_file
    from pimkv.wording import config_error

    try:
        for file, content in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            write_file(folder / file, content)
    except OSError as error:
        problem = Problem("out", str(folder), error.strerror or "cannot be written", flag="--out")
        raise config_error([problem]) from error
