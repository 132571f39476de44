"""Rows of single tokens add up to the sums of a capture; the model is as it was whenever the caller looks."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.encoder_models import MASK, tiny_encoder
from tests.masked_models import DOCUMENTS as MASKED_DOCUMENTS
from tests.models import VOCAB, as_bridge, random_documents, tiny_model
from tests.reference.gradients import reference_gradients
from tl_aniso import Capture, MaskedLM, TlAnisoError, capture
from tl_aniso.capturing import hooks
from tl_aniso.capturing.token_rows import TokenRows, token_rows
from tl_aniso.errors import SiteError, TextError, UndefinedMeasureError
from tl_aniso.text import document_hash, half_of

pytestmark = pytest.mark.usefixtures("one_thread")

# The first token is special, so that row filters have something to leave out.
DOCUMENTS = [[1, *ids] for ids in random_documents()]
WEIGHTS = ("embed.W_E", "blocks.*.attn.W_?", "blocks.*.mlp.W_*t", "blocks.*.mlp.W_in")
SITES = ("blocks.*.hook_resid_*", "*.input", "*.output", *WEIGHTS)
MODELS = ("neox-parallel", "llama-tied", "gpt2", "gemma3", "bridge", "EuroBert", "ModernBert")


@cache
def model_of(kind: str) -> Any:
    if kind == "bridge":
        return as_bridge(tiny_model("neox-sequential"))
    return tiny_model(kind) if kind[0].islower() else tiny_encoder(kind)


def texts_of(kind: str) -> list[list[int]]:
    return DOCUMENTS if kind[0].islower() else MASKED_DOCUMENTS


def objective_of(kind: str) -> Any:
    return MaskedLM(rate=0.3, mask_token_id=MASK) if kind == "ModernBert" else None


def rows_of(kind: str, **options: Any) -> list[TokenRows]:
    options = {"objective": objective_of(kind), **options}
    options = {"sites": SITES, "gradients": "activation", "batch_size": 3, "progress": False, **options}
    return list(token_rows(model_of(kind), texts_of(kind), **options))


@cache
def captured(kind: str) -> Capture:
    return capture(
        model_of(kind),
        texts_of(kind),
        sites=SITES,
        controls=(),
        objective=objective_of(kind),
        batch_size=3,
        extra_passes="shuffled_labels",
        progress=False,
    )


def relative(got: Tensor, expected: Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())


def joined(batches: list[TokenRows], field: str, site: str) -> Tensor:
    return torch.cat([getattr(rows, field)[site][rows.kept[site]] for rows in batches])


def weight_moment(batches: list[TokenRows], site: str) -> Tensor:
    """Mean over sequences of G^T G, G made row by row."""
    total, count = torch.zeros(32, 32, dtype=torch.float64), 0
    for rows in batches:
        if site == "embed.W_E":
            left = torch.nn.functional.one_hot(rows.fed, VOCAB).double()
        else:
            left = rows.outputs[site].double()
        writer = f"{site}.output" in rows.gradients
        right = rows.gradients[f"{site}.output"] if writer else rows.activations[site.rsplit(".", 1)[0] + ".input"]
        for f, r in zip(rows.by_sequence(left), rows.by_sequence(right.double()), strict=True):
            gradient = f.T @ r
            total += gradient.T @ gradient
            count += 1
    return total / count


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("labels", ["true", "shuffled"])
def test_rows_add_up_to_the_sums_of_a_capture(kind: str, labels: str) -> None:
    batches, sums = rows_of(kind, labels=labels), captured(kind)
    gradients = sums if labels == "true" else sums.variants["shuffled_labels"]
    assert set(batches[0].activations) == set(sums.activations)
    for site, moments in sums.activations.items():
        rows = joined(batches, "activations", site).double()
        assert len(rows) == moments.count, site
        assert relative(rows.mean(0), moments.mean) < 1e-6, site
        assert relative(torch.cov(rows.T), moments.covariance()) < 1e-6, site
    for site, moments in gradients.activation_gradients.items():
        rows = joined(batches, "gradients", site).double()
        assert len(rows) == moments.count, site
        assert relative(rows.T @ rows / len(rows), moments.second_moment()) < 1e-6, site
    assert {f"blocks.1.attn.W_{m}" for m in "QKVO"} < set(gradients.weight_gradients)
    for site, moments in gradients.weight_gradients.items():
        assert relative(weight_moment(batches, site), moments.second_moment()) < 1e-6, site


def test_rows_are_those_of_autograd() -> None:
    reference = reference_gradients(model_of("llama-tied"), DOCUMENTS)
    numbers = {document_hash(ids): number for number, ids in enumerate(DOCUMENTS)}
    for rows in rows_of("llama-tied"):
        for part, document in enumerate(rows.document):
            of = rows.sequence == rows.sequence[0] + part
            assert rows.ids[of].tolist() == DOCUMENTS[numbers[document]]
            assert rows.position[of].tolist() == list(range(int(of.sum())))
            site = "blocks.1.hook_resid_pre"
            assert relative(rows.gradients[site][of], reference.residual_gradients[site][numbers[document]]) < 1e-5
            site = "blocks.1.attn.W_O"
            assert relative(rows.outputs[site][of], reference.factors[site][numbers[document]]) < 1e-5
            assert relative(rows.gradients[f"{site}.output"][of], reference.rows[site][numbers[document]]) < 1e-5


@pytest.mark.parametrize("kind", ["llama-tied", "EuroBert"])
def test_a_document_has_the_same_rows_in_a_ragged_batch_and_alone(kind: str) -> None:
    together = {
        (h, p): (rows, i)
        for rows in rows_of(kind)
        for i, (h, p) in enumerate(zip(rows.document, rows.piece, strict=True))
    }
    alone = rows_of(kind, batch_size=1)
    assert sum(len(rows) for rows in alone) == sum(len(ids) for ids in texts_of(kind))
    for rows in alone:
        mates, number = together[rows.document[0], rows.piece[0]]
        of = mates.sequence == mates.sequence[0] + number
        assert torch.equal(mates.ids[of], rows.ids)
        assert torch.equal(mates.fed[of], rows.fed)
        assert torch.equal(mates.carries[of], rows.carries)
        for field in ("activations", "gradients", "outputs"):
            for site, values in getattr(rows, field).items():
                assert relative(getattr(mates, field)[site][of], values.double()) < 1e-5, site
        for site, keep in rows.kept.items():
            assert torch.equal(mates.kept[site][of], keep), site


def test_what_can_carry_gradient_is_told_by_site() -> None:
    for rows in rows_of("EuroBert"):
        assert not torch.equal(rows.ids, rows.fed)
        last = "blocks.2.hook_resid_post"
        assert torch.equal(rows.reaches[last], rows.carries)
        assert bool(rows.reaches["blocks.0.hook_resid_pre"].all())
        assert bool((rows.gradients[last][~rows.carries] == 0).all())
    for rows in rows_of("llama-tied"):
        ends = torch.tensor([*(rows.sequence.diff() == 1).tolist(), True])
        assert torch.equal(rows.carries, ~ends)
        assert torch.equal(rows.reaches["blocks.0.attn.W_K"], ~ends)
        assert torch.equal(rows.special, rows.position == 0)


def state(model: Any) -> list[Any]:
    root = getattr(model, "original_model", model)
    names = [name for name in vars(torch.nn.Module()) if "hooks" in name]
    held = [(path, name, list(vars(m)[name])) for path, m in root.named_modules() for name in names]
    flags = [(p.requires_grad, p.grad is None) for p in root.parameters()]
    modes = [m.training for m in root.modules()]
    here = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_rng_state().tolist())
    return [held, flags, modes, here]


@pytest.mark.parametrize("kind", ["llama-tied", "bridge", "EuroBert"])
def test_the_model_is_as_it_was_between_batches_and_when_the_caller_stops(kind: str) -> None:
    model = model_of(kind)
    before = state(model)
    found = token_rows(model, texts_of(kind), sites=SITES, gradients="activation", batch_size=3, progress=False)
    assert state(model) == before
    next(found)
    assert state(model) == before
    del found
    assert state(model) == before
    for _ in token_rows(model, texts_of(kind), sites=SITES, batch_size=3, progress=False):
        break
    assert state(model) == before


def test_the_model_is_as_it_was_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(model_of("llama-tied")).train()
    before = state(model)

    def broken(*_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError("no backward")

    monkeypatch.setattr(hooks.Tap, "backward", broken)
    found = token_rows(model, DOCUMENTS, sites=SITES, gradients="activation", progress=False)
    with pytest.raises(RuntimeError, match="no backward"):
        next(found)
    assert state(model) == before
    monkeypatch.undo()
    found = token_rows(model, DOCUMENTS, sites=SITES, batch_size=2, progress=False)
    next(found)
    with pytest.raises(KeyError, match="the caller's"):
        found.throw(KeyError("the caller's"))  # type: ignore[attr-defined]
    assert state(model) == before


def test_the_model_may_be_used_while_rows_come() -> None:
    model = copy.deepcopy(model_of("llama-tied"))
    expected = rows_of("llama-tied")
    found = token_rows(model, DOCUMENTS, sites=SITES, gradients="activation", batch_size=3, progress=False)
    for rows, own in zip(found, expected, strict=True):
        loss = model(input_ids=torch.tensor([DOCUMENTS[0]]), labels=torch.tensor([DOCUMENTS[0]])).loss
        loss.backward()
        assert torch.equal(rows.outputs["blocks.0.attn.W_Q"], own.outputs["blocks.0.attn.W_Q"])


def test_halves_are_parts_of_the_whole() -> None:
    both = {h for rows in rows_of("llama-tied") for h in rows.document}
    parts = {half: {h for rows in rows_of("llama-tied", half=half) for h in rows.document} for half in "AB"}
    assert parts["A"] | parts["B"] == both
    assert not parts["A"] & parts["B"]
    assert all(set(rows.half) == {"A"} for rows in rows_of("llama-tied", half="A"))
    other = "A" if half_of(document_hash(DOCUMENTS[0])) == "B" else "B"
    with pytest.raises(TextError, match="half"):
        token_rows(model_of("llama-tied"), [DOCUMENTS[0]], sites=SITES, half=other, progress=False)


def test_sinks_are_those_of_a_capture() -> None:
    model = copy.deepcopy(model_of("neox-parallel"))
    with torch.no_grad():
        model.gpt_neox.embed_in.weight[5] *= 100
    options: dict[str, Any] = {"sites": ("*_pre", "*.output"), "batch_size": 3, "progress": False}
    batches = list(token_rows(model, DOCUMENTS, **options))
    sums = capture(model, DOCUMENTS, gradients=(), **options)
    fives = torch.cat([rows.ids for rows in batches]) == 5
    kept = torch.cat([rows.kept["blocks.0.hook_resid_pre"] for rows in batches])
    assert bool(fives.any())
    assert not bool((fives & kept).any())
    for site, moments in sums.activations.items():
        rows = joined(batches, "activations", site)
        assert len(rows) == moments.count < len(fives), site
        assert relative(rows.double().mean(0), moments.mean) < 1e-6, site


def test_an_objective_of_ones_own_says_what_carries() -> None:
    def every_other(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        return logits[..., 5] * (torch.arange(ids.shape[1]) % 2)

    options: dict[str, Any] = {"objective": every_other, "progress": False}
    for gradients in ((), "activation"):
        for rows in token_rows(model_of("neox-parallel"), DOCUMENTS, sites="*_pre", gradients=gradients, **options):
            assert torch.equal(rows.carries, rows.position % 2 == 1)
            assert bool(rows.gradients) == bool(gradients)
    with pytest.raises(TlAnisoError, match="shuffled_labels"):
        token_rows(
            model_of("neox-parallel"), DOCUMENTS, sites="*_pre", gradients="activation", labels="shuffled", **options
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sites": ()}, "sites is empty"),
        ({"sites": "blocks.9.*"}, "no site"),
        ({"sites": "*W_?"}, "unembed.W_U"),
        ({"sites": "*_pre", "gradients": "blocks.0.attn.W_Q"}, "no site"),
        ({"sites": "*.input", "gradients": "activation"}, "names none"),
        ({"sites": "*.input", "gradients": "weight"}, "names none"),
        ({"sites": "*_pre", "labels": "shuffled"}, "none is asked for"),
        ({"sites": "*_pre", "labels": "permuted"}, "labels"),
        ({"sites": "*_pre", "half": "C"}, "half"),
        ({"sites": "*_pre", "exclude": "masked"}, "masks nothing"),
        ({"sites": "*_pre", "batch_size": 0}, "batch_size"),
    ],
)
def test_arguments_are_judged_before_the_model_runs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TlAnisoError, match=message):
        token_rows(model_of("llama-tied"), DOCUMENTS, **{"progress": False, **options})


def test_rows_that_are_not_finite_are_an_error() -> None:
    model = copy.deepcopy(model_of("neox-parallel"))

    def spoil(_module: Any, _args: Any, output: Tensor) -> Tensor:
        return output * torch.inf

    model.gpt_neox.layers[0].mlp.register_forward_hook(spoil)
    with pytest.raises(UndefinedMeasureError, match="not finite"):
        next(token_rows(model, DOCUMENTS, sites="*_post", progress=False))


def test_rows_of_another_length_are_refused() -> None:
    (rows, *_) = rows_of("llama-tied")
    with pytest.raises(TlAnisoError, match="match"):
        rows.by_sequence(rows.ids[1:])
    with pytest.raises(SiteError):
        token_rows(model_of("llama-tied"), DOCUMENTS, sites="unembed.W_U", progress=False)
