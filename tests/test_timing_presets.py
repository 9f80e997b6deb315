"""Are the presets the ones of the sources, and is every bad one refused with the rule it breaks?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pimkv.errors import ConfigError
from pimkv.timing import INTERVALS, Timing, cycles_of, load_presets, make_timing, preset, presets

# name: nRCD nRP nRAS nRC nRTP nCCDAB nREFI nRFC
EXPECTED: dict[str, tuple[int | None, ...]] = {
    "attacc-hbm3-4.8": (17, 17, 41, 58, 8, 6, 4680, 421),
    "attacc-hbm3-5.2": (19, 19, 45, 63, 8, 6, 5070, 456),
    "attacc-hbm3-5.6": (20, 20, 48, 68, 9, 6, 5460, 491),
    "attacc-hbm3-6.0": (21, 21, 51, 72, 9, 6, 5850, 526),
    "attacc-hbm3-6.4": (23, 23, 55, 77, 10, 7, 6240, 560),
    "aim-gddr6": (56, 32, 54, 89, 12, 2, None, None),
    "hbm2-pim": (14, 14, 33, 47, 5, 4, None, None),
}
GOOD: dict[str, Any] = preset("attacc-hbm3-5.2").model_dump()


def intervals(timing: Timing) -> tuple[int | None, ...]:
    return tuple(getattr(timing, name) for name in INTERVALS)


def test_the_presets_hold_their_sources_figures() -> None:
    uncapped = {
        f"{name}-npc": (*figures[:5], 4, *figures[6:])
        for name, figures in EXPECTED.items()
        if name.startswith("attacc")
    }
    assert {name: intervals(timing) for name, timing in presets().items()} == EXPECTED | uncapped
    assert all(timing.note for timing in presets().values())


def test_picoseconds_become_cycles_in_integers() -> None:
    assert [cycles_of(350_000, tck) for tck in (833, 769, 714, 666, 625)] == [421, 456, 491, 526, 560]
    assert cycles_of(44_500, 500) == 89
    assert cycles_of(1_025, 1_000) == 1  # below 2.6 % of a clock too long: rounded down
    assert cycles_of(1_026, 1_000) == 2


def test_a_refresh_costs_its_time_less_the_precharge_it_hides() -> None:
    assert preset("attacc-hbm3-5.2").refresh_charge == 438
    assert preset("aim-gddr6").refresh_charge == 0
    short = make_timing(**GOOD | {"nRFC": 5})
    assert short.refresh_charge == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nRP": 0}, "timing.bad.nRP = 0: is too small; must be an integer from 1 to 1073741824"),
        ({"nCCDAB": -6}, "timing.bad.nCCDAB = -6:"),
        ({"nREFI": 0}, "timing.bad.nREFI = 0:"),
        ({"nRC": 1 << 31}, "timing.bad.nRC = 2147483648:"),
        ({"nRAS": 45.0}, "timing.bad.nRAS = 45.0: is a float; must be an integer"),
        ({"nRCD": True}, "timing.bad.nRCD = true: is a boolean"),
        ({"max_postponed": -1}, "timing.bad.max_postponed = -1:"),
        ({"nRFC": 5070}, "timing.bad.nRFC = 5070: a refresh must be shorter than its interval, nREFI = 5070"),
        ({"nRFC": None}, "timing.bad.nREFI = 5070: refresh needs both intervals; nRFC is missing"),
        ({"nREFI": 2, "nRFC": 1}, "timing.bad.nREFI = 2: must exceed 2"),
        ({"nRAS": 19, "nREFI": 953}, "timing.bad.nREFI = 953: with nRAS <= nRCD must exceed"),
        ({"nRRD": 4}, 'timing.bad.nRRD = 4: unknown key; did you mean "nRCD"?'),
    ],
)
def test_a_bad_timing_is_refused_with_the_rule_it_breaks(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_timing(**GOOD | {"name": "bad"} | change)
    assert str(caught.value).startswith(message)


def test_every_mistake_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        make_timing(**GOOD | {"nRP": 0, "nRTP": -1, "nRC": "63"})
    assert len(str(caught.value).splitlines()) == 3


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'did you mean "attacc-hbm3-5\.2"'):
        preset("attac-hbm3-5.2")


def test_user_presets(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '[mine]\nbase = "attacc-hbm3-5.2"\ntRFC_ps = 260_000\n[faster]\nbase = "mine"\nnCCDAB = 2\n',
        encoding="utf-8",
    )
    mine = load_presets(path)
    assert (mine["mine"].nRFC, mine["mine"].nREFI) == (cycles_of(260_000, 769), 5070)
    assert (mine["faster"].nRFC, mine["faster"].nCCDAB) == (mine["mine"].nRFC, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[x]\nnRCD = 1\n", "timing.x.tCK_ps: is missing"),
        ('[x]\nbase = "attacc-hbm3-5.3"\n', 'timing.x.base = "attacc-hbm3-5.3": no preset of that name'),
        ('[x]\nbase = "hbm2-pim"\nnRP = 3\ntRP_ps = 9\n', "timing.x.tRP_ps = 9: nRP is given as well"),
        ('[x]\nbase = "hbm2-pim"\ntRP_ps = 1.5\n', "timing.x.tRP_ps = 1.5: must be a whole number"),
        ("x = 3\n", "timing.x = 3: is an integer; must be a table"),
        ("[x\n", ""),
    ],
)
def test_a_bad_preset_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_presets(path)
    assert str(caught.value).startswith(message)


def test_a_missing_preset_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        load_presets(tmp_path / "none.toml")
