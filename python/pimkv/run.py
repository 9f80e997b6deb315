"""`python -m pimkv.run`: the published command line, with its own defaults and its CSV of samples."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pimkv.cli.options import (
    INT,
    NUMBER,
    TEXT,
    Given,
    file_problems,
    logging_to_stderr,
    nest,
    progress,
    reports_errors,
)

if TYPE_CHECKING:
    from pimkv.result import Result

# flag, config field, type, the published default, help
FLAGS: tuple[tuple[str, str, click.ParamType[Any], Any, str], ...] = (
    ("--workload", "workload.kind", TEXT, "steady", "What requests arrive."),
    ("--allocator", "allocator.kind", TEXT, "paged", "paged, contiguous, random or pim-aware."),
    ("--dram", "dram.preset", TEXT, "hbm3-pim", "DRAM preset."),
    ("--addrmap", "layout.addrmap", TEXT, "host-centric", "Address map preset, or a map string."),
    ("--model", "model.preset", TEXT, "llama-gqa-8kv", "Model preset."),
    ("--block-tokens", "layout.block_tokens", INT, 16, "Tokens per block; 0: derived, one region's worth."),
    ("--requests", "workload.requests", INT, 2000, "Number of requests."),
    ("--seed", "seed", INT, 0, "Seed of all random draws."),
    ("--max-batch", "scheduler.max_batch", INT, 64, "Most sequences running at once."),
    ("--pool-blocks", "scheduler.pool_blocks", INT, 0, "Pool size in blocks; 0: automatic."),
    ("--sample-every", "scoring.sample_every", INT, 16, "Sample every so many steps."),
    ("--sample-seqs", "scoring.sample_seqs", INT, 8, "Sequences per sampled step."),
    ("--kv-shards", "layout.kv_shards", INT, 1, "Groups of channels that KV heads are split over."),
    ("--spec-width", "speculation.width", INT, 4, "Branches of a speculation round."),
    ("--spec-depth", "speculation.depth", INT, 3, "Tokens that a branch drafts."),
    ("--spec-accept", "speculation.accept", NUMBER, 0.8, "Chance that a drafted token is accepted."),
    ("--spec-adopt", "speculation.adopt", TEXT, "splice", "splice or copyback."),
    ("--pim-scratch", "allocator.options.scratch", TEXT, "shared", "Key of branches: shared or separate."),
    ("--admission", "scheduler.admission", TEXT, "oracle", "When a request may start."),
    ("--coalesce", "scoring.coalesce", TEXT, "window", "window or inorder."),
    ("--window", "scoring.window", INT, 64, "Bursts per channel that may be reordered."),
)

PUBLISHED_COLUMNS = (
    "step", "seq_id", "seq_len", "kv_bytes", "n_cmds", "m1", "m2", "m3_gbps", "m4_ns",
    "blk_adj", "same_frame", "frame_spread",
)  # fmt: skip
OURS = ("step", "seq_id", "tokens", "bytes", "commands", "m1", "m2", "m3_gbps", "m4_ns", "adjacent",
        "same_region", "region_spread")  # fmt: skip


def _options(function: Any) -> Any:
    for flag, _, kind, default, text in reversed(FLAGS):
        function = click.option(flag, type=kind, default=default, show_default=True, help=text)(function)
    return function


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@reports_errors
@_options
@click.option("--out", metavar="FILE.csv", help="Write the samples here, and FILE.csv.meta.json beside it.")
def main(out: str | None, **values: Any) -> None:
    """Run one simulation of the published study, with the command line of its own program.

    Two defaults differ from `pimkv run`: --addrmap host-centric and --requests 2000.
    """
    config = _given(values).also(file_problems("out", out)).load()

    from pimkv.report.tables import run_table
    from pimkv.simulation import Simulation

    with logging_to_stderr(quiet=False), progress(config.allocator.kind, quiet=False) as bar:
        result = Simulation(config).run(bar)
    if out is not None:
        _write(result, Path(out))
    click.echo(run_table(result))


def _given(values: dict[str, Any]) -> Given:
    from pimkv.config import merge

    tables: dict[str, Any] = {}
    for flag, field, *_ in FLAGS:
        tables = merge(tables, nest(field, values[flag.removeprefix("--").replace("-", "_")]))
    # The published program takes --pim-scratch with any allocator; it means something to one.
    return Given(tables).for_allocator(values["allocator"])


def _write(result: Result, path: Path) -> None:
    from pimkv.errors import ConfigError
    from pimkv.result import cell, dumps, write_file

    columns = result.samples.columns()
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    fixed = (result.config.workload.kind, result.config.allocator.kind, result.config.layout.addrmap)
    writer.writerow(("workload", "allocator", "addrmap", *PUBLISHED_COLUMNS))
    for row in zip(*(columns[name].tolist() for name in OURS), strict=True):
        cells = (f"{v:.8g}" if isinstance(v, float) and not math.isnan(v) else cell(v) for v in row)
        writer.writerow((*fixed, *cells))
    try:
        write_file(path, out.getvalue())
        write_file(path.with_name(path.name + ".meta.json"), dumps(result.report()) + "\n")
    except OSError as error:
        raise ConfigError(f"out = {str(path)!r}: {error.strerror} (--out)") from error


if __name__ == "__main__":
    main(prog_name="python -m pimkv.run")
