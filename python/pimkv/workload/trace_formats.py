"""The formats of request traces, and the words for what is wrong with one."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final

from pimkv.errors import TraceError


@dataclass(frozen=True)
class Format:
    """The columns or keys of a format."""

    name: str
    prompt: str
    output: str
    time: str
    places: int  # decimal places between the unit of `time` and a second


CSV: Final = (
    Format("Azure", "ContextTokens", "GeneratedTokens", "TIMESTAMP", 0),
    Format("Vidur", "num_prefill_tokens", "num_decode_tokens", "arrived_at", 0),
    Format("LLMServingSim", "input_toks", "output_toks", "arrival_time_ns", 9),
)
MOONCAKE: Final = Format("Mooncake", "input_length", "output_length", "timestamp", 3)
HASHES: Final = "hash_ids"

# One request: line number, prompt and output tokens, the text of its time stamp and its hashes if it has them.
Row = tuple[int, int, int, str | None, list[int] | None]


def nearest(name: str, among: list[str]) -> tuple[float, str]:
    """How alike `name` and the one most like it are (0 to 1), and that one."""
    # Without capitals, because a slip in them alone is the commonest; cut, because the other may be any text.
    alike = difflib.SequenceMatcher(b=name.casefold())

    def ratio(other: str) -> float:
        alike.set_seq1(other[:100].casefold())
        return alike.ratio()

    return max((ratio(other), other) for other in among)


def short(text: str) -> str:
    """The text in quotes, cut to what a message can hold."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


def bad(path: str, line: int, column: str, value: str | None, why: str) -> TraceError:
    """A value that is not allowed, with its place."""
    return TraceError(
        f"{path}:{line}: {column} {'is missing' if value is None else f'= {short(value)}'}: {why}"
    )
