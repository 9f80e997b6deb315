"""`pimkv derive`: region size and blocks per region for model x DRAM x block size."""

from __future__ import annotations

from typing import Any

import click

from pimkv.cli.options import config_options, json_option, load, reports_errors

NOT_USED = tuple(
    "--workload --trace --step-ms --requests --arrival-rate --seed --allocator --max-batch --headroom "
    "--pool-blocks --admission --coalesce --window --sample-every --sample-seqs".split()
)


@click.command("derive")
@reports_errors
@config_options(without=NOT_USED)
@json_option
def command(given: dict[str, Any], as_json: bool) -> None:
    """Print region size and blocks per region of a model on a DRAM."""
    config = load(given)

    from pimkv.report.tables import derive_json, derive_table

    click.echo(derive_json(config) if as_json else derive_table(config))
