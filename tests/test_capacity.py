"""What a run needs of its pool: batch, makespan, waste, stalls, against cases done by hand and a recount."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given

from pimkv.allocators import kinds, options_of
from pimkv.backend import BlockManager, Ints
from pimkv.config import Config, geometry, load
from pimkv.metrics import mean
from pimkv.simulation import Simulation
from pimkv.workload.table import Requests

TINY_TOKENS = 4
TINY_BYTES = 16384


def requests(*rows: tuple[int, int, int]) -> Requests:
    """(arrival, prompt, output) each, nothing shared."""
    arrival, prompt, output = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return Requests(arrival, prompt, output, np.full(len(rows), -1, dtype=np.int64))


def tiny(kind: str, blocks: int, max_batch: int = 2, admission: str = "oracle") -> Config:
    # Blocks of 64 KiB: four tokens of 16 KiB.
    return load(
        {
            "model": {"preset": "mha-32kv"},
            "layout": {"block_tokens": TINY_TOKENS},
            "allocator": {"kind": kind},
            "scheduler": {"pool_blocks": blocks, "max_batch": max_batch, "admission": admission},
        }
    )


def capacity(config: Config, rows: Requests, backend: str) -> dict[str, Any]:
    summary = Simulation(config, requests=rows, backend=backend).run().summary
    return {"steps": summary["decode_steps"], **summary["capacity"]}


BACKENDS = pytest.mark.parametrize("backend", ["rust", "reference"])


@BACKENDS
def test_a_request_waits_for_blocks_and_the_system_idles(backend: str) -> None:
    """The first holds 2 blocks in steps 3 to 6, the second needs 3 of 4 and waits, the third comes at 20."""
    rows = requests((3, 4, 4), (3, 8, 2), (20, 1, 1))
    assert capacity(tiny("paged", 4), rows, backend) == {
        "steps": 7,
        "mean_batch": 1.0,
        "makespan": 18,
        "generated_tokens": 7,
        "reserved_bytes": (4 * 8 + 2 * 12 + 4) * TINY_BYTES,
        "used_bytes": ((5 + 6 + 7 + 8) + (9 + 10) + 2) * TINY_BYTES,
        "waste": mean([3 / 5, 2 / 6, 1 / 7, 0, 3 / 9, 2 / 10, 2 / 2]),
        "stalls": 4,
        "copied_blocks": 0,
    }


@BACKENDS
def test_a_full_batch_is_no_stall(backend: str) -> None:
    rows = requests((3, 4, 4), (3, 8, 2), (20, 1, 1))
    got = capacity(tiny("paged", 4, max_batch=1), rows, backend)
    assert (got["stalls"], got["makespan"]) == (0, 18)


@BACKENDS
def test_a_preempted_request_stalls_until_its_blocks_are_there(backend: str) -> None:
    """In step 0 the second request takes the blocks of the first, which waits in steps 1 to 3."""
    got = capacity(tiny("paged", 3, admission="vllm"), requests((0, 4, 6), (0, 4, 4)), backend)
    assert got == {
        "steps": 9,
        "mean_batch": 1.0,
        "makespan": 9,
        "generated_tokens": 10,
        "reserved_bytes": (8 * 4 + 8 * 3 + 12 * 2) * TINY_BYTES,
        "used_bytes": ((5 + 6 + 7 + 8) + (6 + 7 + 8 + 9 + 10)) * TINY_BYTES,
        "waste": mean([3 / 5, 2 / 6, 1 / 7, 0, 2 / 6, 1 / 7, 0, 3 / 9, 2 / 10]),
        "stalls": 3,
        "copied_blocks": 0,
    }


@BACKENDS
def test_a_span_is_reserved_whole(backend: str) -> None:
    """8 steps hold 3 blocks for a request that ends with 9 tokens; 2 of 4 blocks are then too many for another."""
    got = capacity(tiny("contiguous", 4), requests((0, 1, 8), (0, 4, 2)), backend)
    assert got["reserved_bytes"] == (8 * 12 + 2 * 8) * TINY_BYTES
    assert got["used_bytes"] == (sum(range(2, 10)) + 5 + 6) * TINY_BYTES
    assert got["stalls"] == 8


class Recount:
    """Counts bytes held and bytes written of the blocks in use, at every step, from the block tables alone."""

    def __init__(self, config: Config, run: Simulation) -> None:
        shape = geometry(config)
        self.tokens_per_block, self.block_bytes = shape.block_tokens, shape.block_bytes
        self.token_bytes, self.row_groups = shape.token_bytes, shape.row_groups is not None
        self.pool = run.pool_blocks
        self.full_prefix = run.requests.prefix_tokens // self.tokens_per_block
        self.shares = run.requests.prefix >= 0
        self.spans, self.shared = config.allocator.options.spans, config.allocator.options.shares
        self.pinned: set[int] = set()
        self.steps: list[tuple[int, int, int]] = []

    def __call__(self, _step: int, seqs: Ints, manager: BlockManager) -> None:
        lengths = [manager.length(seq) for seq in seqs.tolist()]
        held = self.pool - manager.free_blocks
        if self.row_groups:
            # Whole rows of one request's K or V: there is no block whose tokens could be counted.
            self.steps.append((len(seqs), held * self.block_bytes, sum(lengths) * self.token_bytes))
            return
        written: dict[int, int] = {}
        for seq, length in zip(seqs.tolist(), lengths, strict=True):
            table, left = manager.table(seq).tolist(), length
            if self.shares[seq] and self.shared:
                self.pinned |= set(table[: self.full_prefix])
            for block in table:
                here = min(left, self.tokens_per_block)
                assert written.get(block, here) == here, "two tables hold different tokens of one block"
                written[block] = here
                left -= here
            assert left == 0
        written |= dict.fromkeys(self.pinned, self.tokens_per_block)
        held = held if self.spans else len(written)
        self.steps.append((len(seqs), held * self.block_bytes, sum(written.values()) * self.token_bytes))


CASES = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(kinds()),
        "workload": st.sampled_from(["steady", "prefix", "spec"]),
        "block_tokens": st.sampled_from([4, 16]),
        "headroom": st.sampled_from([0.4, 1.3]),
        "admission": st.sampled_from(["oracle", "vllm"]),
        "seed": st.integers(0, 20),
    }
)


def asked(case: dict[str, Any], requests: int, max_batch: int) -> Config:
    options = options_of(case["kind"])
    layout = {} if options.own_unit else {"block_tokens": case["block_tokens"]}
    # Where drafts lie in row groups nobody says.
    assume(case["kind"] != "neupims" or case["workload"] != "spec")
    return load(
        {
            "seed": case["seed"],
            "workload": {"kind": case["workload"], "requests": requests},
            "layout": layout,
            "allocator": {"kind": case["kind"]},
            "scheduler": {
                "admission": "oracle" if options.spans else case["admission"],
                "headroom": case["headroom"],
                "max_batch": max_batch,
            },
        }
    )


@given(case=CASES)
def test_waste_is_what_the_block_tables_say(case: dict[str, Any]) -> None:
    config = asked(case, requests=12, max_batch=4)
    run = Simulation(config)
    recount = Recount(config, run)
    summary = run.run(on_step=recount).summary
    got = summary["capacity"]
    batch, reserved, used = (sum(step[i] for step in recount.steps) for i in range(3))
    assert summary["decode_steps"] == 0 or got["mean_batch"] == batch / summary["decode_steps"]
    assert got["reserved_bytes"] - got["used_bytes"] == reserved - used
    # The steps in which nobody is left running are not shown to a watcher; only a prefix holds blocks then.
    if summary["decode_steps"] == len(recount.steps):
        assert (got["reserved_bytes"], got["used_bytes"]) == (reserved, used)
        assert got["waste"] == mean([(held - full) / full for _, held, full in recount.steps if full])
    assert got["makespan"] >= summary["decode_steps"]
    assert got["stalls"] <= summary["decode_steps"]


@given(case=CASES)
def test_both_backends_count_the_same(case: dict[str, Any]) -> None:
    config = asked(case, requests=5, max_batch=3)
    rust, twins = (Simulation(config, backend=name).run().summary for name in ("rust", "reference"))
    assert rust["capacity"] == twins["capacity"]
