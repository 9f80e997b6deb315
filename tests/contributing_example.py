"""Proves the example of CONTRIBUTING.md: a policy is one Rust file, one twin and one line, and passes the contract.

    python tests/contributing_example.py [FOLDER]

Copies the tracked files, writes the blocks of "Add a policy" where the text before each says, builds the
extension (debug profile, in FOLDER or a temporary one) and runs linters, tests and a simulation on the copy.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"`([\w./-]+\.(?:rs|py))`:\n\n```\w+\n(.*?)```", re.DOTALL)


def blocks() -> list[tuple[Path, str]]:
    """(path, content) of each fenced block of the section, in order."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.split("## Add a policy", 1)[1].split("\n## ", 1)[0]
    found = [(Path(path), content) for path, content in BLOCK.findall(section)]
    if len(found) != 3 or len(found) != section.count("```") // 2:
        raise SystemExit(f"expected three blocks, each after its path; found {[str(p) for p, _ in found]}")
    return found


def apply(copy: Path) -> str:
    """Writes the blocks into the copy; the name of the new policy."""
    name = ""
    for path, content in blocks():
        file = copy / path
        if not file.exists():
            file.write_text(content)
            continue
        if content.count("\n") != 1:
            raise SystemExit(f"the registration is one line, not {content!r}")
        head, start, rest = file.read_text().partition("policies! {\n")
        if not start:
            raise SystemExit(f"{path} has no policies! {{ ... }}")
        file.write_text(head + start + content + rest)
        name = content.split('"')[1]
    return name


def main() -> None:
    """Runs every step on a copy; a step that fails ends the script with its exit code."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        for name in filter(None, tracked.stdout.split("\0")):
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        target = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(folder) / "target"
        kind = apply(copy)
        python = copy / "python"
        environment = os.environ | {
            "CARGO_TARGET_DIR": str(target),
            "PYO3_PYTHON": sys.executable,
            "PYTHONPATH": str(python),
        }

        def run(*command: str) -> None:
            print("+", *command, flush=True)
            done = subprocess.run(command, cwd=copy, env=environment, check=False)
            if done.returncode:
                raise SystemExit(done.returncode)

        new = [str(path) for path, content in blocks() if content.count("\n") > 1]
        run("rustfmt", "--check", "--edition", "2024", *(path for path in new if path.endswith(".rs")))
        run("cargo", "clippy", "-p", "pimkv-core", "--locked", "--", "-D", "warnings")
        run(sys.executable, "-m", "ruff", "check", *(path for path in new if path.endswith(".py")))
        run(
            sys.executable, "-m", "ruff", "format", "--check", *(path for path in new if path.endswith(".py"))
        )
        run("cargo", "build", "-p", "pimkv-py", "--locked")
        shutil.copy2(target / "debug" / "lib_pimkv.so", python / "pimkv" / "_pimkv.abi3.so")
        # Where it is imported from, before anything else is believed.
        run(sys.executable, "-c", f"import pimkv._pimkv as m; assert m.__file__.startswith({str(copy)!r}), m")
        tests = ("tests/test_policy_contract.py", "tests/test_differential.py")
        run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
        run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests[0], "-k", kind)
        run(
            sys.executable,
            "-m",
            "pimkv",
            "compare",
            "--requests",
            "20",
            "--allocator",
            f"paged,{kind}",
            "--quiet",
        )
    print(f"the example of CONTRIBUTING.md, {kind}, is a policy")


if __name__ == "__main__":
    main()
