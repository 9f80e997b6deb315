"""Instructions per allocator operation, under callgrind: they hardly move where times do.

python benches/instructions.py compares with benches/instructions.json and fails if a count has risen by more
than 2 %; --update writes that file anew. Says so and stops where valgrind or cargo is not installed. Counts
are of one build: another compiler may move them, which the comparison then tells.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pimkv.bench.host import host

ROOT = Path(__file__).resolve().parents[1]
BASELINE = Path(__file__).with_suffix(".json")
TOLERANCE = 0.02
CASES = [(policy, log) for log in ("mix", "grow", "admit") for policy in ("paged", "indexed", "heaps")]


def output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout + done.stderr


def counted(program: Path, policy: str, log: str) -> tuple[int, int]:
    """(instructions, operations) of one pass."""
    with tempfile.TemporaryDirectory() as folder:
        told = output(
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={folder}/out",
            "--toggle-collect=*Replay*run*",
            str(program),
            policy,
            log,
        )
    found = re.search(r"Collected : (\d+)", told)
    operations = re.search(r"^(\d+)$", told, re.MULTILINE)
    if found is None or operations is None or found[1] == "0":
        sys.exit(f"valgrind counted nothing for {policy} on {log}:\n{told}")
    return int(found[1]), int(operations[1])


def measure() -> dict[str, Any]:
    """Instructions per operation, those of the empty loop subtracted, per policy and log."""
    output("cargo", "build", "--release", "--package", "pimkv-core", "--example", "instructions")
    program = ROOT / "target" / "release" / "examples" / "instructions"
    loops = {log: counted(program, "null", log) for log in ("mix", "grow", "admit")}
    counts = {}
    for policy, log in CASES:
        instructions, operations = counted(program, policy, log)
        loop, _ = loops[log]
        counts[f"{policy} {log}"] = round((instructions - loop) / operations, 3)
    return {
        "host": host(),
        "rustc": output("rustc", "--version").strip(),
        "valgrind": output("valgrind", "--version").strip(),
        "spread": 0.0,
        "instructions_per_operation": counts,
    }


def main() -> None:
    """Prints the counts as JSON, beside the committed ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", help="write the counts to benches/instructions.json")
    args = parser.parse_args()
    for tool in ("valgrind", "cargo"):
        if shutil.which(tool) is None:
            print(f"instructions are not counted: {tool} is not installed", file=sys.stderr)
            return
    measured = measure()
    if args.update:
        # What one machine happened to be is of no use in a file that others compare with.
        kept = {key: value for key, value in measured.items() if key != "host"}
        BASELINE.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    baseline = json.loads(BASELINE.read_text(encoding="utf-8"))
    before, now = baseline["instructions_per_operation"], measured["instructions_per_operation"]
    ratios = {case: now[case] / before[case] for case in now if before.get(case)}
    print(json.dumps(measured | {"baseline": before, "ratio": ratios, "tolerance": TOLERANCE}, indent=2))
    if baseline["rustc"] != measured["rustc"]:
        print(f"the baseline is of {baseline['rustc']}", file=sys.stderr)
    risen = [case for case, ratio in ratios.items() if ratio > 1 + TOLERANCE]
    if risen:
        sys.exit(f"more instructions per operation than the baseline: {', '.join(risen)}")


if __name__ == "__main__":
    main()
