"""Hash chains of traces: read exactly, inconsistent ones named, equal block keys for equal beginnings only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from pimkv.errors import InvalidArgument, TraceError
from pimkv.workload import Chains, Requests, read_trace
from pimkv.workload.chains import ChainReader


def ints(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def read(path: Path, **options: Any) -> Requests:
    defaults: dict[str, Any] = {
        "step_ms": 30,
        "requests": None,
        "arrival_rate": None,
        "seed": 0,
        "chains": True,
    }
    return read_trace(path, **(defaults | options))


def write(folder: Path, *rows: tuple[int, int, Any], output: int = 5) -> Path:
    """A trace of (time in ms, prompt, hashes) rows."""
    path = folder / "trace.jsonl"
    keys = ("timestamp", "input_length", "hash_ids")
    lines = [json.dumps(dict(zip(keys, row, strict=True)) | {"output_length": output}) for row in rows]
    path.write_text("\n".join(lines))
    return path


def test_chains_are_read_in_order_of_time(tmp_path: Path) -> None:
    path = write(tmp_path, (90, 33, [7, 8, 9]), (0, 16, [7]), (60, 17, [7, 8]), (60, 20, [3, 8]))
    requests = read(path)
    assert requests.arrival.tolist() == [0, 2, 2, 3]
    chains = requests.chains
    assert chains is not None and chains.tokens == 16
    # Nodes are numbered as the file has them; 8 after 7 is another beginning than 8 after 3.
    assert chains.offsets.tolist() == [0, 1, 3, 5, 8]
    assert chains.nodes.tolist() == [0, 0, 1, 3, 4, 0, 1, 2]
    assert read(path, requests=2).chains.nodes.tolist() == [0, 0, 1]  # type: ignore[union-attr]
    assert read(path, chains=False).chains is None


def test_skipped_requests_have_no_chain(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [(0, 0, []), (20, 0, [1, 2]), (20, 1, [3, 4])]
    path.write_text(
        "\n".join(
            json.dumps({"timestamp": 0, "input_length": n, "output_length": out, "hash_ids": ids})
            for n, out, ids in rows
        )
    )
    requests = read(path)
    assert (len(requests), requests.skipped) == (1, 2)
    assert requests.chains is not None and requests.chains.offsets.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [(0, 33, [1, 2, 3]), (0, 33, [1, 2])],
            r":2: hash_ids: 2 hashes of a prompt of 33 tokens: .* with 11 to 16",
        ),
        ([(0, 33, [])], ":1: hash_ids: 0 hashes of a prompt of 33"),
        ([(0, 33, [1, "2", 3])], ":1: hash_ids = .*2.*: allowed a list of integers"),
        ([(0, 33, [1, 2.5, 3])], ":1: hash_ids = '2.5': allowed a list of integers"),
        ([(0, 33, [1, True, 3])], ":1: hash_ids = 'true': allowed a list of integers"),
        ([(0, 33, 3)], ":1: hash_ids = '3': allowed a list of integers"),
        ([(0, 33, [1] * 34)], ":1: hash_ids: 34 hashes of a prompt of 33 tokens"),
        (
            [(0, 100, [1]), (0, 90, [1])],
            r"jsonl: hash_ids: tokens per hash: any number from 100 to 1048576 fits",
        ),
        (
            [(0, 45, [1, 2, 3, 4])],
            r"jsonl: hash_ids: tokens per hash: any number from 12 to 14 fits .*hash_tokens=N\)",
        ),
    ],
)
def test_chains_that_do_not_fit_are_named(
    tmp_path: Path, rows: Sequence[tuple[int, int, Any]], message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        read(write(tmp_path, *rows))


def test_a_given_number_of_tokens_decides(tmp_path: Path) -> None:
    path = write(tmp_path, (0, 100, [1]), (0, 90, [1]))
    chains = read(path, hash_tokens=300).chains
    assert chains is not None and chains.tokens == 300
    with pytest.raises(
        TraceError, match=r":1: hash_ids: 1 hashes of a prompt of 100 tokens: .* by workload.hash_tokens"
    ):
        read(path, hash_tokens=64)


def test_a_trace_without_chains_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("ContextTokens,GeneratedTokens\n1,2\n")
    with pytest.raises(TraceError, match=":1: Azure traces have no hash chains"):
        read(path)
    path.write_text('{"input_length": 3, "output_length": 4}')
    with pytest.raises(TraceError, match=":1: the key hash_ids is missing"):
        read(path)


@given(tokens=st.integers(1, 40), prompts=st.lists(st.integers(1, 2000), min_size=1, max_size=12))
def test_the_tokens_of_a_hash_are_found(tokens: int, prompts: list[int]) -> None:
    reader = ChainReader(None)
    for prompt in prompts:
        assert reader.check(prompt, -(-prompt // tokens)) is None
    # Above the longest prompt every number gives one hash each.
    sizes = [*range(1, 2002), *(2**e for e in range(11, 21))]
    fitting = [t for t in sizes if all(-(-p // t) == -(-p // tokens) for p in prompts)]
    powers = {t for t in fitting if t & (t - 1) == 0}
    if len(fitting) == 1 or len(powers) == 1:
        assert reader.tokens() == (fitting[0] if len(fitting) == 1 else min(powers))
    else:
        with pytest.raises(InvalidArgument, match=f"from {fitting[0]} to {fitting[-1]}"):
            reader.tokens()


@given(
    data=st.data(),
    hash_tokens=st.integers(1, 9),
    block_tokens=st.integers(1, 9),
    n=st.integers(1, 5),
)
def test_block_keys_are_equal_where_all_tokens_before_are(
    data: st.DataObject, hash_tokens: int, block_tokens: int, n: int
) -> None:
    """Prompts of few different tokens, their hashes numbered by content, against their very tokens."""
    prompts = [tuple(data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=30))) for _ in range(n)]
    reader = ChainReader(hash_tokens)
    contents: dict[tuple[int, ...], int] = {}
    for prompt in prompts:
        stretches = [prompt[i : i + hash_tokens] for i in range(0, len(prompt), hash_tokens)]
        reader.add([contents.setdefault(stretch, len(contents)) for stretch in stretches])
    chains = reader.chains()
    keys = [chains.block_keys(i, len(prompt), block_tokens) for i, prompt in enumerate(prompts)]
    # What the chain tells of the tokens up to the end of a block: those up to the end of its last stretch.
    known: dict[int, tuple[int, tuple[int, ...]]] = {}
    for prompt, own in zip(prompts, keys, strict=True):
        assert len(own) == len(prompt) // block_tokens
        for place, key in enumerate(own):
            end = -(-(place + 1) * block_tokens // hash_tokens) * hash_tokens
            assert known.setdefault(key, (place, prompt[:end])) == (place, prompt[:end])
    assert len(set(known.values())) == len(known)


def test_a_table_checks_its_chains() -> None:
    columns: dict[str, Any] = {name: ints(1, 1) for name in ("arrival", "prompt", "output")}
    columns["prefix"] = ints(-1, -1)
    chains = Chains(4, ints(0, 1, 2), ints(0, 0))
    assert Requests(**columns, chains=chains).block_keys(1, 1) == [0]
    assert Requests(**columns).block_keys(1, 1) == []
    with pytest.raises(InvalidArgument, match="chains of 1 requests: arrival has 2"):
        Requests(**columns, chains=Chains(4, ints(0, 1), ints(0)))
    with pytest.raises(InvalidArgument, match=r"chain 1 has 2 nodes: prompt\[1\] = 1"):
        Requests(**columns, chains=Chains(4, ints(0, 1, 3), ints(0, 0, 1)))
    with pytest.raises(InvalidArgument, match="prefix_tokens = 1: goes without chains"):
        Requests(**columns, chains=chains, prefix_tokens=1)
    for tokens, offsets, nodes in (
        (0, ints(0, 1), ints(0)),
        (4, ints(0, 2), ints(0)),
        (4, ints(0), ints(2**31)),
    ):
        with pytest.raises(InvalidArgument):
            Chains(tokens, offsets, nodes)


@pytest.mark.parametrize(
    ("name", "tokens", "nodes"),
    [("mooncake_conversation.jsonl.gz", 512, 182_790), ("agent_miniswe.jsonl.gz", 16, 11_426)],
)
def test_the_chains_of_real_traces(shared: Path, name: str, tokens: int, nodes: int) -> None:
    path = shared / "traces" / name
    if not path.is_file():
        pytest.skip(f"no {name} in the folder of shared reference data")
    chains = read(path).chains
    assert chains is not None and chains.tokens == tokens
    # These number stretches by all up to their end: as many nodes as numbers.
    assert len(np.unique(chains.nodes)) == nodes
