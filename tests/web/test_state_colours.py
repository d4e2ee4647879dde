"""One palette for page, boards, notebook and top, whose states differ for colour-blind readers too."""

import re
from itertools import combinations

import numpy as np
import pytest
from dashboards.states import STATE_COLOURS

from goodput import web
from goodput.account.states import STATES
from goodput.account.text.state_colours import DARK, LIGHT
from goodput.sdk.reports import notebook_html
from goodput.top.glyphs import LOOKS

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
VISION = {
    "normal": np.eye(3),
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}  # fmt: skip
# Ottosson 2020: linear RGB to OKLab.
TO_LMS = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
          [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
TO_LAB = [[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099],
          [0.0259040371, 0.7827717662, -0.808675766]]  # fmt: skip


def lab(colour: str, vision: str) -> np.ndarray:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return np.array(TO_LAB) @ np.cbrt(np.array(TO_LMS) @ np.clip(np.array(VISION[vision]) @ linear, 0, 1))


def distance(one: str, other: str, vision: str) -> float:
    return 100 * float(np.linalg.norm(lab(one, vision) - lab(other, vision)))


def test_every_place_has_the_palette():
    sheet = (web.FOLDER / "page.css").read_text()
    found = re.findall(r"--(\w+): (?:light-dark\((#[0-9a-f]{6}), )?(#[0-9a-f]{6})\)?;", sheet)
    page = {state: (light or dark, dark) for state, light, dark in found if state in STATES}
    assert page == {state: (LIGHT[state], DARK[state]) for state in STATES}
    assert set(STATE_COLOURS) == set(STATES) and STATE_COLOURS == LIGHT
    assert notebook_html.COLOURS == DARK
    assert {state: colour for state, (colour, _) in LOOKS.items()} == DARK


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_states_differ_whatever_one_sees(palette, vision):
    assert tuple(palette) == STATES
    near = {
        pair: round(distance(palette[pair[0]], palette[pair[1]], vision), 1)
        for pair in combinations(STATES, 2)
        if distance(palette[pair[0]], palette[pair[1]], vision) < 5
    }
    assert near == {}


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("pair", [("communication", "bubble"), ("evaluation", "unobserved")])
def test_pairs_that_were_alike_under_deuteranopia_differ(palette, pair):
    assert distance(palette[pair[0]], palette[pair[1]], "deuteranopia") >= 8
