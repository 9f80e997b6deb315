"""Requests that own whole row groups of one channel (`neupims`): what their K and V pages are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pimkv.config import Config
    from pimkv.section import Report

# The fields that decide the pages.
_SIZES = (
    *(f"allocator.options.{name}" for name in ("k_tokens", "v_tokens")),
    *(f"dram.{name}" for name in ("channels", "bank_groups", "banks_per_group", "rows", "row_bytes")),
    *(f"dram.{name}" for name in ("burst_bytes", "pch_per_command")),
    *(f"model.{name}" for name in ("kv_heads", "head_dim", "dtype_bytes")),
    *(f"layout.{name}" for name in ("kv_shards", "stacks")),
)

Pages = tuple[tuple[int, int], tuple[int, int]]
"""(tokens, row groups) of a K page and of a V page."""


@dataclass(frozen=True)
class RowGroups:
    """The channels of one shard, and the pages in them.

    A channel is what one command queue drives: all pseudo-channels that a command acts on. A row group is one
    row index in all banks of a channel. `waste` is the share of full pages that nothing can fill.
    """

    channels: int
    banks: int  # of a channel
    per_command: int  # pseudo-channels of a channel
    bytes: int  # of a row group
    elements: int  # of K of a token, and as many of V
    pages: Pages
    waste: float


def row_groups_of(config: Config) -> RowGroups | None:
    """The row groups of one shard; None for an allocator of other blocks.

    Of a K page a bank holds ceil(tokens / banks) tokens, of a V page ceil(elements / banks) dimensions of the
    page's tokens each; they lie one behind the other, in whole columns, over as many rows as they take.
    """
    page_tokens, dram, model = config.allocator.options.page_tokens, config.dram, config.model
    if page_tokens is None:
        return None
    k_tokens, v_tokens = page_tokens
    pseudo_channels = dram.channels // config.layout.kv_shards
    per_command = min(dram.pch_per_command, pseudo_channels)
    banks = dram.banks * per_command
    elements = model.kv_heads // config.layout.kv_shards // config.layout.stacks * model.head_dim

    def page(tokens: int, slots: int, slot_elements: int) -> tuple[int, int]:
        columns = -(-slot_elements * model.dtype_bytes // dram.burst_bytes)
        return tokens, -(-(-(-slots // banks) * columns * dram.burst_bytes) // dram.row_bytes)

    k = page(k_tokens, k_tokens, elements)
    v = page(v_tokens, elements, v_tokens)
    group = banks * dram.row_bytes
    per_token = sum(groups * group / tokens for tokens, groups in (k, v))
    return RowGroups(
        channels=pseudo_channels // per_command,
        banks=banks,
        per_command=per_command,
        bytes=group,
        elements=elements,
        pages=(k, v),
        waste=1 - 2 * elements * model.dtype_bytes / per_token,
    )


def owns_row_groups(config: Config) -> bool:
    """Whether the allocator gives each request row groups of its own."""
    return config.allocator.options.page_tokens is not None


def check_row_groups(config: Config, report: Report) -> None:
    """Report what is not defined where a request owns K and V pages of whole row groups."""
    if not report.sure("allocator.kind") or not owns_row_groups(config):
        return
    kind, model, layout = config.allocator.kind, config.model, config.layout
    if report.sure("workload.kind") and config.workload.kind == "spec":
        message = f"{kind} has no room for the branches of a round, nor says its source where drafts lie"
        report.add("workload.kind", "spec", f"{message}; choose another workload or allocator")
    if report.sure("layout.kv_layout") and layout.kv_layout == "published-split":
        message = f"{kind} keeps K and V apart whatever the layout, and both are read; leave it out"
        report.add("layout.kv_layout", "published-split", message)
    if report.sure("layout.passes") and layout.passes == 1:
        report.add("layout.passes", 1, f"{kind} reads K pages, then V pages; leave it out, or 2")
    if report.sure("model.v_dim") and model.v_dim:
        message = f"{kind} lays out K by token and V by dimension, and a latent stream is both"
        report.add("model.v_dim", model.v_dim, f"{message}; choose another allocator")
    if report.sure("model.window_layers") and model.window_layers:
        message = f"{kind} frees pages when their request ends, and a sliding window leaves them before"
        report.add("model.window_layers", model.window_layers, f"{message}; choose another allocator")
    groups = row_groups_of(config) if report.sure(*_SIZES) else None
    if groups is not None and (needed := sum(rows for _, rows in groups.pages)) > config.dram.rows:
        message = f"a K page and a V page take {needed} rows of a channel; the DRAM has {config.dram.rows}"
        report.add("allocator.kind", kind, message)
