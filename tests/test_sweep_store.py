"""The store of sweeps: what is finished stays, whatever happens to the process, the disk or the neighbours."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from pimkv.config import load
from pimkv.errors import ConfigError, StoreError
from pimkv.result import SCHEMA_VERSION, resolved
from pimkv.sweep.keys import Keys
from pimkv.sweep.runner import Failure, Run
from pimkv.sweep.store import STORE_VERSION, Store, configs_of


def config(seed: int, headroom: float = 1.3) -> dict[str, Any]:
    return resolved(load({"seed": seed, "scheduler": {"headroom": headroom}}))


def done(value: float) -> Run:
    return Run({"exact": {"m1": value, "m2": None}}, 0.5, "here")


FAILED = Run(Failure("ConfigError", "too large"), 0.1, "here")


def test_rows_come_in_the_order_of_their_configs_however_they_were_written(tmp_path: Path) -> None:
    points = [config(seed, headroom) for headroom in (0.6, 1.3, 10.0) for seed in (0, 2, 10)]
    orders = (range(9), reversed(range(9)))
    found = []
    for name, order in zip("ab", orders, strict=True):
        with Store.open(tmp_path / name) as store:
            for index in order:
                store.add(f"{index * 7 % 9}", points[index], done(index))
        with Store.open(tmp_path / name, readonly=True) as store:
            found.append(store.rows())
    assert found[0] == found[1]
    assert [row.config for row in found[0]] == points
    assert [row.summary for row in found[0]] == [done(index).outcome for index in range(9)]


def test_a_finished_point_is_never_written_again_and_a_failed_one_is_replaced(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        store.add("a", config(0), FAILED)
        assert (store.finished(), store.failed(), store.has("a")) == (set(), {"a"}, False)
        assert store.rows()[0].error == "ConfigError: too large"
        store.add("a", config(0), done(1))
        store.add("a", config(0), done(2))
        store.add("a", config(0), FAILED)
        assert (store.finished(), store.failed(), store.has("a")) == ({"a"}, set(), True)
        assert store.rows()[0].summary == done(1).outcome
        facts = store.run_facts("a")
        assert facts is not None
        assert (facts.host, facts.wall_s) == ("here", 0.5)
        assert store.seconds() == {"a": 0.5}
        store.remove(["a"])
        assert store.rows() == []
        assert store.run_facts("a") is None


def test_a_prefix_must_fit_one_point(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        with pytest.raises(ConfigError, match="holds no point"):
            store.find("a")
        for key in ("abc1", "abc2", "def3"):
            store.add(key, config(0), done(1))
        assert store.find("d").key == "def3"
        assert store.find("ABC2").key == "abc2"
        with pytest.raises(ConfigError, match=r"fits 2 points.*abc1, abc2"):
            store.find("abc")
        with pytest.raises(ConfigError, match="nearest: def3"):
            store.find("dez")
        with pytest.raises(ConfigError, match='key = ""'):
            store.find("")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"no database at all" * 100, "is no store of pimkv"),
        (None, "there is no such file"),
        (b"", "the file is empty"),
    ],
    ids=["foreign", "absent", "empty"],
)
def test_what_is_no_store_is_not_read(content: bytes | None, told: str, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=told):
        Store.open(path, readonly=True)
    assert (path.read_bytes() if path.exists() else None) == content


def test_another_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE results (key)")
    db.close()
    for readonly in (True, False):
        with pytest.raises(ConfigError, match="no store of pimkv"):
            Store.open(path, readonly=readonly)
    with pytest.raises(ConfigError, match="its folder does not exist"):
        Store.open(tmp_path / "no" / "s.db")
    with pytest.raises(ConfigError, match="is a folder"):
        Store.open(tmp_path)
    with pytest.raises(ConfigError, match="is empty"):
        Store.open(" ")


@pytest.mark.parametrize("what", ["store", "result"])
def test_a_store_of_another_version_is_refused_with_a_way_on(what: str, tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with Store.open(path) as store:
        store.add("a", config(3), done(1))
    db = sqlite3.connect(path)
    if what == "store":
        db.execute(f"PRAGMA user_version = {STORE_VERSION + 1}")
    else:
        db.execute("UPDATE origin SET result_schema = ?", (SCHEMA_VERSION + 1,))
    db.commit()
    db.close()
    for readonly in (True, False):
        with pytest.raises(ConfigError, match=f"pimkv sweep --again {path} --store "):
            Store.open(path, readonly=readonly)
    # What the command in the message builds on.
    assert configs_of(path) == [config(3)]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_in_a_folder_that_cannot_be_written_to_is_read(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Store.open(path) as store:
        store.add("a", config(0), done(1))
    tmp_path.chmod(0o500)
    try:
        with Store.open(path, readonly=True) as store:
            assert [row.key for row in store.rows()] == ["a"]
    finally:
        tmp_path.chmod(0o700)


def test_a_full_disk_is_reported_and_costs_nothing_that_was_finished(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Store.open(path) as store:
        store.add("first", config(0), done(1))
        (pages,) = store._db.execute("PRAGMA page_count").fetchone()
        store._db.execute(f"PRAGMA max_page_count = {pages + 2}")
        written = 0

        def fill() -> None:
            nonlocal written
            while True:
                store.add(f"k{written}", config(written), done(1))
                written += 1

        with pytest.raises(StoreError, match=r"full.*is kept"):
            fill()
        assert written > 0
        # The failed transaction left nothing, and the store goes on once there is room.
        assert len(store.rows()) == 1 + written
        store._db.execute("PRAGMA max_page_count = 100000")
        store.add("last", config(5), done(1))
    with Store.open(path, readonly=True) as store:
        assert len(store.rows()) == 2 + written


def _write(path: str, start: int) -> None:
    with Store.open(path) as store:
        for index in range(start, start + 40):
            store.add(f"{index:04}", config(index), Run({"by": start}, 0.0, ""))


@pytest.mark.timeout(120)
def test_writers_at_once_lose_and_duplicate_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    path = str(tmp_path / "s.db")
    # All of them come to a file that does not exist yet, and overlap by half.
    writers = [context.Process(target=_write, args=(path, start)) for start in (0, 20, 40)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    with Store.open(path, readonly=True) as store:
        assert sorted(row.key for row in store.rows()) == [f"{index:04}" for index in range(80)]
    assert sorted(os.listdir(tmp_path)) == ["s.db"]


def test_a_key_is_of_all_that_decides_the_result(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("ContextTokens,GeneratedTokens\n10,20\n")
    plain = load({})
    with_trace = load({"workload": {"trace": str(trace)}})
    keys = Keys()
    # What is left out and what is given as the same value are one point.
    assert keys.of(plain) == keys.of(load({"workload": {"requests": 1000}, "layout": {"passes": 1}}))
    assert keys.of(plain) != keys.of(load({"seed": 1}))
    before = keys.of(with_trace)
    trace.write_text("ContextTokens,GeneratedTokens\n10,21\n")
    assert Keys().of(with_trace) != before
    trace.unlink()
    with pytest.raises(ConfigError, match=r"workload.trace = .*No such file"):
        Keys().of(with_trace)


def test_a_timing_counts_by_its_figures(tmp_path: Path) -> None:
    presets = tmp_path / "timing.toml"
    text = (
        '[mine]\nnote = "n"\ntCK_ps = 769\nnRCD = 19\nnRP = 19\nnRAS = 45\nnRC = 63\nnRTP = 8\nnCCDAB = 6\n'
    )
    presets.write_text(text)
    tables = {"controller": {"timing": "mine", "presets": str(presets), "refresh": False}}
    before = Keys().of(load(tables))
    presets.write_text(text.replace('"n"', '"another note"'))
    assert Keys().of(load(tables)) == before
    presets.write_text(text.replace("nRC = 63", "nRC = 64"))
    assert Keys().of(load(tables)) != before
