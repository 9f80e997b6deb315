"""`pimkv compare`: one workload, several allocators, one table with ratios."""

from __future__ import annotations

import click

from pimkv.cli.compare_all import Asked, compare_all, split, unique
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

ONE_QUERY = {"controller": {"queries_per_command": 1}}
DEFAULT_ALLOCATORS = "paged,pim-aware"


@click.command("compare")
@reports_errors
@config_options(without=("--allocator",))
@click.option(
    "--allocator",
    "--allocators",
    "allocators",
    multiple=True,
    metavar="NAME[,NAME…]",
    help=f"What to compare, the first one is the base of the ratios.  [default: {DEFAULT_ALLOCATORS}]",
)
@click.option("--all", "everything", is_flag=True, help="Every allocator, in one table per workload.")
@click.option(
    "--workloads",
    metavar="NAME[,NAME…]",
    help="One table per workload, as of --all, instead of --workload.",
)
@click.option(
    "--pareto", is_flag=True, help="As --all, and mark whom no other reaches in both bandwidth and batch."
)
@click.option(
    "--untimed", is_flag=True, help="Of --all: without the allocators' CPU time, the one clock in it."
)
@click.option(
    "--ablation",
    metavar="NAME",
    help="Instead of allocators compare what the levers of one are worth.  [gather]",
)
@backend_option
@click.option("--jobs", type=INT, metavar="N", help="Processes of --all.  [default: one per core]")
@click.option(
    "--out", metavar="DIR", help="Write one run folder per allocator here; of --all one compare.json."
)
@json_option
@quiet_option
def command(
    given: Given,
    allocators: tuple[str, ...],
    everything: bool,
    workloads: str | None,
    pareto: bool,
    untimed: bool,
    ablation: str | None,
    backend: str,
    jobs: int | None,
    out: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run one workload under several allocators and print one table with ratios.

    Ratios are against the first allocator of the list.

    With --all, --workloads or --pareto, and where --dram or --model lists several (A,B), one table for each
    workload, model and DRAM: bandwidth beside what an allocator needs of the pool, sorted by their product.
    """
    from pimkv.errors import ConfigError

    named = [name for part in allocators for name in split(part)]
    asked = Asked(
        named, everything, workloads, pareto=pareto, untimed=untimed, jobs=jobs, out=out,
        backend=backend, as_json=as_json, quiet=quiet,
    )  # fmt: skip
    if ablation is not None:
        if out is not None or named or asked.wide(given):
            what = "goes without --allocator, --out and what makes many tables"
            raise ConfigError(f"ablation = {ablation}: {what} (--ablation)")
        click.echo(_ablation(given, ablation, backend=backend, as_json=as_json, quiet=quiet))
        return
    if asked.wide(given):
        compare_all(given, asked)
        return
    if jobs is not None or untimed:
        flag = "--untimed" if untimed else "--jobs"
        raise ConfigError(f"{flag}: goes with --all, --pareto, --workloads or several grounds")
    _few(given, asked)


def _few(given: Given, asked: Asked) -> None:
    """The comparison of a few allocators on one workload, with the other experiment and the other end beside it."""
    from pimkv.config import command_repeat
    from pimkv.errors import ConfigError
    from pimkv.report.tables import compare_json, compare_table
    from pimkv.simulation import Simulation, requests_of

    backend, quiet = asked.backend, asked.quiet
    folder = out_folder(asked.out)
    names = list(asked.named) or split(DEFAULT_ALLOCATORS)
    unique(names, "allocators", "--allocators")
    configs = []
    problems: dict[str, None] = {}
    for name in names:
        try:
            configs.append(given.for_allocator(name).load(backend=backend))
        except ConfigError as error:
            # Mistakes in what the allocators share come once, not once per allocator.
            problems |= dict.fromkeys(str(error).splitlines())
    if problems:
        raise ConfigError("\n".join(problems))
    with logging_to_stderr(quiet=quiet):
        requests = requests_of(configs[0])
        runs = [Simulation(config, backend=backend, requests=requests) for config in configs]
        results = []
        for name, run in zip(names, runs, strict=True):
            with progress(name, quiet=quiet) as bar:
                results.append(run.run(bar))
        # The other end of how many queries a command may serve, where there is one.
        fewer = [given.for_allocator(name).load(ONE_QUERY, backend=backend) for name in names]
        one_query = [
            Simulation(config, backend=backend, requests=requests).run()
            for config in fewer
            if command_repeat(config) != command_repeat(configs[0])
        ]
        realistic = []
        if "experiment" not in given.tables:
            for name in names:
                try:
                    config = given.under("realistic").for_allocator(name).load(backend=backend)
                    realistic.append(Simulation(config, backend=backend, requests=requests).run())
                except ConfigError as error:
                    # An allocator that the experiment is not defined for has its place in the other table.
                    click.echo(f"pimkv compare: without the realistic {name}: {error}", err=True)
    if folder is not None:
        for name, result in zip(names, results, strict=True):
            result.write(folder / name)
    click.echo((compare_json if asked.as_json else compare_table)(results, one_query, realistic))


def _ablation(given: Given, name: str, *, backend: str, as_json: bool, quiet: bool) -> str:
    """The table, or the JSON, of one run per lever."""
    from pimkv.errors import ConfigError
    from pimkv.report.ablation import GATHER, ablation_json, ablation_table
    from pimkv.simulation import Simulation, requests_of

    if name != "gather":
        raise ConfigError(f"ablation = {name}: unknown; must be gather (--ablation)")
    configs = [
        given.for_allocator(kind).load(dict(tables), backend=backend) for kind, tables in GATHER.values()
    ]
    results = []
    with logging_to_stderr(quiet=quiet):
        requests = requests_of(configs[0])
        for label, config in zip(GATHER, configs, strict=True):
            with progress(label.strip(), quiet=quiet) as bar:
                results.append(Simulation(config, backend=backend, requests=requests).run(bar))
    return (ablation_json if as_json else ablation_table)(list(GATHER), results)
