"""The store of a sweep: one SQLite file, one row per point, safe against kills, full disks and company.

Every outcome is one transaction of its own. A finished point is never written again; a failed one is replaced
when it is run again. The write-ahead log takes a transaction in microseconds and survives the death of the
process at any moment; it needs a file system of this machine, not one of the network. Tables and versions are
in docs/formats.md.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from pimkv.errors import ConfigError, Problem, StoreError
from pimkv.result import SCHEMA_VERSION, flat
from pimkv.sweep.runner import Failure, Run
from pimkv.wording import config_error, nearest

STORE_VERSION = 1
"""Version of the tables below; SQLite's `user_version`."""

# "pimk": tells a store from any other SQLite file.
_APPLICATION = 0x70696D6B
_WAIT_S = 60.0
_TABLES = """
CREATE TABLE origin (result_schema INTEGER NOT NULL, pimkv TEXT NOT NULL);
CREATE TABLE results (
    key TEXT PRIMARY KEY NOT NULL,
    config TEXT NOT NULL,
    summary TEXT,
    error TEXT,
    CHECK ((summary IS NULL) <> (error IS NULL))
);
CREATE INDEX states ON results (key, error);
CREATE TABLE runs (
    key TEXT PRIMARY KEY NOT NULL REFERENCES results (key) ON DELETE CASCADE,
    finished TEXT NOT NULL,
    wall_s REAL NOT NULL,
    host TEXT NOT NULL,
    pimkv TEXT NOT NULL,
    numpy TEXT NOT NULL
) WITHOUT ROWID;
"""


# Reading a version opens files: once is enough for a thousand points.
version = cache(metadata.version)


@dataclass(frozen=True)
class Row:
    """One point: its resolved config as nested tables, and either its summary or why there is none."""

    key: str
    config: dict[str, Any]
    summary: dict[str, Any] | None
    error: str | None


@dataclass(frozen=True)
class RunFacts:
    """When, where and how long a point ran: UTC time, host, seconds, versions. Never part of a result."""

    finished: str
    wall_s: float
    host: str
    pimkv: str
    numpy: str


class Store:
    """The points that were run. Use `open`; close it, or use it as a context manager.

    Methods raise `StoreError` where SQLite cannot do what is asked: a full disk, a damaged file.
    """

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._db = connection
        self.path = path

    @classmethod
    def open(cls, path: str | Path, *, readonly: bool = False) -> Store:
        """The store at `path`; a new one where there is no file, unless it is only to be read.

        ":memory:" is a store that ends with the process. Raises `ConfigError` for a file that does not
        exist, is no store, or is a store of another version.
        """
        name = str(path)
        if mistakes := path_mistakes(name, readonly=readonly):
            raise config_error(mistakes)
        try:
            store = cls(_connected(name, readonly=readonly), name)
        except sqlite3.OperationalError as error:
            raise _refused(name, f"cannot be opened: {error}") from None
        except sqlite3.DatabaseError as error:
            raise _refused(name, f"is no store of pimkv: {error}") from None
        try:
            store._begin(readonly=readonly)
        except BaseException:
            store.close()
            raise
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; the last one to do so folds the write-ahead log into it."""
        self._db.close()

    # --- reading ---------------------------------------------------------------------------------------------

    def rows(self, keys: Iterable[str] | None = None) -> list[Row]:
        """All points, or those of `keys` that are there, in the order of their configs.

        That order does not depend on who ran what when: the values of the resolved config, field by field
        in the alphabetical order of the fields' dotted names, then the key.
        """
        wanted = None if keys is None else set(keys)
        with self._speaking():
            found = [
                Row(key, json.loads(config), None if summary is None else json.loads(summary), error)
                for key, config, summary, error in self._db.execute(
                    "SELECT key, config, summary, error FROM results"
                )
                if wanted is None or key in wanted
            ]
        return sorted(found, key=lambda row: (_order(row.config), row.key))

    def finished(self) -> set[str]:
        """Keys of the points that have a summary."""
        with self._speaking():
            return {key for (key,) in self._db.execute("SELECT key FROM results WHERE error IS NULL")}

    def failed(self) -> set[str]:
        """Keys of the points whose last run failed."""
        with self._speaking():
            return {key for (key,) in self._db.execute("SELECT key FROM results WHERE error IS NOT NULL")}

    def has(self, key: str) -> bool:
        """Whether this point has a summary by now; another process may have written it."""
        with self._speaking():
            found = self._db.execute("SELECT 1 FROM results WHERE key = ? AND error IS NULL", (key,))
            return found.fetchone() is not None

    def find(self, prefix: str) -> Row:
        """The point whose key begins so. `ConfigError` if there is none (with the nearest), or several."""
        with self._speaking():
            keys = [key for (key,) in self._db.execute("SELECT key FROM results ORDER BY key")]
        fitting = [key for key in keys if prefix and key.startswith(prefix.lower())]
        if len(fitting) == 1:
            return self.rows(fitting)[0]
        if fitting:
            shown = ", ".join(key[: len(prefix) + 4] for key in fitting[:4]) + ", ..." * (len(fitting) > 4)
            raise config_error(
                [Problem("key", prefix, f"fits {len(fitting)} points; give more of it: {shown}")]
            )
        size = min(max(len(prefix), 12), 64)
        near = nearest(prefix, [key[:size] for key in keys], least=0.01)
        hint = f"nearest: {near}" if near else ""
        wrong = f"no point of {self.path} begins so" if keys else f"{self.path} holds no point"
        raise config_error([Problem("key", prefix, wrong, hint)])

    def run_facts(self, key: str) -> RunFacts | None:
        """When, where and how long a point ran."""
        with self._speaking():
            found = self._db.execute(
                "SELECT finished, wall_s, host, pimkv, numpy FROM runs WHERE key = ?", (key,)
            ).fetchone()
        return None if found is None else RunFacts(*found)

    def seconds(self) -> dict[str, float]:
        """Seconds that each finished point took."""
        with self._speaking():
            return dict(
                self._db.execute("SELECT key, wall_s FROM runs JOIN results USING (key) WHERE error IS NULL")
            )

    # --- writing ---------------------------------------------------------------------------------------------

    def add(self, key: str, config: dict[str, Any], run: Run) -> bool:
        """Writes one outcome; it is on file when this returns. A summary that is there already stays: False."""
        failed = isinstance(run.outcome, Failure)
        result = (
            key,
            json.dumps(config, allow_nan=False),
            None if failed else json.dumps(run.outcome, allow_nan=False),
            str(run.outcome) if failed else None,
        )
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        facts = (key, now, run.wall_s, run.host, version("pimkv"), version("numpy"))
        with self._writing():
            written = self._db.execute(
                "INSERT INTO results VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE"
                " SET config = excluded.config, summary = excluded.summary, error = excluded.error"
                " WHERE results.error IS NOT NULL",
                result,
            )
            if written.rowcount:
                self._db.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?)", facts)
        return bool(written.rowcount)

    def remove(self, keys: Sequence[str]) -> None:
        """Removes these points, all of them or none."""
        with self._writing():
            self._db.executemany("DELETE FROM results WHERE key = ?", [(key,) for key in keys])

    # --- the file --------------------------------------------------------------------------------------------

    def _begin(self, *, readonly: bool) -> None:
        try:
            if readonly:
                empty = not self._check()
            else:
                _retrying(lambda: self._db.execute("PRAGMA journal_mode = WAL"))
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._db.execute("PRAGMA foreign_keys = ON")
                with self._writing():
                    # Checked inside the transaction: of two that come to an empty file one makes the tables.
                    empty = not self._check()
                    if empty:
                        self._create()
        except sqlite3.OperationalError as error:
            raise _refused(self.path, f"cannot be opened: {error}") from None
        except sqlite3.DatabaseError as error:
            raise _refused(self.path, f"is no store of pimkv: {error}") from None
        if readonly and empty:
            raise _refused(self.path, "is no store of pimkv: the file is empty")

    def _create(self) -> None:
        for statement in _TABLES.split(";"):
            self._db.execute(statement)
        self._db.execute("INSERT INTO origin VALUES (?, ?)", (SCHEMA_VERSION, version("pimkv")))
        self._db.execute(f"PRAGMA application_id = {_APPLICATION}")
        self._db.execute(f"PRAGMA user_version = {STORE_VERSION}")

    def _check(self) -> bool:
        """Whether this is a store of ours and of this version; False for an empty file, an error otherwise."""
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != _APPLICATION:
            if tables or application:
                raise _refused(self.path, "is an SQLite file, but no store of pimkv")
            return False
        (store,) = self._db.execute("PRAGMA user_version").fetchone()
        result, writer = self._db.execute("SELECT result_schema, pimkv FROM origin").fetchone()
        if (store, result) != (STORE_VERSION, SCHEMA_VERSION):
            raise _refused(
                self.path,
                f"was written by pimkv {writer} with store version {store} and result schema {result}; this is "
                f"pimkv {version('pimkv')} with {STORE_VERSION} and {SCHEMA_VERSION}. To run its points again "
                f"into a store of this version: pimkv sweep --again {self.path} --store {_beside(self.path)}",
            )
        return True

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._speaking():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                # SQLite has rolled back by itself where the disk was full.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(
                f"store = {self.path!r}: {error}; every point that was reported as finished is kept"
            ) from error


def path_mistakes(path: str | Path, *, readonly: bool = False) -> list[Problem]:
    """Why no store can be at `path`, as far as that shows without opening it."""
    name = str(path)
    wrong = ""
    if not name.strip():
        wrong = "is empty; must name a file"
    elif name == ":memory:":
        pass
    elif Path(name).is_dir():
        wrong = "is a folder; must name a file"
    elif readonly and not Path(name).exists():
        wrong = "there is no such file"
    elif not Path(name).absolute().parent.is_dir():
        wrong = "its folder does not exist"
    return [Problem("store", name, wrong, flag="--store")] if wrong else []


def configs_of(path: str | Path) -> list[dict[str, Any]]:
    """The configs of a store of any version, in the order of `Store.rows`: what is needed to run it again.

    Every version of the store keeps them as JSON in `results.config`.
    """
    name = str(path)
    if not Path(name).is_file():
        raise _refused(name, "there is no such file", field="again", flag="--again")
    try:
        db = _connected(name, readonly=True)
        try:
            if db.execute("PRAGMA application_id").fetchone() != (_APPLICATION,):
                raise _refused(name, "is no store of pimkv", field="again", flag="--again")
            found = [json.loads(text) for (text,) in db.execute("SELECT config FROM results")]
        finally:
            db.close()
    except sqlite3.DatabaseError as error:
        raise _refused(name, f"is no store of pimkv: {error}", field="again", flag="--again") from None
    return sorted(found, key=_order)


def _connected(path: str, *, readonly: bool) -> sqlite3.Connection:
    # Transactions are begun by hand: the module's own do not cover the creation of tables.
    if path == ":memory:":
        return sqlite3.connect(path, isolation_level=None)
    uri = Path(path).absolute().as_uri()
    # A reader opens the file as a writer does, so that it too clears the log away when it is the last.
    db = sqlite3.connect(
        f"{uri}?mode={'rw' if readonly else 'rwc'}", uri=True, timeout=_WAIT_S, isolation_level=None
    )
    if not readonly:
        return db
    try:
        db.execute("PRAGMA query_only = ON")
        db.execute("PRAGMA schema_version").fetchone()
    except sqlite3.DatabaseError as error:
        db.close()
        log = Path(f"{path}-wal")
        if not isinstance(error, sqlite3.OperationalError) or (log.exists() and log.stat().st_size):
            raise
        # A folder that cannot be written to has no room for the shared memory that readers need; where no
        # log is left, nobody writes either.
        db = sqlite3.connect(f"{uri}?immutable=1", uri=True, isolation_level=None)
    return db


def _retrying(action: Any) -> None:
    """SQLite does not wait by itself for the lock that a change of the journal takes."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            action()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _order(config: dict[str, Any]) -> tuple[Any, ...]:
    fields = sorted(flat(config).items())
    return tuple((name, _rank(value), "" if value is None else value) for name, value in fields)


def _rank(value: object) -> int:
    return 0 if value is None else 2 if isinstance(value, str) else 1


def _beside(path: str) -> str:
    old = Path(path)
    return str(old.with_name(f"{old.stem}-v{STORE_VERSION}{old.suffix}"))


def _refused(path: str, message: str, *, field: str = "store", flag: str = "--store") -> ConfigError:
    return config_error([Problem(field, path, message, flag=flag)])
