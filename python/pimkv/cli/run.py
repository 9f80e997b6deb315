"""`pimkv run`: one simulation."""

from __future__ import annotations

import click

from pimkv.cli.options import (
    INT,
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
    from pimkv.oplog import check_folder, write_oplog
    from pimkv.placement import Recorder, every_problem, folder_problem
    from pimkv.report.tables import run_table
    from pimkv.simulation import Simulation

    folder = out_folder(out)
    every = 1 if record_every is None else record_every
    found = [every_problem(every), None if placement is None else folder_problem(placement)]
    if record_every is not None and placement is None:
        what = "goes with --record-placement FILE, which says where to"
        found.append(Problem("every", record_every, what, flag="--record-every"))
    problems = [problem for problem in found if problem is not None]
    config = Given(given.tables, (*given.problems, *problems)).load(backend=backend)

    if oplog is not None:
        # Told now rather than when the run is done and would be lost.
        check_folder(oplog)
    with logging_to_stderr(quiet=quiet), progress(config.allocator.kind, quiet=quiet) as bar:
        run = Simulation(config, backend=backend, record=oplog is not None)
        recorder = None if placement is None else Recorder(config, run.pool_blocks, every)
        result = run.run(bar, None if recorder is None else recorder.step)
    if folder is not None:
        result.write(folder)
    if oplog is not None and result.oplog is not None:
        write_oplog(oplog, result.oplog)
    if recorder is not None and placement is not None:
        recorder.write(placement)
    click.echo(result.to_json() if as_json else run_table(result))
