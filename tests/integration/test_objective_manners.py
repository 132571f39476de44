"""What an objective may do to what it is given, and what is said where it goes wrong."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models import random_documents, tiny_model
from tl_aniso import TlAnisoError, capture

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS: dict[str, Any] = {"progress": False, "batch_size": 3}
DOCUMENTS = random_documents()[:5]


def clean(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    return 2 * logits[..., 7] * (ids % 2)


def writing(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    losses = logits.mul_(2)[..., 7] * (ids % 2)
    mask[:, 1:] = False
    ids[:] = 5
    torch.rand(3)
    return losses


def test_an_objective_may_write_into_what_it_is_given_and_draw_random_numbers() -> None:
    expected = capture(tiny_model("llama"), DOCUMENTS, objective=clean, **OPTIONS)
    got = capture(tiny_model("llama"), DOCUMENTS, objective=writing, **OPTIONS)
    for site, moments in expected.weight_gradients.items():
        torch.testing.assert_close(got.weight_gradients[site].second_moment(), moments.second_moment())
    for control, sites in expected.controls.items():
        for site, moments in sites.items():
            torch.testing.assert_close(got.controls[control][site].second_moment(), moments.second_moment())


def test_random_state_is_kept() -> None:
    model = tiny_model("llama")
    state = torch.get_rng_state()
    capture(model, DOCUMENTS, objective=writing, **OPTIONS)
    assert torch.equal(state, torch.get_rng_state())


@torch.no_grad()
def without_graph(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    return logits[..., 7]


def hidden_write(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    with torch.no_grad():
        logits.mul_(2)
    return logits[..., 7]


def broken_graph(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    shares = logits.exp()
    losses = shares[..., 7].clone()
    shares.mul_(2)
    return losses


def two_arguments(logits: Tensor, ids: Tensor) -> Tensor:
    return logits[..., 7]


def nothing(logits: Tensor, ids: Tensor, mask: Tensor) -> Any:
    return 1.0


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        (without_graph, "without_graph keep no graph.*without .*no_grad"),
        (hidden_write, "hidden_write wrote into its logits under no_grad.*clone"),
        (broken_graph, "broken_graph cannot be differentiated.*clone"),
        (two_arguments, "two_arguments.*cannot be called with .logits, ids, mask.*partial"),
        (functools.partial(two_arguments, 1), r"partial\(two_arguments\).*cannot be called"),
        (nothing, "nothing must return one loss a token.*got float"),
    ],
)
def test_an_objective_that_gives_no_gradient_is_refused(objective: Any, said: str) -> None:
    with pytest.raises(TlAnisoError, match=said):
        capture(tiny_model("llama"), DOCUMENTS, objective=objective, **OPTIONS)


def failing(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    raise KeyError("mine")


def test_what_an_objective_raises_passes_with_a_note() -> None:
    with pytest.raises(KeyError, match="mine") as caught:
        capture(tiny_model("llama"), DOCUMENTS, objective=failing, **OPTIONS)
    assert "objective failing at piece 0 of document" in caught.value.__notes__[0]
