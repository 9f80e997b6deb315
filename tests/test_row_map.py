"""The row map in a real browser: what it shows is what was recorded, and nothing leaves the page.

Needs Chromium and its driver (Debian: chromium, chromium-driver); `.ci/run` sees to it that they are there.
PIMKV_ARTEFACTS names a folder for screenshots.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import BROWSER, DRIVER, Browser, browser
from report_inputs import make_store, record

import pimkv
from pimkv.placement import Placement
from pimkv.report.assemble import PAGE, build
from pimkv.report.palette import colour_of
from pimkv.report.rowmap import Recording, figures_of
from pimkv.sweep.store import Store

pytestmark = pytest.mark.skipif(
    DRIVER is None or BROWSER is None,
    reason="no Chromium with chromedriver (Debian: chromium chromium-driver)",
)

ENTER, ESCAPE, RIGHT, DOWN = "\ue007", "\ue00c", "\ue014", "\ue015"


@pytest.fixture(scope="module")
def placements(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Placement]:
    """Shared prefixes, preemption and blocks that move, in runs whose recorded steps differ."""
    folder = tmp_path_factory.mktemp("placements")
    more = ("--requests", "60", "--workload", "prefix", "--headroom", "0.4", "--admission", "vllm")
    found = {}
    for kind, every in (("paged", "1"), ("pim-gather", "2"), ("pim-aware", "7")):
        path = record(folder / kind, "--allocator", kind, "--record-every", every, *more)
        found[kind] = pimkv.read_placement(path)
    return found


@pytest.fixture(scope="module")
def file(placements: dict[str, Placement], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    with Store.open(make_store(folder / "s.db"), readonly=True) as store:
        rows = store.rows()
    recordings = [Recording(f"{kind}.placement", p) for kind, p in placements.items()]
    path = folder / PAGE
    path.write_bytes(build(store="s.db", rows=rows, recordings=recordings).files[PAGE])
    return path


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture
def page(window: Browser, file: Path) -> Iterator[Browser]:
    window.window(1280, 900)
    window.open(file)
    yield window
    assert window.run("return window.pimkv.faults") == []
    assert [entry for entry in window.log("browser") if entry["level"] == "SEVERE"] == []


def seek(page: Browser, step: int) -> None:
    """Drags the slider to a step: what a user's input event does."""
    page.run(
        "const slider = document.getElementById('slider');"
        "slider.value = window.pimkv.viewer.steps.findLastIndex((step) => step <= arguments[0]);"
        "slider.dispatchEvent(new Event('input'))",
        step,
    )


def pixels(page: Browser, side: str) -> str:
    picture = page.run(f"return document.getElementById('map-{side}').toDataURL()")
    assert len(picture) > 5000
    return str(picture)


def centre(page: Browser, side: int, block: int) -> tuple[float, float]:
    """Where in the window a block of a map is, scrolled into view."""
    x, y = page.run(
        "const { map } = window.pimkv.viewer.sides[arguments[0]];"
        "map.canvas.scrollIntoView({ block: 'center', behavior: 'instant' });"
        "const frame = map.canvas.getBoundingClientRect(), cell = map.cell(arguments[1]);"
        "return [frame.left + cell.x + cell.w / 2, frame.top + cell.y + cell.h / 2]",
        side,
        block,
    )
    return x, y


def tip(page: Browser) -> str:
    shown = page.run("const tip = document.getElementById('tip'); return tip.hidden ? '' : tip.innerText")
    return str(shown)


def text(page: Browser, name: str) -> str:
    return str(page.run("return document.getElementById(arguments[0]).textContent", name))


def expected(placement: Placement, step: int, block: int) -> str:
    """The tip that a block must have, from the placement as Python reads it."""
    table = placement.at(step)
    held = table[table["block"] == block]
    where = f"block {block} · region {block // 8}, slot {block % 8}"
    if not len(held):
        return f"no running sequence\n{where}"
    lines = [
        f"sequence {row['sequence']} · logical block {row['index']} · {row['tokens']} of 16 tokens"
        for row in held
    ]
    if len(lines) > 1:
        lines.insert(0, f"shared by {len(held)} sequences")
    more = [f"and {len(held) - 12} sequences more"] if len(held) > 12 else []
    return "\n".join([*lines[:13], *more, where])


def test_paged_stands_beside_gather_and_the_slider_moves_both_maps(
    page: Browser, placements: dict[str, Placement]
) -> None:
    shown = page.run(
        "return ['left', 'right'].map((s) => document.getElementById(`pick-${s}`).selectedOptions[0].text)"
    )
    assert shown == ["paged", "pim-gather"]
    steps = placements["pim-gather"].steps
    seek(page, int(steps[len(steps) // 4]))
    before = [pixels(page, side) for side in ("left", "right")]
    seek(page, int(steps[3 * len(steps) // 4]))
    after = [pixels(page, side) for side in ("left", "right")]
    assert before[0] != after[0] and before[1] != after[1] and after[0] != after[1]
    # Back again, over checkpoints and all, the same picture.
    seek(page, int(steps[len(steps) // 4]))
    assert [pixels(page, side) for side in ("left", "right")] == before


def test_numbers_are_those_of_the_recording(page: Browser, placements: dict[str, Placement]) -> None:
    told = figures_of(placements["paged"])
    steps = placements["paged"].steps.tolist()
    for i in (0, len(steps) // 2, len(steps) - 1):
        seek(page, steps[i])
        assert text(page, "step") == f"step {steps[i]:,}"
        n = {name: values[i] for name, values in told.items()}
        lies = f"{n['running']:,} sequence{'s' * (n['running'] != 1)} in {n['held']:,} block{'s' * (n['held'] != 1)}"
        assert text(page, "numbers-left") == f"{lies} · {n['pairs']:,} regions opened, fewest {n['fewest']:,}"


def test_hovering_tells_what_was_recorded(page: Browser, placements: dict[str, Placement]) -> None:
    rng = np.random.default_rng(0)
    seen: dict[str, int] = {"free": 0, "shared": 0, "part": 0}
    for side, kind in enumerate(("paged", "pim-gather")):
        placement = placements[kind]
        for step in rng.choice(placement.steps, 6, replace=False).tolist():
            seek(page, step)
            table = placement.at(step)
            held, counts = np.unique(table["block"], return_counts=True)
            part = table["block"][table["tokens"] < 16]
            picked = [*held[counts > 1][:1], *part[:1], *rng.integers(placement.blocks, size=4)]
            for block in map(int, picked):
                page.point(*centre(page, side, block))
                want = expected(placement, step, block)
                assert tip(page) == want, (kind, step, block)
                seen["free"] += want.startswith("no running")
                seen["shared"] += want.startswith("shared")
                seen["part"] += block in part
    assert min(seen.values()) > 2, seen


def test_a_block_has_the_colour_of_its_sequence(page: Browser, placements: dict[str, Placement]) -> None:
    step = int(placements["pim-gather"].steps[60])
    seek(page, step)
    table = placements["pim-gather"].at(step)
    holders = np.bincount(table["block"])[table["block"]]
    for row in table[(holders == 1) & (table["tokens"] == 16)][::40]:
        x, y = centre(page, 1, int(row["block"]))
        pixel = page.run(
            "const canvas = document.getElementById('map-right'), frame = canvas.getBoundingClientRect();"
            "const context = canvas.getContext('2d');"
            # Below the dot that half of the sequences have.
            "return [...context.getImageData(arguments[0] - frame.left, arguments[1] - frame.top + 3, 1, 1).data]",
            x,
            y,
        )
        assert "#" + "".join(f"{value:02x}" for value in pixel[:3]) == colour_of(int(row["sequence"])), row


def test_hovering_brings_out_the_sequence_in_both_maps(
    page: Browser, placements: dict[str, Placement]
) -> None:
    step = int(placements["pim-gather"].steps[40])
    seek(page, step)
    tables = {kind: placements[kind].at(step) for kind in ("paged", "pim-gather")}
    alone = tables["paged"][np.bincount(tables["paged"]["block"])[tables["paged"]["block"]] == 1]
    sequence, block = int(alone[0]["sequence"]), int(alone[0]["block"])
    plain = pixels(page, "right")
    page.point(*centre(page, 0, block))
    faded = pixels(page, "right")
    assert faded != plain
    for side, kind in (("left", "paged"), ("right", "pim-gather")):
        mine = tables[kind][tables[kind]["sequence"] == sequence]
        regions = len(set((mine["block"] // 8).tolist()))
        assert f"{len(mine)} block" in text(page, f"of-{side}")
        assert f" in {regions} region" in text(page, f"of-{side}")
        assert text(page, f"of-{side}").startswith(f"sequence {sequence}: {mine['tokens'].sum():,} token")
    # A click keeps it when the pointer leaves; a second click lets go.
    page.point(*centre(page, 0, block), click=True)
    page.point(2, 2)
    assert tip(page) == "" and pixels(page, "right") == faded
    page.point(*centre(page, 0, block), click=True)
    page.point(2, 2)
    assert pixels(page, "right") == plain


def test_the_keyboard_reaches_every_block_and_tells_a_screen_reader(
    page: Browser, placements: dict[str, Placement]
) -> None:
    frames = placements["pim-gather"].frames()
    step = next(step for step, table in frames if 10 in table["block"])
    seek(page, step)
    page.run("document.getElementById('map-right').focus()")
    page.press(RIGHT, RIGHT, RIGHT, DOWN)
    want = expected(placements["pim-gather"], step, 10)
    assert tip(page) == want
    assert text(page, "said") == f"pim-gather: {want}"
    page.press(ENTER)
    page.run("document.getElementById('slider').focus()")
    assert tip(page) == "" and "sequences share this block" in text(page, "of-right")
    page.run("document.getElementById('map-right').focus()")
    page.press(ESCAPE)
    assert text(page, "of-right").strip() == ""
    page.run("document.getElementById('slider').focus()")
    page.press(RIGHT)
    later = min(s for s in placements["paged"].steps.tolist() if s > step)
    assert text(page, "step") == f"step {later:,}"


def test_another_run_can_be_picked_and_is_shown_as_of_its_last_recorded_step(
    page: Browser, placements: dict[str, Placement]
) -> None:
    """The two sides were recorded at other steps: each says of which step it tells."""
    aware = placements["pim-aware"]
    step = int(aware.steps[12])
    page.run(
        "const pick = document.getElementById('pick-right'); pick.value = 2;"
        "pick.dispatchEvent(new Event('change'))"
    )
    assert text(page, "key-right") == "pim-aware"
    seek(page, step + 1)
    assert text(page, "numbers-right").endswith(f"as of step {step:,}")
    block = int(aware.at(step)["block"][0])
    page.point(*centre(page, 1, block))
    assert tip(page) == expected(aware, step, block)


def test_playing_runs_to_the_end_and_stops(page: Browser, placements: dict[str, Placement]) -> None:
    last = max(int(placements[kind].steps[-1]) for kind in ("paged", "pim-gather"))
    seek(page, last - 3)
    page.run("document.getElementById('play').click()")
    page.run("return new Promise((done) => { const wait = () =>"
             " window.pimkv.viewer.timer ? setTimeout(wait, 20) : done(); wait(); })")  # fmt: skip
    assert text(page, "step") == f"step {last:,}"
    assert text(page, "play") == "Play"


def test_nothing_is_asked_of_any_network(window: Browser, file: Path) -> None:
    window.requests()
    window.open(file)
    seek(window, 50)
    asked = window.requests()
    assert {url.partition(":")[0] for url in asked} == {"file", "data"}
    assert {url for url in asked if url.startswith("file:")} == {file.absolute().as_uri()}
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        tried = window.run(
            "const image = new Image(); image.src = arguments[0];"
            "const script = document.createElement('script'); script.src = arguments[0]; document.body.append(script);"
            "return fetch(arguments[0]).then(() => 'sent', () => 'refused')",
            url,
        )
        assert tried == "refused"
        with pytest.raises(TimeoutError):
            server.accept()
    faults = set(window.run("return window.pimkv.faults"))
    assert {"policy: connect-src", "policy: img-src", "policy: script-src-elem"} <= faults
    window.log("browser")


@pytest.mark.parametrize(("name", "width", "dark"), [("wide", 1280, False), ("phone", 390, True)])
def test_the_page_fits_its_window_and_is_kept_as_a_picture(
    page: Browser, tmp_path: Path, name: str, width: int, dark: bool
) -> None:
    page.window(width, 844, dark=dark)
    assert page.run("return document.documentElement.scrollWidth") <= width
    background = page.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) is dark
    for side in ("left", "right"):
        right = page.run(f"return document.getElementById('map-{side}').getBoundingClientRect().right")
        assert right <= width
    folder = Path(os.environ.get("PIMKV_ARTEFACTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(folder / f"report-{name}.png")
    assert (folder / f"report-{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_page_without_a_row_map_works_too(window: Browser, tmp_path: Path) -> None:
    path = tmp_path / PAGE
    path.write_bytes(build(store="s.db").files[PAGE])
    window.open(path)
    assert window.run("return window.pimkv.faults") == []
    assert "--record-placement" in str(window.run("return document.body.innerText"))
