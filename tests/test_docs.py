"""Every fenced command of the documents runs, every Python example too, and shown output is what is printed.

A fenced block whose lines begin with a program's name is a list of commands. They run from top to bottom in one
folder per document, with bash; `requests.csv` is there, `requests.jsonl` with hash chains, and links to the
checkout's own folders. A block that
follows the comment `<!-- output of: COMMAND -->` is output: each of its lines must be among those that COMMAND prints.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")))
PROGRAMS = ("pimkv", "python", "make", "cargo", "pip", "bash", "PIMKV_")
LINKS = ("benches", "examples", "rust", "Cargo.toml", "Cargo.lock", "tests", "docs")

# Commands of minutes, and those that compile: they run where everything does.
SLOW = re.compile(
    r"^(pimkv reproduce --sentences|pimkv bench cost|python benches/|.*\bcargo |"
    r"pimkv compare --all --pareto --untimed (?!--headroom))"
)
# These read no file, and print the same from any folder.
PURE = re.compile(r"^pimkv (bench cost|compare|derive|presets|reproduce)\b")
PRINTED: dict[str, str] = {}
# As in the document but for the number of operations: the long run is for a long night.
SHORTER = {"PIMKV_SOAK_OPERATIONS=100000000": "PIMKV_SOAK_OPERATIONS=1000000"}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its lines, and the command whose output it shows."""

    line: int
    language: str
    lines: tuple[str, ...]
    output_of: str | None

    @property
    def commands(self) -> list[str]:
        """Its commands, without their comments; none if it is something else."""
        if self.language not in ("", "sh") or self.output_of or not self.lines[0].startswith(PROGRAMS):
            return []
        joined = "\n".join(self.lines).replace("\\\n", " ").splitlines()
        return [stripped for line in joined if (stripped := re.sub(r"(^|\s+)#.*", "", line).strip())]


def blocks_of(document: str) -> list[Block]:
    """The fenced blocks of a document, in order."""
    found: list[Block] = []
    output_of: str | None = None
    opened: tuple[int, str] | None = None
    lines: list[str] = []
    for number, line in enumerate((ROOT / document).read_text(encoding="utf-8").splitlines(), 1):
        if opened is None:
            if comment := re.fullmatch(r"<!-- output of: (.*) -->", line):
                output_of = comment[1]
            elif line.startswith("```"):
                opened, lines = (number, line[3:].strip()), []
            elif line.strip():
                output_of = None
        elif line.startswith("```"):
            found.append(Block(*opened, tuple(lines), output_of))
            opened, output_of = None, None
        else:
            lines.append(line)
    assert opened is None, f"{document}: the block of line {opened} is never closed"
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder per document: what one command writes the next may read."""
    made = {}
    for document in DOCUMENTS:
        folder = tmp_path_factory.mktemp(document.replace("/", "-"))
        rows = [f"{i * 0.12:.2f},{50 + 37 * i % 900},{20 + 53 * i % 300}" for i in range(60)]
        (folder / "requests.csv").write_text(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n"
        )
        turns = (
            {"timestamp": 120 * i, "input_length": 50 + 20 * (i % 8), "output_length": 20 + 7 * i % 90}
            | {"hash_ids": [1000 * (i % 3) + place for place in range(-(-(50 + 20 * (i % 8)) // 16))]}
            for i in range(60)
        )
        (folder / "requests.jsonl").write_text("\n".join(map(json.dumps, turns)))
        for name in LINKS:
            if (ROOT / name).exists():
                (folder / name).symlink_to(ROOT / name)
        made[document] = folder
    return made


def _run(command: str, folder: Path) -> str:
    """What a command prints; fails with its messages if it fails. What needs no file runs once for all documents."""
    if PURE.match(command) and "--out" not in command:
        if command not in PRINTED:
            PRINTED[command] = _run_anew(command, folder)
        return PRINTED[command]
    return _run_anew(command, folder)


def _run_anew(command: str, folder: Path) -> str:
    for long, short in SHORTER.items():
        command = command.replace(long, short)
    if command.startswith("make"):
        # What make would do is what runs this test; here only: the target is there and its recipe expands.
        command = command.replace("make", "make --dry-run", 1)
        folder = ROOT
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stderr[-2000:]}"
    return done.stdout


def _skip_if_it_cannot_run(command: str) -> None:
    if SLOW.match(command) and os.environ.get("PIMKV_HYPOTHESIS", "fast") == "fast":
        pytest.skip("takes a minute; runs with PIMKV_HYPOTHESIS=ci")
    if "cargo" in command and shutil.which("cargo") is None:
        pytest.skip("no Rust toolchain here")
    if "benches/instructions.py" in command and shutil.which("valgrind") is None:
        pytest.skip("no valgrind here")


def _cases(kind: str) -> list[tuple[str, int, str]]:
    cases = []
    for document in DOCUMENTS:
        for block in blocks_of(document):
            if kind == "command":
                cases += [(document, block.line, command) for command in block.commands]
            elif kind == "python" and block.language == "python" and document != "CONTRIBUTING.md":
                cases.append((document, block.line, "\n".join(block.lines)))
            elif kind == "output" and block.output_of:
                cases.append((document, block.line, block.output_of))
    return cases


def _name(case: object) -> str:
    return re.sub(r"\s+", " ", str(case))[:60]


@pytest.mark.parametrize(("document", "line", "command"), _cases("command"), ids=_name)
def test_a_command_of_a_document_runs(
    document: str, line: int, command: str, folders: dict[str, Path]
) -> None:
    _skip_if_it_cannot_run(command)
    _run(command, folders[document])


@pytest.mark.parametrize(("document", "line", "source"), _cases("python"), ids=_name)
def test_an_example_of_a_document_runs(
    document: str, line: int, source: str, folders: dict[str, Path]
) -> None:
    script = folders[document] / f"example_{line}.py"
    script.write_text(source, encoding="utf-8")
    _run(f"python {script.name}", folders[document])


@pytest.mark.parametrize(("document", "line", "command"), _cases("output"), ids=_name)
def test_shown_output_is_what_is_printed(
    document: str, line: int, command: str, folders: dict[str, Path]
) -> None:
    _skip_if_it_cannot_run(command)
    printed = {row.rstrip() for row in _run(command, folders[document]).splitlines()}
    (block,) = (b for b in blocks_of(document) if b.line == line)
    missing = [row for row in block.lines if row.rstrip() not in printed]
    assert not missing, f"{command} does not print {missing}"


def test_every_document_is_looked_at() -> None:
    commands = {document: len([c for c in _cases("command") if c[0] == document]) for document in DOCUMENTS}
    assert commands["README.md"] >= 10
    assert _cases("python")
    assert _cases("output")
    for document in DOCUMENTS:
        for block in blocks_of(document):
            shown = [line for line in block.lines if line.startswith(("pimkv ", "python -m", "make "))]
            assert not shown or block.commands or block.language in ("toml", "rust", "python"), (
                f"{document}, line {block.line}: commands in a block that is not taken for one"
            )
