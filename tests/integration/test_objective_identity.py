"""Objectives that share a name are told apart when captures merge."""

import functools
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models import random_documents, tiny_model
from tl_aniso import Capture, capture
from tl_aniso.capturing.objective_identity import objective_id
from tl_aniso.errors import MergeError, TlAnisoWarning

pytestmark = pytest.mark.usefixtures("one_thread")

DOCUMENTS = random_documents()
TOKEN = 7


def made(token: Any) -> Any:
    return lambda logits, ids, mask: logits[..., token]


def logit(token: int, logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    return logits[..., token]


def measured(objective: Any, documents: Any) -> Capture:
    return capture(tiny_model("llama"), documents, objective=objective, sites="embed.*", progress=False)


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (made(3), made(3), made(4)),
        (functools.partial(logit, 3), functools.partial(logit, 3), functools.partial(logit, 4)),
        (lambda z, i, m: z[..., 3], None, lambda z, i, m: z[..., 4]),
        (lambda z, i, m, n=3: z[..., n], None, lambda z, i, m, n=4: z[..., n]),
        (made(torch.tensor([3])), made(torch.tensor([3])), made(torch.tensor([4]))),
        (made({"a": 3}), made({"a": 3}), made({"a": 4})),
        (made(torch.nn.Linear(2, 2)), None, made(torch.nn.Linear(2, 2))),
    ],
)
def test_the_digest_is_of_code_and_values(one: Any, same: Any, other: Any) -> None:
    assert objective_id(one) == objective_id(same or one) != objective_id(other)
    assert objective_id(one)[1] == ()


def test_the_digest_sees_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    def reading(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        return logits[..., TOKEN]

    before = objective_id(reading)
    monkeypatch.setitem(globals(), "TOKEN", 8)
    assert objective_id(reading) != before


def test_unlike_objectives_of_one_name_do_not_merge(tmp_path: Path) -> None:
    first = measured(made(3), DOCUMENTS[:5])
    first = Capture.load(first.save(tmp_path / "first"))
    with pytest.raises(MergeError, match="objective_id"):
        first.merge(measured(made(4), DOCUMENTS[5:]))
    merged = first.merge(measured(made(3), DOCUMENTS[5:]))
    assert merged.metadata["options"]["objective"] == "<lambda>"


def test_what_cannot_be_told_is_warned_of() -> None:
    held = deque([3])
    with pytest.warns(TlAnisoWarning, match="<lambda> holds values of type deque.*objective_name"):
        measured(lambda z, i, m: z[..., held[0]], DOCUMENTS[:5])
