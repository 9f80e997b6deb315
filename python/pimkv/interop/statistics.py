"""The counters that a simulator of the Ramulator 2 family prints: lines of `name: integer`."""

from __future__ import annotations

import re

# Some counters carry the number of the controller that counted them: row_hits_0.
_LINE = re.compile(r"^[ \t]*(?:- )?([A-Za-z]\w*?)(_[0-9]+)?[ \t]*:[ \t]*([0-9]+)[ \t]*$", re.MULTILINE)


def counter(text: str, name: str) -> int | None:
    """The sum of a counter over all controllers that print it; None where none does.

    Where it comes with the numbers of controllers, a line without one is their total and is not added.
    """
    found: dict[bool, list[int]] = {True: [], False: []}
    for line in _LINE.finditer(text):
        if line[1] == name:
            found[line[2] is not None].append(int(line[3]))
    values = found[True] or found[False]
    return sum(values) if values else None
