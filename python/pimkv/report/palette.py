"""The colours of sequences in the row map, on the page and in the figure alike."""

from __future__ import annotations

HUES = (
    (0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0), (240, 228, 66),
)  # fmt: skip
"""Okabe and Ito's, told apart with any colour vision."""

TONES = (0.0, -0.32, 0.38)
"""How far each is mixed with black (below 0) or white."""


def colour_of(sequence: int) -> str:
    """The colour of a sequence; neighbouring numbers differ in hue, and seven apart in tone."""
    tone = TONES[sequence // len(HUES) % len(TONES)]
    hue = HUES[sequence % len(HUES)]
    mixed = (int((c * (1 + tone) if tone < 0 else c + (255 - c) * tone) + 0.5) for c in hue)
    return "#" + "".join(f"{c:02x}" for c in mixed)
