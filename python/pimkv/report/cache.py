"""Text about prefix caches: what runs found in theirs. Every figure is defined in docs/model.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = Sequence[str]


def cache_row(summary: dict[str, Any]) -> list[Row]:
    """A line on the prefix cache of one run; none where it is off."""
    cache = summary["prefix_cache"]
    if cache is None:
        return []
    words = f"{hit_share(cache)} of {cache['looked_up_blocks']:,} prompt blocks found, {cache['hit_tokens']:,} tokens"
    kept = f"at most {cache['peak_blocks']:,} kept, {cache['evicted_blocks']:,} evicted"
    if cache["recovered_blocks"]:
        kept += f", {cache['recovered_blocks']:,} found again after preemption"
    return [("prefix cache", words), ("  blocks", kept)]


def cache_rows(caches: Sequence[tuple[str, dict[str, Any] | None]]) -> list[Row]:
    """A table of the prefix caches of several named runs; those without one are left out."""
    rows: list[Row] = [
        ("prefix cache", "looked up", "hits", "share", "hit tokens", "evicted", "peak", "found again")
    ]
    keys = ("hit_tokens", "evicted_blocks", "peak_blocks", "recovered_blocks")
    for name, cache in caches:
        if cache is not None:
            looked_up, hits = f"{cache['looked_up_blocks']:,}", f"{cache['hit_blocks']:,}"
            rows.append((name, looked_up, hits, hit_share(cache), *(f"{cache[key]:,}" for key in keys)))
    return rows


def hit_share(cache: dict[str, Any]) -> str:
    """Hits per block looked up, as a percentage; a dash if none was."""
    share = cache["hit_share"]
    return "-" if share is None else f"{100 * share:.2f} %"
