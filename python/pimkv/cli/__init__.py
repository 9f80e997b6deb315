"""The `pimkv` command: a group that imports each command when it is asked for."""

from __future__ import annotations

from importlib import import_module

import click

COMMANDS = {
    "bench": "Time allocator operations: of a recorded log, or the published cost table.",
    "compare": "Run one workload under several allocators and print one table with ratios.",
    "derive": "Print region size and blocks per region of a model on a DRAM.",
    "export": "Write block tables as traces that AttAcc's simulator or Ramulator 2 reads.",
    "presets": "List the presets, or print the config's JSON Schema.",
    "report": "Draw figures and one HTML page with tables, figures and the row map.",
    "reproduce": "Run everything that was published and print a ledger of claims.",
    "results": "List, show, compare, export or remove what sweeps have stored.",
    "run": "Run one simulation and print its figures.",
    "sweep": "Run a grid of configs, in parallel, into a store that a crash cannot harm.",
    "trace": "Print the lengths of a request trace and what a prefix cache would find in it.",
    "validate": "Run an installed simulator on exported traces and compare its figures with ours.",
}


class LazyGroup(click.Group):
    """Imports a command's module only to run it, so that `pimkv --help` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported; None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"pimkv.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's, with the nearest name for a mistyped command."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f' Did you mean "{near[0]}"?' if near else f" Commands: {', '.join(sorted(COMMANDS))}."
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands from `COMMANDS`: no module is imported to print it."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pimkv", prog_name="pimkv")
def main() -> None:
    """A paged KV-cache allocator that knows which DRAM row its blocks land in, and the laboratory that
    measures what that is worth.

    `pimkv compare` runs the headline: vLLM-style paging beside the PIM-aware allocator.
    """
