"""Does the row model for plain reads count what Ramulator 2.1 counts?"""

from __future__ import annotations

import pytest
from attacc_data import needs_data, table

from pimkv.reference.row_model import RowCounts, block_reads, count_rows

READS = [record for record in table("ramulator21_hbm3_reads.csv") if record["refresh"] == "0"]


@needs_data
@pytest.mark.parametrize("record", READS, ids=lambda r: f"{r['id']}-{r['order']}-{r['scheduler']}")
def test_row_hit_rate(record: dict[str, str]) -> None:
    blocks = [int(block) for block in record["block_ids"].split()]
    counts = count_rows(block_reads(blocks, "burst" if record["order"] == "burst" else "bank"))
    assert counts.hits + counts.misses + counts.conflicts == int(record["n_reads_accepted"])
    assert abs(counts.hit_rate - float(record["hit_rate"])) <= 0.0003
    # Every row visit is exact. The simulator stops with up to 39 reads unserved, which only hits can be.
    assert (counts.misses, counts.conflicts) == (int(record["row_misses"]), int(record["row_conflicts"]))
    assert 0 <= counts.hits - int(record["row_hits"]) <= 39


@needs_data
def test_no_run_is_missing() -> None:
    assert len(READS) > 0
    assert {record["scheduler"] for record in READS} == {"FRFCFS", "FRFCFSRowHit"}


def test_hits_misses_and_conflicts() -> None:
    reads = [((0, 0), 5), ((0, 0), 5), ((0, 1), 5), ((0, 0), 6), ((1, 0), 6)]
    assert count_rows(reads) == RowCounts(hits=1, misses=3, conflicts=1)
    assert count_rows([]).hit_rate == 0.0
