"""unit="batch": G is the gradient of a whole batch, as one backward pass of the summed loss leaves it in `.grad`."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.models import random_documents, tiny_model
from tests.reference.gradients import Reference, reference_gradients
from tl_aniso import Capture, capture, fit_tangent_proxies, tangent_energy
from tl_aniso.capturing import head
from tl_aniso.errors import MergeError, TlAnisoError
from tl_aniso.text import Batch, document_hash, make_batches, make_sequences

pytestmark = pytest.mark.usefixtures("one_thread")

DOCUMENTS = random_documents()
OPTIONS: dict[str, Any] = {"exclude": (), "progress": False, "unit": "batch", "batch_size": 3, "n_shards": 2}
CONTROLS = ("input_energy", "sign_flip", "shuffled_g")
SITES = {"embed_in": "embed.W_E", "lm_head": "unembed.W_U", "1.attention.dense.": "blocks.1.attn.W_O"}
SITES |= {"0.mlp.dense_h_to_4h.": "blocks.0.mlp.W_in", "1.mlp.dense_4h_to_h.": "blocks.1.mlp.W_out"}


def batches(size: int = 3, shards: int = 2) -> list[Batch]:
    return make_batches(make_sequences(DOCUMENTS, 160, n_shards=shards).sequences, size, by_shard=True)


@cache
def reference_of(kind: str) -> Reference:
    return reference_gradients(tiny_model(kind), DOCUMENTS)


@cache
def whole(kind: str) -> Capture:
    return capture(tiny_model(kind), DOCUMENTS, **OPTIONS)


def numbers(batch: Batch) -> list[int]:
    """Which documents a batch holds."""
    return [[document_hash(d) for d in DOCUMENTS].index(s.document) for s in batch.sequences]


def relative(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm().clamp_min(1e-12))


def test_batches_keep_within_half_and_shard() -> None:
    found = batches()
    assert sorted(n for batch in found for n in numbers(batch)) == list(range(len(DOCUMENTS)))
    for batch in found:
        assert len({(s.half, s.shard) for s in batch.sequences}) == 1
    assert 4 <= len(found) < len(DOCUMENTS)
    assert max(len(batch.sequences) for batch in found) == 3


@pytest.mark.parametrize("padded", [False, True])
def test_it_is_what_a_backward_pass_of_the_summed_loss_leaves(padded: bool) -> None:
    # Both as a training step does it, padded with a mask, and document by document into the same `.grad`.
    model = copy.deepcopy(tiny_model("neox-sequential")).double()
    expected = {site: torch.zeros(32, 32, dtype=torch.float64) for site in SITES.values()}
    for batch in batches():
        model.zero_grad()
        rows = [slice(None)] if padded else [slice(i, i + 1) for i in range(len(batch.ids))]
        for part in rows:
            ids, mask = batch.ids[part], batch.mask[part]
            logits = model(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits
            losses = cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
            (losses * mask[:, 1:]).sum().backward()
        for name, parameter in model.named_parameters():
            for place, site in SITES.items():
                if place in name and name.endswith("weight"):
                    g = parameter.grad.T if site.endswith(("W_O", "W_out")) else parameter.grad
                    expected[site] += g.T @ g
    for site, total in expected.items():
        moments = whole("neox-sequential").weight_gradients[site]
        assert moments.count == len(batches())
        assert relative(moments.scatter, total) < 1e-5, site


@pytest.mark.parametrize("kind", ["llama", "neox-parallel"])
@pytest.mark.parametrize("forming", [False, True])
def test_gradients_and_controls_over_all_tokens_of_a_batch(
    kind: str, forming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "_by_gradient", lambda *_: forming)
    got, reference = capture(tiny_model(kind), DOCUMENTS, **OPTIONS), reference_of(kind)
    for site in reference.weights:
        expected = {name: torch.zeros(32, 32, dtype=torch.float64) for name in ("none", *CONTROLS)}
        for batch in batches():
            chosen = numbers(batch)
            gradient = sum(reference.weights[site][n] for n in chosen)
            expected["none"] += gradient.T @ gradient
            # The last position of each document predicts nothing and carries nothing.
            rows = torch.cat([reference.rows[site][n][:-1] for n in chosen])
            factor = torch.cat([reference.factors[site][n][:-1] for n in chosen])
            kernel, n = factor @ factor.T, len(rows)
            expected["input_energy"] += rows.T @ rows
            expected["sign_flip"] += rows.T @ kernel.diagonal().diag() @ rows
            middle = torch.full_like(kernel, float(kernel.sum() - kernel.trace()) / max(n * (n - 1), 1))
            middle.diagonal().fill_(float(kernel.trace()) / n)
            expected["shuffled_g"] += rows.T @ middle @ rows
        for name, total in expected.items():
            moments = (got.weight_gradients if name == "none" else got.controls[name])[site]
            assert moments.count == len(batches())
            assert relative(moments.scatter, total) < 1e-5, (site, name)


def test_projected_energies_equal_the_sums_of_the_same_pass() -> None:
    proxies = fit_tangent_proxies(whole("llama"), 4)
    for objective in (None, next_token):
        options = {**OPTIONS, "pooled": "all", "proxies": proxies, "objective": objective}
        got = capture(tiny_model("llama"), DOCUMENTS, **options)
        for site, moments in got.weight_gradients.items():
            assert relative(moments.scatter, whole("llama").weight_gradients[site].scatter) < 1e-5, site
            for control in ("none", *CONTROLS):
                total = (moments if control == "none" else got.controls[control][site]).scatter
                energies = got.energies("weight_gradient", site, control=control).sum((0, 1))
                basis = proxies[site].basis
                expected = torch.cat([(basis.T @ total @ basis).diagonal(), total.trace()[None]])
                assert float((energies - expected).abs().max() / total.trace()) < 1e-6, (site, control)


def next_token(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    losses = torch.zeros_like(logits[..., 0])
    losses[:, :-1] = cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    return losses


def test_batches_of_one_are_sequences() -> None:
    # Special ids, filtered; controls; sums by shard; labels permuted: everything that knows of units.
    documents = [[1, *document, 2] for document in DOCUMENTS]
    options = {**OPTIONS, "batch_size": 1, "weight_exclude": "special", "extra_passes": "shuffled_labels"}
    options["shard_sites"] = ["blocks.0.attn.W_K", "unembed.W_U", "embed.W_E"]
    got, expected = (capture(tiny_model("llama"), documents, **{**options, "unit": u}) for u in ("batch", "sequence"))
    assert got._sums.moments.keys() == expected._sums.moments.keys()
    for key, moments in expected._sums.moments.items():
        assert got._sums.moments[key].count == moments.count
        assert relative(got._sums.moments[key].scatter, moments.scatter) < 1e-5, key
    assert got.n_units == expected.n_units == len(documents)


def test_sums_by_shard_and_filtered_tokens() -> None:
    documents = [[1, *document, 2] for document in DOCUMENTS]
    options = {**OPTIONS, "weight_exclude": "special"}
    sites = ["blocks.0.attn.W_K", "unembed.W_U", "embed.W_E", "blocks.0.attn.W_O"]
    apart = capture(tiny_model("llama"), documents, shard_sites=sites, **options)
    reference = reference_gradients(tiny_model("llama"), documents)
    found = make_batches(make_sequences(documents, 160, n_shards=2).sequences, 3, by_shard=True)
    hashes = [document_hash(d) for d in documents]
    for site in sites:
        expected = {shard: torch.zeros(32, 32, dtype=torch.float64) for shard in (0, 1)}
        for batch in found:
            gradient = torch.zeros(())
            for sequence in batch.sequences:
                n = hashes.index(sequence.document)
                keep = torch.tensor([i not in (1, 2) for i in documents[n]])
                gradient = gradient + reference.factors[site][n][keep].T @ reference.rows[site][n][keep]
            expected[batch.sequences[0].shard] += gradient.T @ gradient
        shards = apart.shard_moments("weight_gradient", site)
        for shard, total in expected.items():
            assert relative(shards[shard].scatter, total) < 1e-5, (site, shard)


def test_the_batch_size_is_part_of_what_is_measured() -> None:
    first = capture(tiny_model("llama"), DOCUMENTS[:5], **OPTIONS)
    assert first.metadata["options"]["batch_size"] == 3
    other = capture(tiny_model("llama"), DOCUMENTS[5:], **{**OPTIONS, "batch_size": 2})
    with pytest.raises(MergeError, match="batch_size: 3 and 2"):
        first.merge(other)
    with pytest.raises(MergeError, match="unit: 'batch' and 'sequence'"):
        first.merge(capture(tiny_model("llama"), DOCUMENTS[5:], **{**OPTIONS, "unit": "sequence"}))
    again = capture(tiny_model("llama"), DOCUMENTS[5:], **OPTIONS)
    merged = first.merge(again)
    assert merged.n_units == first.n_units + again.n_units == merged.weight_gradients["embed.W_E"].count
    # For sequences it is no part of the question.
    assert capture(tiny_model("llama"), DOCUMENTS[:2], progress=False).metadata["options"]["batch_size"] is None


def test_results_say_batch() -> None:
    frame = tangent_energy(tiny_model("llama"), random_documents((20,) * 24), **OPTIONS, n_controls=0).frame
    assert set(frame["unit"]) == {"batch"}
    assert (frame["n_rows"] < frame["n_sequences"]).all()


def test_other_units_are_refused() -> None:
    with pytest.raises(TlAnisoError, match=r"unit 'token' is not supported.*'sequence'.*'batch'"):
        capture(tiny_model("llama"), DOCUMENTS, unit="token", progress=False)
