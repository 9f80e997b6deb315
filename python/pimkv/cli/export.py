"""`pimkv export`: block tables of one decode step as traces of other simulators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pimkv.cli.options import (
    INT,
    Given,
    backend_option,
    config_options,
    json_option,
    logging_to_stderr,
    progress,
    quiet_option,
    reports_errors,
)

if TYPE_CHECKING:
    from pimkv.config import Config


def tables_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--format, --step and --sequences."""
    options = (
        click.option(
            "--format",
            "format_",
            default="attacc",
            show_default=True,
            metavar="NAME",
            help="attacc or ramulator2.",
        ),
        click.option(
            "--step",
            type=INT,
            metavar="N",
            help="First sampled step from N on.  [default: 400, or the last of a shorter run]",
        ),
        click.option(
            "--sequences",
            type=INT,
            metavar="K",
            help="First K sampled sequences of that step; 0 takes all that run.  [default: 3]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def checked(given: Given, backend: str, format_: str, step: object, sequences: object) -> Config:
    """The config, once it and what is asked of it are in order; every mistake in one report."""
    from pimkv import export

    problems = export.request_problems(format_, step, sequences)
    config = Given(given.tables, (*given.problems, *problems)).load(backend=backend)
    export.check(config, format_)
    return config


def written(
    config: Config,
    folder: Path,
    *,
    format_: str,
    step: int | None,
    sequences: int | None,
    backend: str,
    quiet: bool,
) -> dict[str, Any]:
    """Runs the config and writes the export; returns its manifest, and logs the warnings in it."""
    import logging

    from pimkv import export

    with logging_to_stderr(quiet=quiet):
        with progress(config.allocator.kind, quiet=quiet) as bar:
            snapshot = export.take_snapshot(
                config, step=step, sequences=sequences, backend=backend, progress=bar
            )
        manifest = export.write_export(config, format_, snapshot, folder)
        for _, run in export.runs_of(manifest):
            for warning in run["warnings"]:
                logging.getLogger("pimkv").warning("%s: %s", run["config"]["file"], warning)
    return manifest


@click.command("export")
@reports_errors
@config_options()
@tables_options
@click.option("--out", required=True, metavar="DIR", help="Write traces, configs and manifest.json here.")
@backend_option
@json_option
@quiet_option
def command(
    given: Given,
    format_: str,
    step: int | None,
    sequences: int | None,
    out: str,
    backend: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write what another simulator needs to read sequences' caches, with our prediction.

    A run of the config gives the block tables. Each sequence becomes a trace, a config for each refresh setting,
    and an entry of manifest.json with the figures that the simulator should find.
    """
    config = checked(given, backend, format_, step, sequences)

    from pimkv.report.interop import export_table
    from pimkv.result import dumps

    manifest = written(
        config, Path(out), format_=format_, step=step, sequences=sequences, backend=backend, quiet=quiet
    )
    click.echo(dumps(manifest) if as_json else export_table(manifest, out))
