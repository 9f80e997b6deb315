"""`pimkv trace`: what the requests of a trace are like, and what a prefix cache of each size would find."""

from __future__ import annotations

import click

from pimkv.cli.options import INT, NUMBER, json_option, logging_to_stderr, quiet_option, reports_errors
from pimkv.errors import ConfigError


@click.command("trace")
@reports_errors
@click.argument("file")
@click.option(
    "--cache-blocks",
    "sizes",
    metavar="N[,N…]",
    help="Sizes of the prefix cache, blocks; unlimited comes last.  [default: powers of 4]",
)
@click.option("--block-tokens", type=INT, help="Tokens per block.  [default: those of a hash of the trace]")
@click.option("--hash-tokens", type=INT, help="Prompt tokens per hash.  [default: found from the lengths]")
@click.option("--requests", type=INT, help="The first so many.  [default: all]")
@click.option(
    "--step-ms",
    type=NUMBER,
    default=30.0,
    show_default=True,
    help="Milliseconds of the trace's time per decode step.",
)
@json_option
@quiet_option
def command(
    file: str,
    sizes: str | None,
    block_tokens: int | None,
    hash_tokens: int | None,
    requests: int | None,
    step_ms: float,
    as_json: bool,
    quiet: bool,
) -> None:
    """Print the lengths of a request trace and what a prefix cache would find in it.

    The cache is replayed with one request after the other: no pool, no scheduler, no DRAM.
    """
    from pimkv.report.traces import trace_table
    from pimkv.result import dumps
    from pimkv.traffic import cache_sizes, describe
    from pimkv.workload import read_trace

    with logging_to_stderr(quiet=quiet):
        table = read_trace(
            file,
            step_ms=step_ms,
            requests=requests,
            arrival_rate=None,
            seed=0,
            chains=None,
            hash_tokens=hash_tokens,
        )
    facts = {"trace": file} | describe(table) | {"prefix_cache": None}
    if table.chains is not None:
        size = table.chains.tokens if block_tokens is None else block_tokens
        limits = (
            None if sizes is None else [INT.convert(part.strip(), None, None) for part in sizes.split(",")]
        )
        facts["prefix_cache"] = {
            "hash_tokens": table.chains.tokens,
            "block_tokens": size,
            "sizes": cache_sizes(table, size, limits),
        }
    elif sizes is not None or block_tokens is not None or hash_tokens is not None:
        raise ConfigError(
            f"trace = {file}: has no hash chains (hash_ids), so there is nothing for a prefix cache to find; "
            "leave out --cache-blocks, --block-tokens and --hash-tokens"
        )
    click.echo(dumps(facts) if as_json else trace_table(facts))
