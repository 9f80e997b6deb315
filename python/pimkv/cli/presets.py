"""`pimkv presets`: what can be named instead of spelled out."""

from __future__ import annotations

import click

from pimkv.cli.options import json_option, reports_errors


@click.command("presets")
@reports_errors
@click.argument("kind", required=False, metavar="[dram|model|addrmap|timing|schema]")
@json_option
def command(kind: str | None, as_json: bool) -> None:
    """List the presets of one kind, or of all; `schema` prints the config's JSON Schema."""
    from pimkv.config import json_schema, presets
    from pimkv.errors import ConfigError
    from pimkv.presets import KINDS
    from pimkv.report.tables import presets_table
    from pimkv.result import dumps

    if kind == "schema":
        click.echo(dumps(json_schema()))
        return
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"kind = {kind!r}: allowed {', '.join(KINDS)}, schema")
    chosen = {k: presets(k) for k in ([kind] if kind else KINDS)}
    click.echo(dumps(chosen) if as_json else presets_table(chosen))
