"""What a report is made of: figures and tables, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pimkv.report.tables import Row


@dataclass(frozen=True)
class Drawn:
    """A figure as files ("pdf", "png", and for the page "light" and "dark" SVG), and what belongs to it."""

    name: str
    title: str
    caption: str
    command: str
    """The command line that makes its data."""

    spec: str
    """The sweep that this command runs, as TOML; empty where it runs none."""

    files: dict[str, bytes]


@dataclass(frozen=True)
class Table:
    """A table: its title, a head and rows; the first `words` columns are no numbers."""

    title: str
    note: str
    head: Row
    rows: Sequence[Row]
    words: int = 1
