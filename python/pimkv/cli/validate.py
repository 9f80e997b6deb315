"""`pimkv validate`: an installed simulator on our exports, its figures beside ours."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from pimkv.cli.export import checked, tables_options, written
from pimkv.cli.options import (
    Given,
    backend_option,
    config_options,
    json_option,
    quiet_option,
    reports_errors,
)


@click.command("validate")
@reports_errors
@config_options()
@click.option(
    "--simulator", required=True, metavar="PATH", help="Executable; it is run as PATH -f CONFIG.yaml."
)
@tables_options
@click.option("--out", metavar="DIR", help="Keep the exported files here.")
@backend_option
@json_option
@quiet_option
def command(
    given: Given,
    simulator: str,
    format_: str,
    step: int | None,
    sequences: int | None,
    out: str | None,
    backend: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run an installed simulator on exported traces and compare its cycles or row hits with ours.

    Exit code 1 if a run differs: cycles of attacc by anything, hit rates of ramulator2 by more than 0.0003.
    Exit code 2 if the simulator is absent, fails or does not print the statistic.
    """
    config = checked(given, backend, format_, step, sequences)

    from dataclasses import asdict
    from tempfile import TemporaryDirectory

    from pimkv.export import SCHEMA_VERSION
    from pimkv.report.interop import validation_table
    from pimkv.result import dumps
    from pimkv.validation import find_simulator, validate

    executable = find_simulator(simulator)
    with ExitStack() as stack:
        folder = Path(out) if out is not None else Path(stack.enter_context(TemporaryDirectory()))
        manifest = written(
            config, folder, format_=format_, step=step, sequences=sequences, backend=backend, quiet=quiet
        )
        verdicts = validate(executable, folder, manifest)
    if as_json:
        runs = [asdict(verdict) | {"error": verdict.error} for verdict in verdicts]
        click.echo(dumps({"schema_version": SCHEMA_VERSION, "format": format_, "runs": runs}))
    else:
        click.echo(validation_table(verdicts))
    if not all(verdict.agrees for verdict in verdicts):
        raise click.exceptions.Exit(1)
