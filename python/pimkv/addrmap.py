"""Address-map strings: what is wrong with one, and its explicit form for a given DRAM geometry.

A map string lists the fields of a burst number, most significant first: `row:* col:* bg:* ba:* ch:* col:L`.
A width is a number of bits, `*` (the rest of the field, once per field) or, for `col` only, `L` (the bursts
of one cache line). After `;` come hash terms: `ba^row:2` replaces ba by ba XOR (row >> 2), in ba's width.
A field may occur in several segments, the rightmost with its lowest bits.

Deliberately only text in, text out: decoding addresses is the business of the address map itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from pimkv.wording import did_you_mean, nearest, show

FIELDS = ("row", "col", "bg", "ba", "ch")
HASHED = ("ba", "bg", "ch")
# Where each field's size comes from, for messages.
ORIGIN = {
    "row": "dram.rows",
    "col": "dram.row_bytes / dram.burst_bytes",
    "bg": "dram.bank_groups",
    "ba": "dram.banks_per_group",
    "ch": "dram.channels",
}
# Names the fields go by elsewhere that no spelling distance finds.
_ALIASES = {
    "bank": "ba",
    "bankgroup": "bg",
    "bank_group": "bg",
    "channel": "ch",
    "column": "col",
    "pch": "ch",
    "ro": "row",
}
_WIDTH = re.compile(r"[0-9]{1,9}")
_HASH = re.compile(r"([^\s^:]+)\^([^\s^:]+):([0-9]{1,9})")


class MapMistake(NamedTuple):
    """One mistake of a map string: what is wrong, and the hint (may be empty)."""

    message: str
    hint: str = ""


class _Segment(NamedTuple):
    field: str
    width: int | str  # bits, "*" or "L"


class _Hash(NamedTuple):
    field: str
    shift: int


class _Parsed(NamedTuple):
    segments: list[_Segment]
    hashes: list[_Hash]
    mistakes: list[MapMistake]
    spoilt: set[str]  # fields with an unreadable segment: their bits cannot be counted


def map_mistakes(text: str, bits: Mapping[str, int | None], line_bits: int | None) -> list[MapMistake]:
    """Every mistake of the map string `text`, in reading order, then by field; empty when it is good.

    `bits` gives the bits each of `FIELDS` needs and `line_bits` those of `L`; None where the geometry itself
    is in doubt, which leaves the checks that need the number undone.
    """
    parsed = _parse(text)
    mistakes = list(parsed.mistakes)
    for field in FIELDS:
        if field not in parsed.spoilt:
            mistakes.extend(_coverage(field, parsed.segments, bits[field], line_bits))
    rows = bits["row"]
    if rows is not None:
        for field, shift in parsed.hashes:
            if shift >= rows:
                term = show(f"{field}^row:{shift}")
                mistakes.append(
                    MapMistake(f"hash {term} shifts all {rows} row bits out; shift by 0 to {rows - 1}")
                )
    return mistakes


def expand_map(text: str, bits: Mapping[str, int], line_bits: int, shard_bits: int = 0) -> str:
    """The explicit form of a good map string: widths as numbers, segments and hashes without bits left out.

    `bits` and `line_bits` as in `map_mistakes`, for the whole device; `shard_bits` are then taken off the top
    of the channel field, so that the string describes one shard.
    """
    parsed = _parse(text)
    widths = [_fixed(segment, line_bits) for segment in parsed.segments]
    for index, segment in enumerate(parsed.segments):
        if segment.width == "*":
            widths[index] = bits[segment.field] - _counted(segment.field, parsed.segments, line_bits)
    for index, segment in enumerate(parsed.segments):
        if segment.field == "ch":
            cut = min(shard_bits, widths[index])
            widths[index] -= cut
            shard_bits -= cut
    kept = [(s.field, width) for s, width in zip(parsed.segments, widths, strict=True) if width]
    explicit = " ".join(f"{field}:{width}" for field, width in kept)
    present = {field for field, _ in kept}
    # A hash kept to zero bits changes nothing.
    hashes = [f"{field}^row:{shift}" for field, shift in parsed.hashes if field in present]
    return f"{explicit}; {' '.join(hashes)}" if hashes else explicit


def _parse(text: str) -> _Parsed:
    parsed = _Parsed([], [], [], set())
    layout, semicolon, hashes = text.partition(";")
    for word in layout.split():
        _parse_segment(word, parsed)
    if semicolon and not hashes.strip():
        parsed.mistakes.append(
            MapMistake('nothing follows ";"; write a hash term such as ba^row:2, or leave ";" out')
        )
    if ";" in hashes:
        parsed.mistakes.append(MapMistake('more than one ";"; hash terms are separated by spaces'))
    for word in hashes.replace(";", " ").split():
        _parse_hash(word, parsed)
    return parsed


def _parse_segment(word: str, parsed: _Parsed) -> None:
    name, colon, width = word.partition(":")
    field = name
    if name not in FIELDS:
        guess = _nearest_field(name)
        message = f"segment {show(word)} has no field {show(name)}; fields are {', '.join(FIELDS)}"
        parsed.mistakes.append(MapMistake(message, did_you_mean(guess)))
        if guess is None:
            return
        # Count its bits for the field that is meant, so that one slip is one mistake.
        field = guess
    if width in {"*", "L"}:
        if width == "L" and field != "col":
            parsed.mistakes.append(
                MapMistake(f"segment {show(word)}: L is the width of a cache line's bursts, for col only")
            )
            parsed.spoilt.add(field)
        elif width == "*" and _Segment(field, "*") in parsed.segments:
            parsed.mistakes.append(
                MapMistake(f'{field}:* occurs twice; "*" is the rest of a field, written once')
            )
            parsed.spoilt.add(field)
        else:
            parsed.segments.append(_Segment(field, width))
        return
    if _WIDTH.fullmatch(width) and int(width) > 0:
        parsed.segments.append(_Segment(field, int(width)))
        return
    wrong = "has no width" if not colon or not width else f"has width {show(width)}"
    parsed.mistakes.append(
        MapMistake(
            f'segment {show(word)} {wrong}; a width is 1 bit or more, or "*" for the rest of the field'
        )
    )
    parsed.spoilt.add(field)


def _parse_hash(word: str, parsed: _Parsed) -> None:
    match = _HASH.fullmatch(word)
    if not match:
        parsed.mistakes.append(
            MapMistake(f"hash {show(word)} is not of the form field^row:shift, such as ba^row:2")
        )
        return
    field, source, shift = match[1], match[2], int(match[3])
    if field not in HASHED:
        guess = _nearest_field(field) if field not in FIELDS else None
        message = f"hash {show(word)} changes {show(field)}; only {', '.join(HASHED)} can be hashed"
        parsed.mistakes.append(MapMistake(message, did_you_mean(guess if guess in HASHED else None)))
    elif source != "row":
        parsed.mistakes.append(
            MapMistake(f"hash {show(word)} takes bits of {show(source)}; only row bits are hashed in")
        )
    elif _Hash(field, shift) in parsed.hashes:
        parsed.mistakes.append(MapMistake(f"hash {show(word)} occurs twice and undoes itself"))
    else:
        parsed.hashes.append(_Hash(field, shift))


def _coverage(
    field: str, segments: list[_Segment], needed: int | None, line_bits: int | None
) -> list[MapMistake]:
    own = [segment.width for segment in segments if segment.field == field]
    if needed is None or (line_bits is None and "L" in own):
        return []
    count = _counted(field, segments, line_bits or 0)
    if count == needed or (count < needed and "*" in own):
        return []
    of = f"{_bits(needed)} ({ORIGIN[field]} = {2**needed})"
    if not own:
        return [MapMistake(f"field {field} is missing; it needs {of}; write {field}:{needed} or {field}:*")]
    change = f"{needed - count} missing" if count < needed else f"{count - needed} too many"
    return [MapMistake(f"field {field} has {_bits(count)}, {change}; it needs {of}")]


def _counted(field: str, segments: list[_Segment], line_bits: int) -> int:
    return sum(_fixed(segment, line_bits) for segment in segments if segment.field == field)


def _bits(count: int) -> str:
    return "1 bit" if count == 1 else f"{count} bits"


def _fixed(segment: _Segment, line_bits: int) -> int:
    """Bits of a segment, "*" counting none."""
    if isinstance(segment.width, int):
        return segment.width
    return line_bits if segment.width == "L" else 0


def _nearest_field(name: str) -> str | None:
    return _ALIASES.get(name.lower()) or nearest(name, FIELDS)
