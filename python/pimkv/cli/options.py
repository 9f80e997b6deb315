"""Options that several commands share: flags -> one config dict, errors -> one report, progress."""

from __future__ import annotations

import errno
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os.path import exists
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pimkv.errors import ConfigError, InvalidArgument, LogError, PimkvError, Problem, TraceError

if TYPE_CHECKING:
    from pimkv.config import Config

    _ParamType = click.ParamType[Any]
else:
    # Not every supported click can subscript it when the program runs.
    _ParamType = click.ParamType


class Number(_ParamType):
    """Leaves judging to the config, so that all mistakes of a command line come in one report."""

    def __init__(self, kind: type[int] | type[float]) -> None:
        self.kind = kind
        self.name = "integer" if kind is int else "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, or the text as it came if it is none."""
        try:
            return self.kind(value)
        except ValueError:
            return value


class OnOff(_ParamType):
    """on or off, or true or false as in a file; anything else is left to the config to refuse."""

    name = "on|off"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """True, False, or the text as it came."""
        known = {"on": True, "true": True, "off": False, "false": False}
        return known.get(value.lower(), value) if isinstance(value, str) else value


ON_OFF = OnOff()
INT, NUMBER, TEXT = Number(int), Number(float), click.STRING


class ConfigOption(click.Option):
    """An option that sets one config field; its default is the config's and is read for --help only."""

    def __init__(self, *args: Any, field: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.field = field

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The help line with the config's default."""
        record = super().get_help_record(ctx)
        if record is None:
            return None
        from pimkv.config import Config, load

        *sections, name = self.field.split(".")
        # Options of an allocator are those of the one that has them.
        config = load({"allocator": {"kind": "pim-aware"}}) if "options" in sections else Config()
        section: Any = functools.reduce(getattr, sections, config)
        default = getattr(section, name)
        # Preset names are many, and the commands that take them list them.
        choices = "" if name == "preset" else " | ".join(type(section).choices(name))
        if isinstance(default, bool):
            default = "on" if default else "off"
        if self.field.startswith(("model.", "workload.requests", "workload.arrival_rate")):
            default = None  # the text says what stands in
        facts = [choices] * bool(choices) + [f"default: {default}"] * (default is not None)
        return record[0], "  ".join([record[1], *(f"[{fact}]" for fact in facts)])


# flag, config field, type, help
FLAGS: tuple[tuple[str, str, click.ParamType[Any], str], ...] = (
    ("--experiment", "experiment", TEXT, "Bundle of defaults."),
    ("--workload", "workload.kind", TEXT, "What requests arrive."),
    ("--trace", "workload.trace", TEXT, "Requests from a CSV or JSONL file (.gz too) instead."),
    ("--step-ms", "workload.step_ms", NUMBER, "Milliseconds of a trace's time per decode step."),
    ("--requests", "workload.requests", INT, "Number of requests; of a trace the first so many.  [default: 1000, or all of a trace]"),
    ("--arrival-rate", "workload.arrival_rate", NUMBER, "Requests per decode step, drawn.  [default: 0.25, longctx 0.2, or a trace's own times]"),
    ("--seed", "seed", INT, "Seed of all random draws."),
    ("--allocator", "allocator.kind", TEXT, "Allocation policy."),
    ("--dram", "dram.preset", TEXT, "DRAM preset (pimkv presets dram)."),
    ("--addrmap", "layout.addrmap", TEXT, 'Address map preset, or a map such as "row:14 col:4 bg:2 ba:2 ch:5 col:1".'),
    ("--model", "model.preset", TEXT, "Model preset (pimkv presets model).  [default: llama-gqa-8kv]"),
    ("--kv-layout", "layout.kv_layout", TEXT, "How K and V lie in a block."),
    ("--passes", "layout.passes", INT, "Sweeps over the cache per step; default what the layout needs."),
    ("--traversal", "layout.traversal", TEXT, "Order in which a sequence's blocks are read."),
    ("--stacks", "layout.stacks", INT, "Split KV heads over this many stacks."),
    ("--layers", "model.layers", INT, "Layers of the model.  [default: the preset's]"),
    ("--writes", "traffic.writes", ON_OFF, "Charge writes and copies over the pins."),
    ("--kv-shards", "layout.kv_shards", INT, "Split KV heads over this many groups of channels."),
    ("--block-tokens", "layout.block_tokens", INT, "Tokens per block; 0 takes one region's worth.  [default: 16, or the allocator's own unit]"),
    ("--max-batch", "scheduler.max_batch", INT, "Most sequences running at once."),
    ("--headroom", "scheduler.headroom", NUMBER, "Pool size over max_batch mean requests."),
    ("--pool-blocks", "scheduler.pool_blocks", INT, "Pool size in blocks; 0 sizes it by --headroom."),
    ("--free-order", "scheduler.free_order", TEXT, "Order in which a table's blocks are freed.  [default: the allocator's own]"),
    ("--admission", "scheduler.admission", TEXT, "When a request may start."),
    ("--spec-width", "speculation.width", INT, "Branches of a speculation round."),
    ("--spec-depth", "speculation.depth", INT, "Tokens that a branch drafts."),
    ("--spec-accept", "speculation.accept", NUMBER, "Chance accept**i that draft i is accepted."),
    ("--spec-adopt", "speculation.adopt", TEXT, "How the chosen branch joins."),
    ("--pim-scratch", "allocator.options.scratch", TEXT, "pim-aware: key that branches are taken under."),
    ("--pim-plan", "allocator.options.plan", TEXT, "pim-aware: where a request starts without an empty region."),
    ("--pim-compact", "allocator.options.compact", NUMBER, "pim-aware: empty regions filled up to this share."),
    ("--coalesce", "scoring.coalesce", TEXT, "Merge bursts in a window, or inorder."),
    ("--window", "scoring.window", INT, "Bursts per channel that may be reordered."),
    ("--timing", "controller.timing", TEXT, "Controller timing preset (pimkv presets timing)."),
    ("--refresh", "controller.refresh", ON_OFF, "Charge refresh; by default where the timing has figures."),
    ("--queue", "controller.queue", INT, "Commands in a channel's queue."),
    ("--feed", "controller.feed", TEXT, "Commands for a pair of pseudo-channels."),
    ("--queries-per-command", "controller.queries_per_command", INT, "Query heads that one command serves; default all of a KV head."),
    ("--sample-every", "scoring.sample_every", INT, "Published estimator: sample every so many steps."),
    ("--sample-seqs", "scoring.sample_seqs", INT, "Published estimator: sequences per sampled step."),
)  # fmt: skip


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def config_options(
    *, sections: tuple[str, ...] = (), without: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the flags of `FLAGS`, --config and --set to a command, which receives one `Given`.

    `sections` keeps only the flags of these sections of the config, `without` leaves flags out.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        flags = [f for f in FLAGS if f[0] not in without and (not sections or f[1].split(".")[0] in sections)]

        @functools.wraps(function)
        def command(**arguments: Any) -> Any:
            values = {flag: arguments.pop(_name(flag)) for flag, *_ in flags}
            file, assignments = arguments.pop("config_file"), arguments.pop("assignments")
            return function(given=gather(file, values, assignments), **arguments)

        options = [
            click.option(flag, field=field, cls=ConfigOption, type=kind, default=None, help=text)
            for flag, field, kind, text in flags
        ]
        options += [
            click.option("--config", "config_file", metavar="FILE", help="Start from a TOML config."),
            click.option(
                "--set",
                "assignments",
                metavar="A.B=C",
                multiple=True,
                help="Set any config field, such as dram.rows=8192; may be repeated.",
            ),
        ]
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@dataclass(frozen=True)
class Given:
    """What a command line asks for: nested tables, and the mistakes found while reading them.

    `fields` are those that flags and --set name themselves, each once, in their order.
    """

    tables: dict[str, Any]
    problems: tuple[Problem, ...] = ()
    fields: tuple[str, ...] = ()

    def load(self, *overrides: dict[str, Any], backend: str = "rust") -> Config:
        """The validated config, with `overrides` over it; every mistake in one report, with flags' names."""
        from pimkv.backend import choose
        from pimkv.config import load, merge

        problems = list(self.problems)
        try:
            choose(backend)
        except ConfigError as error:
            problems += error.problems
        tables = functools.reduce(merge, overrides, self.tables)
        workload = tables.get("workload")
        trace = workload.get("trace") if isinstance(workload, dict) else None
        if isinstance(trace, str) and trace and not Path(trace).exists():
            problems.append(Problem("workload.trace", trace, "there is no such file", flag="--trace"))
        return load(tables, sources={field: flag for flag, field, *_ in FLAGS}, problems=problems)

    def also(self, problems: list[Problem]) -> Given:
        """The same with more mistakes, of flags that are no part of the config."""
        return replace(self, problems=(*self.problems, *problems))

    def under(self, experiment: str) -> Given:
        """The same under another experiment's defaults; whatever was given stays as given."""
        return Given({**self.tables, "experiment": experiment}, self.problems)

    def for_allocator(self, kind: str) -> Given:
        """The same with another allocator, which gets those options that it knows and keeps a unit of its own."""
        from pimkv.allocators import Allocator, options_of
        from pimkv.config import merge

        tables = merge(self.tables, {"allocator": {"kind": kind}})
        options = tables["allocator"].get("options")
        if isinstance(options, dict):
            known = Allocator.options_of(kind)
            tables["allocator"]["options"] = {k: v for k, v in options.items() if k in known}
        if options_of(kind).own_unit and isinstance(tables.get("layout"), dict):
            tables["layout"].pop("block_tokens", None)
        return Given(tables, self.problems)


def gather(file: str | None, values: dict[str, Any], assignments: tuple[str, ...]) -> Given:
    """The file, over it the flags that were given, over them --set."""
    from pimkv.config import merge, parse_set, read_toml

    tables: dict[str, Any] = {}
    problems: list[Problem] = []
    readers: list[Callable[[], dict[str, Any]]] = []
    if file is not None:
        readers.append(functools.partial(read_toml, file))
    for flag, field, *_ in FLAGS:
        if values.get(flag) is not None:
            readers.append(functools.partial(nest, field, values[flag]))
    readers += [functools.partial(parse_set, assignment) for assignment in assignments]
    fields: dict[str, None] = {}
    for number, read in enumerate(readers):
        try:
            read_here = read()
        except ConfigError as error:
            problems += error.problems
            continue
        tables = merge(tables, read_here)
        if file is None or number > 0:
            fields |= dict.fromkeys(_paths(read_here))
    return Given(tables, tuple(problems), tuple(fields))


def _paths(tables: dict[str, Any]) -> Iterator[str]:
    """The dotted path of every value in nested tables."""
    for name, value in tables.items():
        if isinstance(value, dict):
            yield from (f"{name}.{path}" for path in _paths(value))
        else:
            yield name


def nest(field: str, value: Any) -> dict[str, Any]:
    """{"a": {"b": value}} for "a.b"."""
    for part in reversed(field.split(".")):
        value = {part: value}
    nested: dict[str, Any] = value
    return nested


def reports_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turns what pimkv raises into a message on stderr: exit 2 for a bad request, 1 for a failed run."""

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (ConfigError, TraceError, LogError, InvalidArgument) as error:
            mistakes = str(error).splitlines()
            head = f"{_program()}: " + (f"{len(mistakes)} mistakes\n  " if len(mistakes) > 1 else "")
            click.echo(head + "\n  ".join(mistakes), err=True)
            raise click.exceptions.Exit(2) from None
        except PimkvError as error:
            click.echo(f"{_program()}: the run failed: {error}", err=True)
            raise click.exceptions.Exit(1) from None
        except OSError as error:
            # A reader that went away is click's to handle; a full disk behind stdout is told.
            if error.errno == errno.EPIPE:
                raise
            click.echo(f"{_program()}: cannot write: {error.strerror}", err=True)
            raise click.exceptions.Exit(1) from None

    return command


def out_folder(out: str | None) -> Path | None:
    """Where --out points; `ConfigError` where no folder can be made there."""
    problems = out_problems(out)
    if problems:
        from pimkv.wording import config_error

        raise config_error(problems)
    return None if out is None else Path(out)


def out_problems(out: str | None) -> list[Problem]:
    """Why no folder can be made or written to where --out points, if so."""
    if out is None:
        return []
    if not out.strip():
        # It would be the current folder.
        return [Problem("out", out, "is empty; must name a folder", flag="--out")]
    there = next(place for place in (Path(out).absolute(), *Path(out).absolute().parents) if exists(place))
    return _unwritable(there, "out", out, "--out")


def file_problems(name: str, file: str | None) -> list[Problem]:
    """Why the file of the flag --`name` cannot be written, if so: told now, not when a run is done and lost."""
    if file is None:
        return []
    flag = f"--{name}"
    if not file.strip() or Path(file).is_dir():
        what = "is a folder" if file.strip() else "is empty"
        return [Problem(name, file, f"{what}; must name a file", flag=flag)]
    folder = Path(file).absolute().parent
    if not exists(folder):
        return [Problem(name, file, "its folder does not exist", flag=flag)]
    return _unwritable(folder, name, file, flag)


def _unwritable(folder: Path, name: str, given: str, flag: str) -> list[Problem]:
    if not folder.is_dir():
        return [Problem(name, given, f"{folder} is no folder", flag=flag)]
    if not os.access(folder, os.W_OK | os.X_OK):
        return [Problem(name, given, f"{folder} cannot be written to", flag=flag)]
    return []


def _program() -> str:
    context = click.get_current_context(silent=True)
    return context.command_path if context is not None else "pimkv"


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
quiet_option = click.option("--quiet", is_flag=True, help="No progress bar and no log.")
backend_option = click.option(
    "--backend",
    default="rust",
    show_default=True,
    metavar="NAME",
    help="rust, or reference: the Python twins.",
)


@contextmanager
def progress(label: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr once a run has lasted two seconds; none where stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    started = time.monotonic()
    bar: Any = None

    def update(done: int, total: int) -> None:
        nonlocal bar
        if bar is None and time.monotonic() - started > 2:
            bar = click.progressbar(length=total, label=label, file=sys.stderr)
            bar.__enter__()
        if bar is not None:
            bar.update(done - bar.pos)

    try:
        yield update
    finally:
        if bar is not None:
            bar.__exit__(None, None, None)


@contextmanager
def logging_to_stderr(*, quiet: bool) -> Iterator[None]:
    """Sends the package's warnings to stderr while a command runs."""
    import logging

    logger = logging.getLogger("pimkv")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("pimkv: %(message)s"))
    handler.setLevel(logging.ERROR if quiet else logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
