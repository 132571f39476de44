"""Holm over sites, and lists of ranks in one call, as the frames of both questions show them."""

import numpy as np
import pytest

from tests.models import random_documents, tiny_model
from tl_aniso import ablation_isotropy, capture, tangent_energy
from tl_aniso.multiple_testing import holm, holm_over_sites

KEYS = ["gradient", "rank", "measure", "control"]


@pytest.fixture(scope="module")
def held():
    documents = random_documents(tuple(20 + i % 9 for i in range(30)))
    return capture(tiny_model("neox-sequential"), documents, progress=False)


@pytest.mark.parametrize("question", [tangent_energy, ablation_isotropy])
def test_p_values_are_adjusted_over_sites_within_each_quantity(held, question):
    frame = question(held, rank=[2, 4], gradients=("activation", "weight"), n_controls=39).frame
    known = frame[frame["p_value"].notna()]
    sizes = set()
    for _, rows in known.groupby(KEYS):
        assert rows["site"].is_unique
        np.testing.assert_allclose(rows["p_holm"], holm(rows["p_value"]))
        sizes.add(len(rows))
    assert min(sizes) > 1
    # Over these sites only: adjusting over ranks or gradients as well would multiply by more.
    least = known.groupby(KEYS)["p_value"].transform("min")
    first = known[known["p_value"] == least]
    assert (first["p_holm"] <= np.minimum(first["p_value"] * max(sizes) + 1e-12, 1.0)).all()
    assert frame.loc[frame["p_value"].isna(), "p_holm"].isna().all()


def test_holm_over_sites_leaves_its_frame_alone(held):
    frame = tangent_energy(held, n_controls=19).frame
    before = frame["p_holm"].copy()
    changed = holm_over_sites(frame.assign(p_value=0.5))
    assert frame["p_holm"].equals(before)
    assert (changed["p_holm"] == 1.0).all()


def test_a_list_of_ranks_is_every_rank_by_itself(held):
    both = ablation_isotropy(held, rank=[4, 2], gradients=("none", "weight"), n_controls=10).frame
    assert sorted(both["rank"].unique()) == [2, 4]
    for rank in (2, 4):
        alone = ablation_isotropy(held, rank=rank, gradients=("none", "weight"), n_controls=10).frame
        mine = both[both["rank"] == rank].reset_index(drop=True)
        # Directions beyond the second do not move the first two; p_holm is over sites at this rank.
        for column in ("value", "control_value", "p_value", "p_holm"):
            np.testing.assert_allclose(mine[column], alone[column], rtol=1e-6)
    shares = tangent_energy(held, rank=(1, 2, 4), n_controls=0).frame
    shares = shares[(shares["measure"] == "energy_share") & (shares["control"] == "none")]
    table = shares.pivot(index="site", columns="rank", values="value")
    assert (table[1] < table[2]).all()
    assert (table[2] < table[4]).all()
