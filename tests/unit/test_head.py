"""The unembedding's loss and gradients in pieces, against autograd on all logits at once."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tl_aniso.capturing import head as module
from tl_aniso.capturing.head import Unembedding, cross_entropy_head
from tl_aniso.capturing.objectives import Targets, causal_targets
from tl_aniso.errors import UndefinedMeasureError

BATCH, LENGTH, VOCAB, D = 3, 11, 53, 6


def case(*, bias: bool = True, softcap: float | None = None) -> tuple[Unembedding, Tensor, Targets]:
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(VOCAB, D, generator=generator)
    shift = torch.randn(VOCAB, generator=generator) if bias else None
    ids = torch.randint(0, VOCAB, (BATCH, LENGTH), generator=generator)
    ids[0, :4] = torch.tensor([0, 0, VOCAB - 1, VOCAB - 1])  # targets at both ends of the vocabulary
    mask = torch.arange(LENGTH) < torch.tensor([LENGTH, 7, 2])[:, None]
    hidden = torch.randn(BATCH, LENGTH, D, generator=generator)
    return Unembedding(weight, shift, softcap), hidden, causal_targets(ids, mask)


def by_autograd(unembedding: Unembedding, hidden: Tensor, targets: Targets) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient at the hidden state, loss by sequence, and the gradient at the uncapped logits, all in float64."""
    hidden = hidden.double().requires_grad_()
    raw = torch.nn.functional.linear(
        hidden, unembedding.weight.double(), None if unembedding.bias is None else unembedding.bias.double()
    )
    logits = raw if unembedding.softcap is None else unembedding.softcap * torch.tanh(raw / unembedding.softcap)
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.ids.flatten(), reduction="none")
    losses = losses.reshape(BATCH, LENGTH) * targets.carries
    at_hidden, at_raw = torch.autograd.grad(losses.sum(), [hidden, raw])
    return at_hidden, losses.sum(1).detach(), at_raw


# Rows are 11 x 53 = 583 logits a sequence: two sequences at once, one, rows or slices, slices of 3 tokens.
@pytest.mark.parametrize("chunk", [2**25, 1200, 600, 200, 33])
@pytest.mark.parametrize("softcap", [None, 2.5])
@pytest.mark.parametrize("bias", [False, True])
def test_gradient_loss_and_kernel_equal_autograd(
    monkeypatch: pytest.MonkeyPatch, chunk: int, softcap: float | None, bias: bool
) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    unembedding, hidden, targets = case(bias=bias, softcap=softcap)
    gradient, loss, at_logits = by_autograd(unembedding, hidden, targets)
    for inner in ("none", "kernel"):
        got = cross_entropy_head(unembedding, hidden, targets, inner=inner)  # type: ignore[arg-type]
        torch.testing.assert_close(got.gradient.double(), gradient, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got.loss, loss, rtol=1e-6, atol=1e-6)
        assert (got.kernel is None) == (inner == "none")
        if got.kernel is not None:
            expected = at_logits @ at_logits.transpose(1, 2)
            torch.testing.assert_close(got.kernel.double(), expected, rtol=1e-5, atol=1e-5)


def test_asking_for_the_kernel_changes_no_bit_of_the_gradient() -> None:
    for softcap in (None, 2.5):
        unembedding, hidden, targets = case(softcap=softcap)
        got = [cross_entropy_head(unembedding, hidden, targets, inner=inner) for inner in ("none", "kernel")]
        assert torch.equal(got[0].gradient, got[1].gradient)
        assert torch.equal(got[0].loss, got[1].loss)


@pytest.mark.parametrize("chunk", [2**25, 200])
@pytest.mark.parametrize("softcap", [None, 2.5])
def test_the_gradient_is_formed_where_that_is_cheaper(
    monkeypatch: pytest.MonkeyPatch, chunk: int, softcap: float | None
) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    monkeypatch.setattr(module, "_by_gradient", lambda *_: True)
    unembedding, hidden, targets = case(softcap=softcap)
    gradient, loss, at_logits = by_autograd(unembedding, hidden, targets)
    counted = targets.carries.clone()
    counted[0, 2] = False
    got = cross_entropy_head(unembedding, hidden, targets, inner="cheapest", counted=counted)
    assert got.kernel is None
    assert got.formed is not None
    torch.testing.assert_close(got.gradient.double(), gradient, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.loss, loss, rtol=1e-6, atol=1e-6)
    factor = at_logits * counted[..., None]
    weights = factor.transpose(1, 2) @ hidden.double()
    for found, expected in (
        (got.formed.moment, weights.transpose(1, 2) @ weights),
        (got.formed.norms, factor.square().sum(2)),
        (got.formed.total, factor.sum(1).square().sum(1)),
    ):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_the_cheaper_way_is_chosen() -> None:
    assert not module._by_gradient(length=512, vocabulary=50_000, d=768)
    assert module._by_gradient(length=8192, vocabulary=50_000, d=768)


@pytest.mark.parametrize("chunk", [2**25, 200])
def test_logits_that_are_not_finite(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    unembedding, hidden, targets = case()
    hidden[1, 1] = torch.nan
    for inner in ("none", "kernel"):
        with pytest.raises(UndefinedMeasureError, match="loss is not finite"):
            cross_entropy_head(unembedding, hidden, targets, inner=inner)  # type: ignore[arg-type]


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.numel())
        return out


@pytest.mark.parametrize("inner", ["none", "kernel"])
def test_vocabulary_times_length_never_sets_the_largest_tensor(inner: Any) -> None:
    vocabulary, length = 50_000, 1024
    assert vocabulary * length > module._CHUNK
    weight, hidden = torch.randn(vocabulary, 4), torch.randn(1, length, 4)
    targets = causal_targets(torch.randint(0, vocabulary, (1, length)), torch.ones(1, length, dtype=torch.bool))
    with Largest() as seen:
        cross_entropy_head(Unembedding(weight), hidden, targets, inner=inner)
    assert 2**24 < seen.elements <= module._CHUNK


_PEAK = """
import resource, sys, torch
from tl_aniso.capturing.head import Unembedding, cross_entropy_head
from tl_aniso.capturing.objectives import causal_targets
torch.set_num_threads(1)
length, inner = int(sys.argv[1]), sys.argv[2]
hidden, weight = torch.randn(1, length, 16), torch.randn(50_000, 16)
targets = causal_targets(torch.randint(0, 50_000, (1, length)), torch.ones(1, length, dtype=torch.bool))
few = causal_targets(targets.ids[:, :16], targets.carries[:, :16])
cross_entropy_head(Unembedding(weight), hidden[:, :16], few, inner=inner)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
cross_entropy_head(Unembedding(weight), hidden, targets, inner=inner)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["none", "kernel"])
def test_peak_memory_does_not_grow_with_vocabulary_times_length(inner: str) -> None:
    def peak(length: int) -> float:
        run = subprocess.run(
            [sys.executable, "-c", _PEAK, str(length), inner], check=True, capture_output=True, text=True
        )
        return int(run.stdout) / 1024

    # All logits at once would take 391 MiB at 2,048 tokens, and with their softmax twice that.
    assert peak(2048) < peak(512) + 64


@pytest.mark.parametrize("softcap", [None, 400.0])
def test_targets_of_vanishing_probability_keep_their_loss(softcap: float | None) -> None:
    """A softmax of 1e-60 is zero in float32; the loss is 138 nats all the same."""
    unembedding, hidden, targets = case(softcap=softcap)
    hidden = 60 * hidden
    gradient, loss, _ = by_autograd(unembedding, hidden, targets)
    assert loss.max() > 2000  # of at most eleven tokens, so some are rarer than float32 can tell
    got = cross_entropy_head(unembedding, hidden, targets, inner="none")
    torch.testing.assert_close(got.loss, loss, rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(got.gradient.double(), gradient, rtol=1e-4, atol=1e-4)
