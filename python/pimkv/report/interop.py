"""Text tables of an export and of its validation against a simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pimkv.report.tables import Row, aligned

if TYPE_CHECKING:
    from pimkv.validation import Verdict


def export_table(manifest: dict[str, Any], folder: str) -> str:
    """What was written, and our prediction for each run."""
    attacc = manifest["format"] == "attacc"
    items, figure = ("commands", "cycles") if attacc else ("reads", "hit_rate")
    rows: list[Row] = [("config", "refresh", "sequence", "tokens", items, figure.replace("_", " "))]
    for entry in manifest["exports"]:
        for run in entry["runs"]:
            rows.append((
                run["config"]["file"], _on_off(run["refresh"]), str(entry["sequence"]),
                f"{entry['tokens']:,}", f"{entry['trace'][items]:,}", _value(run["predicted"][figure]),
            ))  # fmt: skip
    config = manifest["config"]
    head = (
        f"{config['allocator']['kind']}, {config['layout']['addrmap']}: block tables of step "
        f"{manifest['step']} for {manifest['format']} in {folder}"
    )
    return "\n".join([head, "", *aligned(rows, left=2)])


def validation_table(verdicts: Sequence[Verdict]) -> str:
    """Ours | theirs | error for each run, last a line that sums up."""
    rows: list[Row] = [("config", "refresh", "sequence", "statistic", "ours", "theirs", "error", "")]
    for v in verdicts:
        error = f"{v.error:+,.6f}" if isinstance(v.theirs, float) else f"{v.error:+,}" if v.error else "0"
        verdict = "" if v.agrees else f"differs{': ' * bool(v.note)}{v.note}"
        rows.append((
            v.config, _on_off(v.refresh), str(v.sequence), v.statistic, _value(v.ours), _value(v.theirs),
            error, verdict,
        ))  # fmt: skip
    agreeing = sum(v.agrees for v in verdicts)
    return "\n".join([*aligned(rows, left=2), "", f"{agreeing} of {len(verdicts)} runs agree"])


def _on_off(refresh: bool) -> str:
    return "on" if refresh else "off"


def _value(value: float) -> str:
    return f"{value:.6f}" if isinstance(value, float) else f"{value:,}"
