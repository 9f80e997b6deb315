"""What a point is known by: a hash of all that decides its result, equal wherever and however it is run."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pimkv.config import Config, timing_of
from pimkv.errors import Problem
from pimkv.result import SCHEMA_VERSION, resolved
from pimkv.wording import config_error


class Keys:
    """Gives configs their keys, and reads each file that they name once."""

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}

    def of(self, config: Config) -> str:
        """64 hexadecimal digits; docs/formats.md says of what.

        A trace counts by its path and its content, timing figures from a file by their values: a file that
        changed makes another point. Raises `ConfigError` for a trace that cannot be read.
        """
        identity = {
            "result_schema": SCHEMA_VERSION,
            "config": resolved(config),
            "timing": timing_of(config).model_dump(mode="json", exclude={"note"}),
            "trace_sha256": None if config.workload.trace is None else self._digest(config.workload.trace),
        }
        return hashlib.sha256(canonical(identity).encode()).hexdigest()

    def _digest(self, path: str) -> str:
        if path not in self._digests:
            try:
                with open(path, "rb") as file:
                    self._digests[path] = hashlib.file_digest(file, "sha256").hexdigest()
            except (OSError, ValueError) as error:  # ValueError: a path with a null byte
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                raise config_error(
                    [Problem("workload.trace", path, f"cannot be read: {reason}", flag="--trace")]
                ) from None
        return self._digests[path]


def canonical(value: Any) -> str:
    """JSON without choices: keys sorted, no spaces, ASCII; NaN is refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
