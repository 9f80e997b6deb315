"""`pimkv sweep`: many configs, run into a store that a crash cannot harm."""

from __future__ import annotations

from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from pimkv.cli.options import (
    INT,
    gather,
    json_option,
    logging_to_stderr,
    progress,
    quiet_option,
    reports_errors,
)

if TYPE_CHECKING:
    from pimkv.errors import Problem
    from pimkv.sweep.execute import Plan
    from pimkv.sweep.store import Store

DEFAULT_STORE = "pimkv.db"
_SHOWN_FAILURES = 10


@click.command("sweep")
@reports_errors
@click.argument("spec", required=False, metavar="[SPEC.toml|STUDY]")
@click.option("--list", "listing", is_flag=True, help="List the studies that come with pimkv.")
@click.option(
    "--again", metavar="STORE", help="Instead of a spec: every config of this store, of any version."
)
@click.option(
    "--store", default=DEFAULT_STORE, show_default=True, metavar="FILE", help="Where the results go."
)
@click.option(
    "--set",
    "assignments",
    metavar="A.B=C",
    multiple=True,
    help="Set any field of the spec's base config; may be repeated.",
)
@click.option("--jobs", type=INT, metavar="N", help="Processes; 1 is this one.  [default: one per core]")
@click.option(
    "--engine", default="processes", show_default=True, metavar="NAME", help="processes, or dask: a cluster."
)
@click.option("--scheduler", metavar="ADDRESS", help="The Dask scheduler, such as tcp://host:8786.")
@click.option("--dry-run", is_flag=True, help="Only count the points and estimate the time.")
@json_option
@quiet_option
def command(
    spec: str | None,
    listing: bool,
    again: str | None,
    store: str,
    assignments: tuple[str, ...],
    jobs: int | None,
    engine: str,
    scheduler: str | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run every point of a sweep that the store does not hold yet.

    SPEC.toml is described in docs/formats.md; --list names the studies that need none. Each point is stored as
    it finishes; the same command goes on where an earlier one ended, and tries again what failed.
    Exit code 1 if any point failed.
    """
    if listing:
        click.echo(_studies(as_json=as_json))
        return

    from pimkv.sweep.execute import run_sweep
    from pimkv.sweep.store import Store, path_mistakes

    mistakes = _engine_mistakes(jobs, engine, scheduler) + path_mistakes(store)
    with logging_to_stderr(quiet=quiet):
        planned = _planned(spec, again, assignments, mistakes)
    if dry_run:
        click.echo(_dry_run(planned, store, jobs, engine, as_json=as_json))
        return
    with (
        Store.open(store) as opened,
        _executor(engine, scheduler) as executor,
        progress(planned.name, quiet=quiet, unit="points") as bar,
    ):
        if not quiet:
            click.echo(_intention(planned, opened), err=True)
        result = run_sweep(planned, store=opened, jobs=jobs, executor=executor, progress=bar)
    counts = {
        "points": result.points,
        "distinct": len(result.keys),
        "stored_before": result.stored,
        "run": result.ran,
        "failed": len(result.failures),
    }
    if as_json:
        from pimkv.result import dumps

        said = {"sweep": result.name, "store": store, **counts, "failures": result.failures}
        click.echo(dumps(said))
    else:
        click.echo(
            f"{result.name}: {_points(planned)}, {result.stored:,} stored before, {result.ran:,} run, "
            f"{len(result.failures):,} failed; results in {store}"
        )
    for key, why in list(result.failures.items())[:_SHOWN_FAILURES]:
        click.echo(f"  {key[:12]} failed: {why}", err=True)
    if len(result.failures) > _SHOWN_FAILURES:
        click.echo(f"  ... and {len(result.failures) - _SHOWN_FAILURES:,} more", err=True)
    if result.failures:
        click.echo(
            f"pimkv sweep: {len(result.failures):,} of {len(result.keys):,} points failed; "
            "the same command tries them again",
            err=True,
        )
        raise click.exceptions.Exit(1)


def _planned(
    spec: str | None, again: str | None, assignments: tuple[str, ...], problems: list[Problem]
) -> Plan:
    """What is to be run, checked as a whole: every mistake of the command line and the spec in one report."""
    from pimkv.config import load
    from pimkv.errors import ConfigError, Problem
    from pimkv.sweep.execute import plan
    from pimkv.sweep.spec import Sweep, load_sweep, studies
    from pimkv.sweep.store import configs_of
    from pimkv.wording import config_error

    given = gather(None, {}, assignments)
    problems = [*problems, *given.problems]
    if (spec is None) == (again is None):
        names = ", ".join(studies())
        problems.append(
            Problem("spec", spec, f"give one of: a spec file, a study ({names}), or --again STORE")
        )
    elif again is not None and assignments:
        problems.append(Problem("--set", assignments[0], "cannot change what --again runs"))
    if problems and spec is None:
        raise config_error(problems)
    if spec is not None:
        return plan(load_sweep(spec, overrides=given.tables, problems=problems))
    configs = []
    for tables in configs_of(str(again)):
        try:
            configs.append(load(tables))
        except ConfigError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise config_error(problems)
    return plan(Sweep(str(again), "", tuple(configs), ()))


def _engine_mistakes(jobs: int | None, engine: str, scheduler: str | None) -> list[Problem]:
    from pimkv.errors import ConfigError, Problem
    from pimkv.sweep.engines import ENGINES
    from pimkv.sweep.runner import check_jobs
    from pimkv.wording import choose_from, did_you_mean, nearest

    problems = []
    try:
        if jobs is not None:
            check_jobs(jobs)
    except ConfigError as error:
        problems += error.problems
    if engine not in ENGINES:
        hint = did_you_mean(nearest(engine, ENGINES, least=0.01))
        problems.append(Problem("engine", engine, f"unknown; {choose_from(ENGINES)}", hint, "--engine"))
    elif engine == "dask" and scheduler is None:
        message = "needs the address of its scheduler; add --scheduler tcp://host:8786"
        problems.append(Problem("engine", engine, message, flag="--engine"))
    elif engine == "dask" and jobs is not None:
        problems.append(Problem("jobs", jobs, "the workers of a Dask cluster are what it has", flag="--jobs"))
    elif engine != "dask" and scheduler is not None:
        message = "only --engine dask has a scheduler"
        problems.append(Problem("scheduler", scheduler, message, flag="--scheduler"))
    return problems


def _executor(engine: str, scheduler: str | None) -> AbstractContextManager[Executor | None]:
    if engine != "dask":
        return nullcontext(None)
    from pimkv.sweep.engines import dask_executor

    return dask_executor(str(scheduler))


def _points(planned: Plan) -> str:
    """How many points there are; equal ones are told, not dropped in silence."""
    distinct = len(planned.configs)
    equal = f" ({planned.points:,}, of which {planned.points - distinct:,} repeat another)"
    return f"{distinct:,} point{'s' if distinct != 1 else ''}{equal if planned.points != distinct else ''}"


def _intention(planned: Plan, store: Store) -> str:
    held, failed = store.finished(), store.failed()
    todo = [key for key in planned.configs if key not in held]
    again = sum(key in failed for key in todo)
    retried = f" ({again:,} failed before and are tried again)" if again else ""
    return f"{planned.name}: {_points(planned)}, {len(planned.configs) - len(todo):,} stored, {len(todo):,} to run{retried}"


def _dry_run(planned: Plan, path: str, jobs: int | None, engine: str, *, as_json: bool) -> str:
    from pathlib import Path

    from pimkv.sweep.execute import Estimate, estimate
    from pimkv.sweep.store import Store

    # A dry run makes no file.
    with Store.open(path if Path(path).exists() else ":memory:", readonly=Path(path).exists()) as store:
        held, failed, seconds = store.finished(), store.failed(), store.seconds()
    todo = [key for key in planned.configs if key not in held]
    again = sum(key in failed for key in todo)
    if engine == "dask" and todo:
        guess = Estimate(None, "how fast the cluster is, its first points will show")
    else:
        guess = estimate(planned, todo, seconds, jobs)
    if as_json:
        from pimkv.result import dumps

        figures: dict[str, Any] = {
            "sweep": planned.name,
            "store": path,
            "points": planned.points,
            "distinct": len(planned.configs),
            "stored": len(planned.configs) - len(todo),
            "failed_before": again,
            "to_run": len(todo),
            "estimate_s": guess.seconds,
            "estimate_basis": guess.basis,
        }
        return dumps(figures)
    time = "no estimate" if guess.seconds is None else f"about {_duration(guess.seconds)}"
    retried = f" ({again:,} failed before and would be tried again)" if again else ""
    return (
        f"{planned.name}: {_points(planned)}, {len(planned.configs) - len(todo):,} stored in {path}, "
        f"{len(todo):,} to run{retried}\n{time}: {guess.basis}"
    )


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def _studies(*, as_json: bool) -> str:
    from pimkv.sweep.spec import studies

    known = studies()
    if as_json:
        from pimkv.result import dumps

        return dumps(known)
    width = max(map(len, known))
    return "\n".join(f"{name:{width}}  {what}" for name, what in known.items())
