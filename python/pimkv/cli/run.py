"""`pimkv run`: one simulation."""

from __future__ import annotations

import click

from pimkv.cli.options import (
    Given,
    backend_option,
    config_options,
    json_option,
    logging_to_stderr,
    out_folder,
    progress,
    quiet_option,
    reports_errors,
)


@click.command("run")
@reports_errors
@config_options()
@backend_option
@click.option("--out", metavar="DIR", help="Write config.toml, summary.json and samples.csv here.")
@json_option
@quiet_option
def command(given: Given, backend: str, out: str | None, as_json: bool, quiet: bool) -> None:
    """Run one simulation and print its figures."""
    folder = out_folder(out)
    config = given.load(backend=backend)

    from pimkv.report.tables import run_table
    from pimkv.simulation import Simulation

    with logging_to_stderr(quiet=quiet), progress(config.allocator.kind, quiet=quiet) as bar:
        result = Simulation(config, backend=backend).run(bar)
    if folder is not None:
        result.write(folder)
    click.echo(result.to_json() if as_json else run_table(result))
