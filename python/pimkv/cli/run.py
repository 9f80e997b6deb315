"""`pimkv run`: one simulation."""

from __future__ import annotations

from pathlib import Path

import click

from pimkv.cli.options import (
    INT,
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
@click.option(
    "--record-placement",
    "placement",
    metavar="FILE",
    help="Record which block holds what here (pimkv report --placement FILE).",
)
@click.option(
    "--record-every",
    type=INT,
    metavar="N",
    help="Record the placement of every N-th decode step.  [default: 1]",
)
@json_option
@quiet_option
def command(
    given: Given,
    backend: str,
    out: str | None,
    oplog: str | None,
    placement: str | None,
    record_every: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run one simulation and print its figures."""
    from pimkv.errors import Problem
    from pimkv.placement import Recorder, every_problem

    every = 1 if record_every is None else record_every
    wrong = every_problem(every)
    problems = [
        *([] if wrong is None else [wrong]),
        *out_problems(out),
        *file_problems("oplog", oplog),
        *file_problems("record-placement", placement),
    ]
    if record_every is not None and placement is None:
        what = "goes with --record-placement FILE, which says where to"
        problems.append(Problem("every", record_every, what, flag="--record-every"))
    config = given.also(problems).load(backend=backend)

    from pimkv.oplog import write_oplog
    from pimkv.report.tables import run_table
    from pimkv.simulation import Simulation

    with logging_to_stderr(quiet=quiet), progress(config.allocator.kind, quiet=quiet) as bar:
        warn_unused(config, given.fields)
        run = Simulation(config, backend=backend, record=oplog is not None)
        recorder = None if placement is None else Recorder(config, run.pool_blocks, every)
        result = run.run(bar, None if recorder is None else recorder.step)
    if out is not None:
        result.write(Path(out))
    if oplog is not None and result.oplog is not None:
        write_oplog(oplog, result.oplog)
    if recorder is not None and placement is not None:
        recorder.write(placement)
    click.echo(result.to_json() if as_json else run_table(result))
