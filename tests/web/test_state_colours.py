"""One palette for page, boards, notebook and top, whose states differ for colour-blind readers too."""

import json
import re
from itertools import combinations

import numpy as np
import pytest
from dashboards import generate
from dashboards.panels import CALM
from dashboards.rows import panels_of
from dashboards.states import HANGING, STATE_COLOURS, STATUS_MEANINGS

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


def contrast(one: str, other: str) -> float:
    """Of the web's guidelines, from 1 to 21."""
    parts = np.array([[int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)] for colour in (one, other)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    darker, lighter = sorted(linear @ [0.2126, 0.7152, 0.0722])
    return (lighter + 0.05) / (darker + 0.05)


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


PANELS = [(uid, panel) for uid, text in generate.boards().items() for panel in panels_of(json.loads(text))]


@pytest.mark.parametrize("vision", VISION)
def test_fixed_colours_of_a_panel_differ(vision):
    """Of phases, statuses, reasons and whatever else the boards draw in colours of their own, not in Grafana's."""
    near = set()
    for uid, panel in PANELS:
        fixed = {}
        for override in panel["fieldConfig"]["overrides"]:
            for one in override["properties"]:
                if one["id"] == "color" and one["value"].get("fixedColor", "").startswith("#"):
                    fixed[override["matcher"]["options"]] = one["value"]["fixedColor"]
        for one, other in combinations(fixed, 2):
            if (far := distance(fixed[one], fixed[other], vision)) < 5:
                near.add((uid, panel["title"], one, other, round(far, 1)))
    assert not near


@pytest.mark.parametrize("colour", CALM)
def test_lines_can_be_seen_in_both_of_grafanas_themes(colour):
    assert contrast(colour, "#ffffff") >= 2 and contrast(colour, "#181b1f") >= 3


@pytest.mark.parametrize("vision", VISION)
def test_statuses_of_runs_differ(vision):
    colours = dict(STATUS_MEANINGS.values())
    assert colours.pop(STATUS_MEANINGS[HANGING][0]) == "red"
    colours["hangs"] = "#f2495c"  # Grafana's, in the dark theme.
    near = {
        pair: round(far, 1)
        for pair in combinations(colours, 2)
        if (far := distance(colours[pair[0]], colours[pair[1]], vision)) < 5
    }
    assert near == {}


def test_heat_map_of_the_boards_has_a_colour_of_the_pages():
    sheet = (web.FOLDER / "page.css").read_text()
    page = {
        colour
        for found in re.findall(r"--heat-\d: light-dark\((.+?)\);", sheet)
        for colour in found.split(", ")
    }
    maps = [panel for _, panel in PANELS if panel["type"] == "heatmap"]
    assert maps and {panel["options"]["color"]["fill"] for panel in maps} <= page
    assert {panel["options"]["color"]["mode"] for panel in maps} == {"opacity"}


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("pair", [("communication", "bubble"), ("evaluation", "unobserved")])
def test_pairs_that_were_alike_under_deuteranopia_differ(palette, pair):
    assert distance(palette[pair[0]], palette[pair[1]], "deuteranopia") >= 8
