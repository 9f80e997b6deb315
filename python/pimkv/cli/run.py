"""`pimkv run`: one simulation."""

from __future__ import annotations

from pathlib import Path

import click

from pimkv.cli.options import (
    Given,
    backend_option,
    config_options,
    file_problems,
    json_option,
    logging_to_stderr,
    out_problems,
    progress,
    quiet_option,
    reports_errors,
)
from pimkv.cli.unused import warn_unused


@click.command("run")
@reports_errors
@config_options()
@backend_option
@click.option("--out", metavar="DIR", help="Write config.toml, summary.json and samples.csv here.")
@click.option(
    "--oplog", metavar="FILE", help="Record what the allocator is asked here (pimkv bench ops --log FILE)."
)
@json_option
@quiet_option
def command(
    given: Given, backend: str, out: str | None, oplog: str | None, as_json: bool, quiet: bool
) -> None:
    """Run one simulation and print its figures."""
    config = given.also([*out_problems(out), *file_problems("oplog", oplog)]).load(backend=backend)

    from pimkv.oplog import write_oplog
    from pimkv.report.tables import run_table
    from pimkv.simulation import Simulation

    with logging_to_stderr(quiet=quiet), progress(config.allocator.kind, quiet=quiet) as bar:
        warn_unused(config, given.fields)
        result = Simulation(config, backend=backend, record=oplog is not None).run(bar)
    if out is not None:
        result.write(Path(out))
    if oplog is not None and result.oplog is not None:
        write_oplog(oplog, result.oplog)
    click.echo(result.to_json() if as_json else run_table(result))
