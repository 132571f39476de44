"""Gradients that are zero, zero but for rounding, or so small that their squares underflow: said, not measured."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models import random_documents, tiny_model
from tests.reference.gradients import reference_gradients
from tl_aniso import tangent_energy
from tl_aniso.errors import UndefinedMeasureError

pytestmark = pytest.mark.usefixtures("one_thread")

DOCUMENTS = random_documents((20,) * 12)


def scaled(logits: Tensor, ids: Tensor, mask: Tensor, *, by: float) -> Tensor:
    return by * logits.log_softmax(-1)[..., 7]


def asked(documents: Any = DOCUMENTS, *, model: Any = None, **options: Any) -> Any:
    model = tiny_model("llama") if model is None else model
    return tangent_energy(model, documents, progress=False, n_controls=19, **options)


def about(result: Any, what: str) -> list[str]:
    return [note for note in result.notes if what in note]


def test_gradients_that_are_rounding_noise_have_no_p_value() -> None:
    # The first token attends to itself alone, whatever its query and key are, and the second one has no loss.
    documents = random_documents((2,) * 40)
    options = {"gradients": ("weight", "activation"), "exclude": ()}
    result = asked(documents, **options)
    reference = reference_gradients(tiny_model("llama"), documents)
    norms = {site: float(reference.second_moment(site).trace()) ** 0.5 for site in reference.weights}
    noise = {site for site, norm in norms.items() if norm < 1e-9 * max(norms.values())}
    assert noise == {f"blocks.{layer}.attn.W_{name}" for layer in (0, 1) for name in "QK"}
    (note,) = about(result, "zero but for rounding")
    assert "blocks.0.attn.W_Q" in note
    assert "(4 sites)" in note
    frame = result.frame
    shares = frame[
        (frame["measure"] == "energy_share") & (frame["control"] == "none") & (frame["gradient"] == "weight")
    ]
    for _, row in shares.iterrows():
        assert row["value"] == row["value"]
        for column in ("z", "p_value", "p_holm"):
            assert (row[column] != row[column]) == (row["site"] in noise), (row["site"], column)
    assert frame[frame["site"].isin(noise)]["ci_low"].isna().all()


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("by", [1e-20, 1e-21])
def test_squares_that_underflow_are_noted(by: float, projected: bool) -> None:
    options: dict[str, Any] = {"n_controls": 0} if projected else {}
    small = tangent_energy(
        tiny_model("llama"),
        DOCUMENTS,
        progress=False,
        gradients=("weight", "activation"),
        objective=functools.partial(scaled, by=by),
        **options,
    )
    (note,) = about(small, "underflow in float32, so")
    assert "scale the objective up" in note
    assert "sites)" in note


def test_ordinary_gradients_get_no_such_note() -> None:
    result = asked(gradients=("weight", "activation"), objective=functools.partial(scaled, by=1e-6))
    assert not about(result, "underflow")
    assert not about(result, "rounding")


def test_every_gradient_zero_is_said_with_its_causes() -> None:
    model = tiny_model("llama")
    torch.nn.init.zeros_(model.lm_head.weight)
    for options in ({"sites": ("blocks.*", "embed.*")}, {"model": tiny_model("llama"), "objective": nothing}):
        with pytest.raises(UndefinedMeasureError, match=r"every gradient is exactly zero.*no position.*unembedding"):
            asked(**{"model": model, **options})
    with pytest.raises(UndefinedMeasureError, match=r"every gradient but that of unembed\.W_U is exactly zero"):
        asked(model=model)


def nothing(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    return logits[..., 7] * (ids < 0)
