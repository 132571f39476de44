"""Both questions of every encoder, from text and its tokenizer: by default, with every control, with every option."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.encoder_models import ALL_KINDS, tiny_encoder
from tests.hub_cache import tiny_tokenizer
from tests.models import as_bridge
from tl_aniso import ablation_isotropy, capture, tangent_energy
from tl_aniso.adapters import register
from tl_aniso.controls import CONTROLS
from tl_aniso.controls.names import CLOSED_FORMS

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [
    f"the {a} {b} sat on the {c} and looked at the {d} of the {a}, then at the {c} once more"
    for a in ("old", "red", "wet")
    for b in ("cat", "dog")
    for c in ("mat", "hat", "bed")
    for d in ("crow", "cow")
]
HEADS = {"EuroBert": 2}  # of keys and values; all have four of queries


@cache
def tokenizer() -> Any:
    return tiny_tokenizer(mask=True)


@cache
def model_of(kind: str) -> Any:
    return tiny_encoder(kind, "sdpa", vocab_size=300, num_hidden_layers=2)


def asked(**options: Any) -> dict[str, Any]:
    return {"tokenizer": tokenizer(), "progress": False, **options}


@cache
def by_default(kind: str) -> Any:
    return tangent_energy(model_of(kind), TEXTS, **asked())


@cache
def energies(kind: str) -> Any:
    return tangent_energy(model_of(kind), TEXTS, **asked(controls="all", gradients=("weight", "activation")))


def selected(frame: pd.DataFrame, **where: Any) -> pd.DataFrame:
    chosen = np.logical_and.reduce([frame[column] == value for column, value in where.items()])
    return frame[chosen]


@pytest.mark.parametrize("kind", ALL_KINDS)
class TestEveryEncoder:
    def test_energy_by_default(self, kind: str) -> None:
        result = by_default(kind)
        frame = result.frame
        assert set(frame["objective"]) == {"masked"}
        assert set(frame["measure"]) == {"energy_share", "r_energy", "excess"}
        assert frame["held_out"].all()
        assert np.isfinite(frame["value"]).all()
        assert set(selected(frame, measure="excess")["control"]) == set(CLOSED_FORMS)
        blocks = frame[frame["layer"].notna()]
        assert np.isfinite(blocks[blocks["measure"] == "excess"][["ci_low", "ci_high"]]).all(axis=None)
        shares = selected(frame, measure="energy_share")["value"]
        assert shares.between(0, 1).all()
        assert any("masked and carry the loss" in note for note in result.notes)
        assert "readers" in result.summary()

    def test_every_control(self, kind: str) -> None:
        frame = energies(kind).frame
        found = selected(frame, measure="excess")
        assert set(found["control"]) == set(CONTROLS)
        assert np.isfinite(found["value"]).all()
        for control in CONTROLS:
            kinds = {"weight"} if control in CLOSED_FORMS else {"weight", "activation"}
            assert set(selected(found, control=control)["gradient"]) == kinds, control
        untrained = selected(found, control="untrained", gradient="weight")
        assert set(untrained["site"]) == set(selected(frame, measure="energy_share", gradient="weight")["site"])
        # Another model, not this one once more.
        assert (untrained["value"] - 1).abs().median() > 1e-3

    def test_isotropy_by_default(self, kind: str) -> None:
        frame = ablation_isotropy(model_of(kind), TEXTS, **asked()).frame
        assert set(frame["gradient"]) == {"activation", "weight"}
        assert np.isfinite(frame["value"]).all()
        deltas = selected(frame, measure="delta_isoscore_star")
        assert {f"blocks.{i}.hook_resid_{p}" for i in (0, 1) for p in ("pre", "mid", "post")} <= set(deltas["site"])
        scores = selected(frame, measure="isoscore_star")["value"]
        assert scores.between(0, 1).all()

    def test_head_by_head(self, kind: str) -> None:
        frame = tangent_energy(model_of(kind), TEXTS, **asked(heads=True, sites="blocks.*.attn.*")).frame
        few = HEADS.get(kind, 4)
        counts = {"W_Q": 4, "W_K": few, "W_V": few, "W_O": 4}
        expected = {f"blocks.{i}.attn.{w}.{h}" for i in (0, 1) for w, n in counts.items() for h in range(n)}
        assert expected == {site for site in frame["site"] if site[-1].isdigit()}
        assert np.isfinite(frame["value"]).all()

    def test_planes_of_the_residual_stream(self, kind: str) -> None:
        result = tangent_energy(model_of(kind), TEXTS, **asked(basis="residual"))
        own = by_default(kind).frame.set_index(["site", "measure", "control"])
        other = result.frame.set_index(["site", "measure", "control"])
        assert set(result.frame["basis"]) == {"residual"}
        assert np.isfinite(other["value"]).all()
        # BERT's readers read the stream itself, whose norms are behind the sums; elsewhere a norm stands between.
        key = ("blocks.1.attn.W_Q", "energy_share", "none")
        assert (abs(own.loc[key, "value"] - other.loc[key, "value"]) < 1e-6) == (kind not in ("EuroBert", "ModernBert"))

    def test_gradients_of_whole_batches(self, kind: str) -> None:
        frame = tangent_energy(model_of(kind), TEXTS, **asked(unit="batch", batch_size=4)).frame
        assert set(frame["unit"]) == {"batch"}
        assert np.isfinite(frame["value"]).all()
        # Cross terms between sequences make other shares, in planes that are the same but for rounding.
        shares, own = (selected(f, measure="energy_share", control="none") for f in (frame, by_default(kind).frame))
        assert not np.isclose(shares["value"], own["value"], rtol=1e-5).any()

    def test_kept_rows(self, kind: str) -> None:
        options = asked(gradients="none", keep_rows=60, sites="blocks.1.hook_resid_pre")
        frame = ablation_isotropy(model_of(kind), TEXTS, **options).frame
        assert {"mean_cosine", "partition_isotropy"} <= set(frame["measure"])
        assert np.isfinite(frame["value"]).all()
        held = capture(model_of(kind), TEXTS, **asked(keep_rows=60, sites="blocks.1.hook_resid_pre"))
        assert held.half("B").rows["blocks.1.hook_resid_pre"].shape == (60, 32)

    def test_under_autocast(self, kind: str) -> None:
        single, half = by_default(kind).frame, tangent_energy(model_of(kind), TEXTS, **asked(dtype="bfloat16")).frame
        assert np.isfinite(half["value"]).all()
        where = (half["measure"] == "energy_share") & (half["control"] == "none")
        assert not (half[where]["value"] == single[where]["value"]).all()
        np.testing.assert_allclose(half[where]["value"], single[where]["value"], atol=0.03)

    def test_bridged(self, kind: str) -> None:
        register()
        bridge = as_bridge(model_of(kind))
        frame = tangent_energy(bridge, TEXTS, **asked()).frame
        plain = by_default(kind).frame
        pd.testing.assert_series_equal(frame["site"], plain["site"])
        np.testing.assert_allclose(frame["value"], plain["value"], rtol=1e-4)


def test_zeros_beyond_a_window_of_local_attention_are_not_called_underflow_alone() -> None:
    notes = [note for note in energies("ModernBert").notes if "exactly zero" in note]
    assert len(notes) == 1
    assert notes[0].endswith("measure in float32, or, under local attention, no masked token is within their reach")
    assert not any("exactly zero" in note for note in energies("EuroBert").notes)
