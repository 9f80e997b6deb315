"""The ledger of published claims: seconds for its rows, and for rows and sentences, in one run.

python benches/reproduce.py [--jobs 2] [--repeat 3] prints one JSON object. Starting the workers is timed,
importing pimkv here is not. Targets on two cores: 60 s for the rows, 180 s with every sentence.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence

from headline import host, spread

from pimkv.reproduce import DIFFERS, Claim, judge, row_claims
from pimkv.sentences import SENTENCES

TARGETS_S = {"rows": 60, "rows_and_sentences": 180}


def timed(claims: Sequence[Claim], jobs: int) -> float:
    """Seconds to measure and judge all of the claims."""
    started = time.perf_counter()
    entries = judge(claims, jobs=jobs)
    seconds = time.perf_counter() - started
    if wrong := [entry for entry in entries if entry.verdict == DIFFERS]:
        raise SystemExit(f"{len(wrong)} differ, first {wrong[0].claim.name}: {'; '.join(wrong[0].why)}")
    return seconds


def main() -> None:
    """Times both ledgers, taking turns, so that a drift of the machine's speed touches both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each ledger")
    args = parser.parse_args()
    ledgers = {"rows": row_claims(), "rows_and_sentences": (*row_claims(), *SENTENCES)}
    seconds: dict[str, list[float]] = {name: [] for name in ledgers}
    for _ in range(args.repeat):
        for name, claims in ledgers.items():
            seconds[name].append(timed(claims, args.jobs))
    print(
        json.dumps(
            {
                "host": host(),
                "jobs": args.jobs,
                "claims": {name: len(claims) for name, claims in ledgers.items()},
                "seconds": {name: spread(values) for name, values in seconds.items()},
                "targets_s": TARGETS_S,
                "met": all(max(seconds[name]) <= limit for name, limit in TARGETS_S.items()),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
