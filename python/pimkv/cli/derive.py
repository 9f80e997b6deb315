"""`pimkv derive`: region size and blocks per region for model x DRAM x block size."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import click

from pimkv.cli.options import INT, Given, config_options, json_option, nest, reports_errors
from pimkv.errors import ConfigError

if TYPE_CHECKING:
    from pimkv.config import Config

# A place on the DRAM depends on these sections alone.
OF_PLACE = ("dram", "layout", "model")


LISTS = {"--model": "model.preset", "--dram": "dram.preset", "--block-tokens": "layout.block_tokens"}


@click.command("derive")
@reports_errors
@config_options(sections=OF_PLACE, without=tuple(LISTS))
@click.option(
    "--model", "models", metavar="NAME[,NAME…]", help="Model presets, or all.  [default: llama-gqa-8kv]"
)
@click.option("--dram", "drams", metavar="NAME[,NAME…]", help="DRAM presets, or all.  [default: hbm3-pim]")
@click.option(
    "--block-tokens",
    "sizes",
    metavar="N[,N…]",
    help="Tokens per block; 0 takes one region's worth.  [default: 16]",
)
@json_option
def command(given: Given, models: str | None, drams: str | None, sizes: str | None, as_json: bool) -> None:
    """Print region size and blocks per region for model x DRAM x block size.

    One of each prints its figures in full; several print a table, in which what cannot be run says why.
    """
    axes = [
        _axis(given, field, text, kind)
        for field, text, kind in (
            ("model.preset", models, "model"),
            ("dram.preset", drams, "dram"),
            ("layout.block_tokens", sizes, None),
        )
    ]
    cells = [dict(cell) for cell in product(*axes)]

    from pimkv.report.tables import derive_one, derive_table, derived
    from pimkv.result import dumps

    if len(cells) == 1:
        config = _load(given, cells[0])
        from pimkv.layouts import fits

        layouts = fits(config)
        click.echo(dumps(derived(config) | {"layouts": layouts}) if as_json else derive_one(config, layouts))
        return
    entries: list[dict[str, Any]] = []
    for cell in cells:
        try:
            entries.append(derived(_load(given, cell)))
        except ConfigError as error:
            names = ("model", "dram", "block_tokens")
            entries.append(dict(zip(names, cell.values(), strict=True)) | {"refused": str(error)})
    if all("refused" in entry for entry in entries):
        raise ConfigError(
            "\n".join(dict.fromkeys(line for e in entries for line in e["refused"].splitlines()))
        )
    click.echo(dumps(entries) if as_json else derive_table(entries))


def _axis(given: Given, field: str, text: str | None, kind: str | None) -> list[tuple[str, Any]]:
    """The values of one axis, each with its field."""
    if text is None:
        from pimkv.config import Config

        section, name = field.split(".")
        table = given.tables.get(section)
        own = table.get(name) if isinstance(table, dict) else None
        return [(field, getattr(getattr(Config(), section), name) if own is None else own)]
    if text == "all" and kind is not None:
        from pimkv.presets import presets

        return [(field, name) for name in presets(kind)]
    values = [value.strip() for value in text.split(",")]
    return [(field, value if kind else INT.convert(value, None, None)) for value in values]


def _load(given: Given, cell: dict[str, Any]) -> Config:
    return given.load(*(nest(field, value) for field, value in cell.items()))
