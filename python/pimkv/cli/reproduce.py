"""`pimkv reproduce`: the ledger of published claims, measured."""

from __future__ import annotations

from pathlib import Path

import click

from pimkv.cli.options import INT, json_option, progress, quiet_option, reports_errors


@click.command("reproduce")
@reports_errors
@click.option(
    "--only", metavar="PATTERN", help="Only claims whose name contains this or matches it as a glob."
)
@click.option("--sentences", is_flag=True, help="Also what the writeup says in words, not only its rows.")
@json_option
@click.option("--jobs", type=INT, metavar="N", help="Processes.  [default: one per core]")
@click.option("--out", metavar="FILE.md", help="Write the ledger here as Markdown.")
@quiet_option
def command(
    only: str | None, sentences: bool, as_json: bool, jobs: int | None, out: str | None, quiet: bool
) -> None:
    """Run everything that was published and print claim, published, measured and verdict.

    `exact`: every printed digit and counter is equal. `within tolerance`: a figure rounded for a sentence is
    within half a unit of its last digit. Exit code 1 if any claim differs.
    """
    from pimkv import reproduce
    from pimkv.errors import ConfigError, Problem
    from pimkv.report.ledger import ledger_json, ledger_markdown, ledger_table
    from pimkv.result import write_file
    from pimkv.sentences import SENTENCES
    from pimkv.sweep.runner import check_jobs
    from pimkv.wording import config_error

    claims = [*reproduce.row_claims(), *(SENTENCES if sentences else ())]
    problems = []
    try:
        if only is not None:
            claims = reproduce.choose(claims, only, more=() if sentences else SENTENCES)
    except ConfigError as error:
        problems += error.problems
    try:
        if jobs is not None:
            check_jobs(jobs)
    except ConfigError as error:
        problems += error.problems
    # Told now rather than when the runs are done and would be lost.
    if out is not None and not Path(out).absolute().parent.is_dir():
        problems.append(Problem("out", out, "its folder does not exist", flag="--out"))
    if problems:
        raise config_error(problems)
    with progress("reproduce", quiet=quiet) as bar:
        entries = reproduce.judge(claims, jobs=jobs, progress=bar)
    if out is not None:
        try:
            write_file(Path(out), ledger_markdown(entries))
        except OSError as error:
            raise ConfigError(f"out = {out!r}: {error.strerror} (--out)") from error
    click.echo(ledger_json(entries) if as_json else ledger_table(entries))
    if any(entry.verdict == reproduce.DIFFERS for entry in entries):
        raise click.exceptions.Exit(1)
