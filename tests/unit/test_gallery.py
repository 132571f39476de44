"""Every public plot has an entry in the gallery and a test that reads its data back."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from tl_aniso import viz
from tl_aniso.viz import plots

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "docs" / "gallery.md"

# Public plot -> the test on its data: file in tests/unit, and function. A new plot needs a line here.
TESTS = {
    "ablation_spectrum": "plots_planes::test_ablation_spectrum_draws_the_frame_with_the_band_and_counts_the_missing",
    "angles_by_step": "plots_planes::test_angles_by_step_draw_every_site_their_mean_and_random_planes",
    "claims_forest": "plots_tables::test_forest_has_every_verdict_once_with_its_effect_interval_and_threshold",
    "curvature_by_layer": "plots_tables::test_curvature_draws_the_data_beside_every_control",
    "energy_by_layer": "figures::test_by_layer_keeps_embeddings_and_shows_every_site_with_its_interval",
    "energy_by_step": "figures::test_by_step_draws_geometric_means_of_the_frame",
    "energy_heat_map": "figures::test_heat_map_holds_the_numbers_and_turns_excess_at_one",
    "energy_trajectories": (
        "plots_energy::test_trajectories_draw_means_with_intervals_the_exact_null_and_the_spread_of_controls"
    ),
    "frequency_scatter": "plots_tables::test_frequency_scatter_has_every_known_type_and_prints_the_correlations",
    "isotropy_by_layer": "figures::test_isotropy_draws_the_three_scores_and_the_band",
    "isotropy_by_step": "figures::test_isotropy_draws_the_three_scores_and_the_band",
    "isotropy_heat_map": "plots_energy::test_isotropy_heat_map_is_tangent_less_normal_and_turns_at_zero",
    "local_energy_by_layer": "plots_tables::test_local_energy_draws_share_ratio_and_excess_by_control",
    "loss_by_step": "figures::test_loss_has_gaps",
    "overlap_heat_map": "plots_planes::test_overlap_heat_map_has_the_kernel_in_order_with_the_null_in_its_title",
}


@pytest.fixture(scope="module")
def maker():
    found = importlib.util.spec_from_file_location("make_gallery", ROOT / "docs" / "make_gallery.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_plot_is_public_and_every_public_plot_is_known():
    drawn = {name for name in viz.__all__ if getattr(viz, name).__module__.startswith("tl_aniso.viz.plots")}
    assert drawn == set(plots.__all__) == set(TESTS)


@pytest.mark.parametrize("name", plots.__all__)
def test_every_public_plot_has_a_test_that_reads_its_figure(name):
    file, test = TESTS[name].split("::")
    tree = ast.parse((ROOT / "tests" / "unit" / f"test_{file}.py").read_text(encoding="utf-8"))
    body = next(ast.unparse(node) for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == test)
    assert f"{name}(" in body
    assert "assert" in body


def test_the_gallery_has_every_public_plot_as_it_is_made(maker):
    assert set(maker.ENTRIES) == set(plots.__all__)
    text = GALLERY.read_text(encoding="utf-8")
    assert text == maker.page()
    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == list(maker.ENTRIES)
    for name in maker.ENTRIES:
        picture = GALLERY.parent / "gallery" / f"{name}.svg"
        start = picture.read_text(encoding="utf-8")[:400]
        assert start.startswith("<svg")
        assert picture.stat().st_size < 300_000
