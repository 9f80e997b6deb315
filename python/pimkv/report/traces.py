"""Text about a request trace: its lengths, and what a prefix cache of each size would find."""

from __future__ import annotations

from typing import Any

from pimkv.report.cache import hit_share
from pimkv.report.tables import Row, aligned, figure


def trace_table(facts: dict[str, Any]) -> str:
    """Lengths, and the hit share at each size of the cache."""
    skipped = f" ({facts['skipped_requests']:,} more skipped)" if facts["skipped_requests"] else ""
    lines = [
        f"{facts['trace']}: {facts['requests']:,} requests{skipped}, the last one arrives in step "
        f"{facts['last_arrival_step']:,}",
        "",
    ]
    lengths = facts["lengths"]
    rows: list[Row] = [("tokens", *lengths["prompt"])]
    rows += [(name, *(figure(value, 1) for value in column.values())) for name, column in lengths.items()]
    lines += [*aligned(rows), ""]
    cache = facts["prefix_cache"]
    if cache is None:
        return "\n".join([*lines, "no hash chains: nothing says which prompts begin alike"])
    lines += [f"prefix cache, {cache['block_tokens']}-token blocks, one request after the other:", ""]
    table: list[Row] = [("blocks", "looked up", "hits", "share", "hit tokens", "evicted", "peak")]
    for row in cache["sizes"]:
        size = "any number" if row["cache_blocks"] is None else f"{row['cache_blocks']:,}"
        counts = (f"{row[key]:,}" for key in ("hit_tokens", "evicted_blocks", "peak_blocks"))
        table.append(
            (size, f"{row['looked_up_blocks']:,}", f"{row['hit_blocks']:,}", hit_share(row), *counts)
        )
    return "\n".join([*lines, *aligned(table)])
