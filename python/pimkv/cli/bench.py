"""`pimkv bench`: what an allocator operation costs."""

from __future__ import annotations

import click

from pimkv.cli.options import INT, json_option, quiet_option, reports_errors


@click.group("bench")
def command() -> None:
    """Time allocator operations: of a recorded log, or the published cost table."""


@command.command("ops")
@reports_errors
@click.option("--log", required=True, metavar="FILE", help="Log of pimkv run --oplog FILE.")
@click.option(
    "--policy",
    "--policies",
    "policies",
    multiple=True,
    metavar="NAME[,NAME…]",
    help="Policies (or allocators, for theirs) to replay it against.  [default: the recorded one]",
)
@click.option(
    "--region-impl", metavar="NAME", help="pim-aware: indexed or heaps.  [default: indexed]", default=None
)
@click.option(
    "--pool-blocks", type=INT, metavar="N", help="Pool of the replay; refused unless it is the log's."
)
@click.option("--any-ids", is_flag=True, help="Report ids that differ from the recorded ones, not refuse.")
@click.option("--repeat", type=INT, default=15, show_default=True, metavar="N", help="Repetitions.")
@json_option
def ops(
    log: str,
    policies: tuple[str, ...],
    region_impl: str | None,
    pool_blocks: int | None,
    any_ids: bool,
    repeat: int,
    as_json: bool,
) -> None:
    """Replay a log inside Rust and print ns per operation by kind.

    The recorded policy must hand out the recorded ids; of another policy it is told how many agree.
    """
    from pimkv.allocators import policy_of
    from pimkv.bench.host import host
    from pimkv.bench.ops import SCHEMA_VERSION, measure
    from pimkv.oplog import load_oplog
    from pimkv.report.cost import ops_table
    from pimkv.result import dumps

    _at_least_one("repeat", repeat)
    recorded = load_oplog(log)
    names = [policy_of(name.strip()) for part in policies or (recorded.kind,) for name in part.split(",")]
    figures = [
        measure(
            recorded,
            name,
            blocks=pool_blocks,
            strict=False if any_ids else None,
            repeats=repeat,
            region_impl=region_impl if name == "pim-aware" else None,
        )
        for name in names
    ]
    if as_json:
        click.echo(dumps({"schema_version": SCHEMA_VERSION, "host": host(), "log": log, "policies": figures}))
    else:
        click.echo(ops_table(figures))


@command.command("cost")
@reports_errors
@click.option("--requests", type=INT, default=1000, show_default=True, metavar="N", help="Requests of a run.")
@click.option(
    "--twin-requests",
    type=INT,
    default=100,
    show_default=True,
    metavar="N",
    help="Requests of the twins' run.",
)
@click.option("--repeat", type=INT, default=15, show_default=True, metavar="N", help="Repetitions.")
@json_option
@quiet_option
def cost(requests: int, twin_requests: int, repeat: int, as_json: bool, quiet: bool) -> None:
    """Print the published cost table: CPU time per decode step, bookkeeping, benefit / cost.

    Times are this machine's now; compare ratios inside one run.
    """
    for name, value in (("requests", requests), ("twin-requests", twin_requests), ("repeat", repeat)):
        _at_least_one(name, value)

    from pimkv.bench.cost import cost_table
    from pimkv.report.cost import cost_report
    from pimkv.result import dumps

    def tell(what: str) -> None:
        if not quiet:
            click.echo(f"pimkv bench cost: {what}", err=True)

    table = cost_table(requests=requests, twin_requests=twin_requests, repeats=repeat, progress=tell)
    click.echo(dumps(table) if as_json else cost_report(table))


def _at_least_one(name: str, value: object) -> None:
    from pimkv.errors import Problem
    from pimkv.wording import config_error

    if not isinstance(value, int) or value < 1:
        raise config_error([Problem(name, value, "must be a whole number from 1 on", flag=f"--{name}")])
