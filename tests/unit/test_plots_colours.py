"""Colours hold for readers who do not see red or green, in grey, and on light and dark pages."""

import itertools

import numpy as np
import pytest
from plotly.colors import get_colorscale, sample_colorscale

from tl_aniso.viz.colours import COLOURS, DIVERGING, MISSING, SEQUENTIAL, map_colours
from tl_aniso.viz.static import PAPERS
from tl_aniso.viz.style import line_style

# Machado, Oliveira and Fernandes (2009), severity 1, for linear RGB.
SIGHT = {
    "all colours": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def linear(colour):
    if colour.startswith("rgb"):
        parts = np.array([float(part) for part in colour[4:-1].split(",")]) / 255
    else:
        parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def luminance(colour):
    return float(linear(colour) @ TO_XYZ[1])


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(colour, sight):
    xyz = TO_XYZ @ np.clip(SIGHT[sight] @ linear(colour), 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_line_colours_differ(sight):
    seen = [lab(colour, sight) for colour in COLOURS]
    distances = {
        pair: np.linalg.norm(seen[pair[0]] - seen[pair[1]]) for pair in itertools.combinations(range(len(seen)), 2)
    }
    assert min(distances.values()) > 13
    assert min(distance for (_, later), distance in distances.items() if later < 6) > 19


def test_the_simulation_confuses_what_deuteranopes_confuse():
    assert np.linalg.norm(lab("#c2566b", "deuteranopia") - lab("#008f68", "deuteranopia")) < 8
    assert np.linalg.norm(lab("#c2566b", "all colours") - lab("#008f68", "all colours")) > 60


def test_lines_stand_out_on_light_and_dark_pages():
    for colour in (*COLOURS, MISSING):
        assert min(contrast(colour, paper) for _, paper in PAPERS.values()) >= 3


def test_text_has_contrast():
    for ink, paper in PAPERS.values():
        assert contrast(ink, paper) >= 4.5


def test_every_line_also_differs_by_dash_or_marker():
    styles = [
        (line_style(index)["line"]["dash"], line_style(index)["marker"]["symbol"]) for index in range(len(COLOURS))
    ]
    assert len(set(styles)) == len(styles)
    assert len({symbol for _, symbol in styles}) == len(styles)


@pytest.mark.parametrize("sight", SIGHT)
def test_lightness_of_the_sequential_scale_rises_all_the_way(sight):
    lightness = [lab(colour, sight)[0] for colour in sample_colorscale(get_colorscale(SEQUENTIAL), 24)]
    assert (np.diff(lightness) > 0).all()
    assert lightness[-1] - lightness[0] > 60


@pytest.mark.parametrize("sight", SIGHT)
def test_the_diverging_scale_is_lightest_in_its_middle_and_its_ends_differ(sight):
    scale = [lab(colour, sight) for colour in sample_colorscale(get_colorscale(DIVERGING), 25)]
    lightness = [seen[0] for seen in scale]
    assert (np.diff(lightness[:13]) > 0).all()
    assert (np.diff(lightness[12:]) < 0).all()
    for left, right in zip(scale[:9], scale[:-10:-1], strict=True):
        assert np.linalg.norm(left - right) > 20


def test_ratios_turn_at_one_and_differences_at_zero():
    ratios = map_colours("about one", np.array([[0.5, 10.0, np.nan]]), "excess")
    assert (ratios["zmin"], ratios["zmax"]) == (-1.0, 1.0)
    assert ratios["colorbar"]["ticktext"] == ["0.1", "0.316", "1", "3.16", "10"]
    differences = map_colours("about zero", np.array([-0.3, 0.1]), "delta")
    assert (differences["zmin"], differences["zmax"]) == (-0.3, 0.3)
    assert map_colours("share", np.array([0.4]), "E")["zmax"] == 1.0
