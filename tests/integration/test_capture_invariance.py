"""A document's numbers do not depend on what stands beside it; filters drop exactly the rows they name."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models import as_bridge, random_documents, tiny_model
from tl_aniso import Capture, capture, fit_tangent_proxies
from tl_aniso.errors import MergeError
from tl_aniso.text import document_hash, half_of

OPTIONS: dict[str, Any] = {"progress": False, "batch_size": 4, "extra_passes": "shuffled_labels"}
DOCUMENTS = random_documents()

pytestmark = pytest.mark.usefixtures("one_thread")


@cache
def model() -> Any:
    return tiny_model("llama")


@cache
def whole() -> Capture:
    return capture(model(), DOCUMENTS, **OPTIONS)


def sums(got: Capture) -> dict[str, Tensor]:
    """Every number of a capture, by name."""
    found: dict[str, Tensor] = {}
    groups = {
        "activations": got.activations,
        "activation_gradients": got.activation_gradients,
        "weight_gradients": got.weight_gradients,
        **{f"control {name}": moments for name, moments in got.controls.items()},
    }
    for name, variant in got.variants.items():
        groups[f"{name} activation_gradients"] = variant.activation_gradients
        groups[f"{name} weight_gradients"] = variant.weight_gradients
    for group, moments in groups.items():
        for site in moments:
            part = moments[site]
            found[f"{group} {site}"] = part.second_moment() * part.count
            if part.is_centred:
                found[f"{group} {site} mean"] = part.mean * part.count
            found[f"{group} {site} count"] = torch.tensor(float(part.count))
    return found


def assert_equal(got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert set(got) == set(expected)
    for name in expected:
        error = float((got[name] - expected[name]).norm() / expected[name].norm().clamp(min=1e-300))
        assert error <= tolerance, (name, error)


def added(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part[name] for part in parts if name in part) for name in names}  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["neox-parallel", "llama"])
@pytest.mark.parametrize("wrapper", ["huggingface", "bridge"])
def test_alone_in_a_batch_and_padded(kind: str, wrapper: str) -> None:
    this = as_bridge(tiny_model(kind)) if wrapper == "bridge" else tiny_model(kind)
    together = capture(this, DOCUMENTS, **{**OPTIONS, "batch_size": len(DOCUMENTS)})
    alone = [sums(capture(this, [document], **OPTIONS)) for document in DOCUMENTS]
    assert_equal(added(alone), sums(together), 1e-6)


def test_any_order_is_the_same_to_the_last_bit() -> None:
    generator = torch.Generator().manual_seed(1)
    order = torch.randperm(len(DOCUMENTS), generator=generator).tolist()
    assert_equal(sums(capture(model(), [DOCUMENTS[i] for i in order], **OPTIONS)), sums(whole()), 0)


def test_what_the_padding_holds_does_not_matter() -> None:
    width = max(map(len, DOCUMENTS))
    for fill in (0, 41):
        for left in (False, True):
            pads = [[fill] * (width - len(document)) for document in DOCUMENTS]
            rows = [(p + d) if left else (d + p) for p, d in zip(pads, DOCUMENTS, strict=True)]
            mask = [
                [0] * len(p) + [1] * len(d) if left else [1] * len(d) + [0] * len(p)
                for p, d in zip(pads, DOCUMENTS, strict=True)
            ]
            text = {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}
            assert_equal(sums(capture(model(), text, **OPTIONS)), sums(whole()), 0)


def test_counts_are_the_sum_of_the_mask() -> None:
    tokens = sum(map(len, DOCUMENTS))
    got = capture(model(), DOCUMENTS, exclude=(), **OPTIONS)
    assert {moments.count for moments in got.activations.values()} == {tokens}
    assert {moments.count for moments in got.activation_gradients.values()} == {tokens}
    assert {moments.count for moments in got.weight_gradients.values()} == {len(DOCUMENTS)}


def test_documents_longer_than_the_sequence_are_cut() -> None:
    got = capture(model(), DOCUMENTS, seq_len=16, exclude=(), **OPTIONS)
    pieces = [document[i : i + 16] for document in DOCUMENTS for i in range(0, len(document), 16)]
    kept = [piece for number, piece in enumerate(pieces) if len(piece) >= 8 or piece in DOCUMENTS or number == 0]
    apart = [sums(capture(model(), [piece], exclude=(), controls=(), progress=False)) for piece in kept]
    # Labels are permuted by document and piece, so that pass is left out of this comparison.
    expected = {name: value for name, value in sums(got).items() if not name.startswith(("shuffled", "control"))}
    assert_equal(added(apart), expected, 1e-6)


def test_merged_shards_equal_one_capture() -> None:
    parts = [capture(model(), DOCUMENTS[start::3], **OPTIONS) for start in range(3)]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    assert_equal(sums(merged), sums(whole()), 1e-6)
    assert merged.metadata["text"] == whole().metadata["text"]
    assert merged.loss == pytest.approx(whole().loss, rel=1e-6)
    for half in ("A", "B"):
        assert_equal(sums(merged.half(half)), sums(whole().half(half)), 1e-6)


def test_merged_parts_of_the_same_batches_equal_to_the_last_digits() -> None:
    options = {**OPTIONS, "batch_size": 1}
    parts = [capture(model(), [document], **options) for document in DOCUMENTS]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    assert_equal(sums(merged), sums(capture(model(), DOCUMENTS, **options)), 1e-12)


def test_merged_energies_equal_one_capture() -> None:
    options = {**OPTIONS, "proxies": fit_tangent_proxies(whole(), 4)}
    one = capture(model(), DOCUMENTS, **options)
    parts = [capture(model(), documents, **options) for documents in (DOCUMENTS[:4], DOCUMENTS[4:])]
    merged = parts[1].merge(parts[0])
    for site in ("embed.W_E", "blocks.1.attn.W_K", "blocks.0.mlp.W_out", "unembed.W_U"):
        for control in ("none", "input_energy", "sign_flip", "shuffled_g"):
            got, expected = (c.energies("weight_gradient", site, control=control) for c in (merged, one))
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6 * float(expected.max()))


def test_merging_refuses_what_does_not_belong_together() -> None:
    first = capture(model(), DOCUMENTS[:5], **OPTIONS)
    with pytest.raises(MergeError, match="both captures hold document"):
        first.merge(whole())
    others = {
        "seed": {"seed": 1},
        "exclude": {"exclude": ()},
        "n_shards": {"n_shards": 4},
        "extra_passes": {"extra_passes": ()},
    }
    for name, change in others.items():
        with pytest.raises(MergeError, match=name):
            first.merge(capture(model(), DOCUMENTS[5:], **{**OPTIONS, **change}))
    with pytest.raises(MergeError, match="weights"):
        first.merge(capture(tiny_model("llama", seed=1), DOCUMENTS[5:], **OPTIONS))
    with pytest.raises(MergeError, match="half"):
        first.merge(capture(model(), DOCUMENTS[5:], **OPTIONS).half("A"))
    with pytest.raises(MergeError, match="step"):
        first.merge(capture(model(), DOCUMENTS[5:], **OPTIONS).labelled(step=3))


def test_halves_are_the_documents_of_each_half() -> None:
    for half in ("A", "B"):
        documents = [document for document in DOCUMENTS if half_of(document_hash(document)) == half]
        assert len(documents) > 1
        alone = capture(model(), documents, **OPTIONS)
        assert alone.in_sample
        assert not whole().in_sample
        assert_equal(sums(whole().half(half)), sums(alone), 1e-6)
        assert whole().half(half).loss == pytest.approx(alone.loss, rel=1e-6)
    assert set(sums(whole().fitting_half())) == set(sums(whole().half("A")))


def test_shard_sums_add_up_to_the_pooled_ones() -> None:
    sites = ("blocks.0.attn.W_Q", "blocks.0.hook_resid_post", "embed.W_E")
    got = capture(model(), DOCUMENTS, shard_sites=sites, **{**OPTIONS, "batch_size": len(DOCUMENTS)})
    assert_equal(sums(got), sums(whole()), 1e-6)
    for control in ("none", "sign_flip"):
        shards = got.shard_moments("weight_gradient", sites[0], control=control)
        pooled = (got.weight_gradients if control == "none" else got.controls[control])[sites[0]]
        assert len(shards) > 2
        total = sum(moments.scatter for moments in shards.values())
        torch.testing.assert_close(total, pooled.scatter, rtol=1e-12, atol=0)
        assert sum(moments.count for moments in shards.values()) == len(DOCUMENTS)
    gradients = got.shard_moments("activation_gradient", sites[1])
    assert sum(moments.count for moments in gradients.values()) == got.activation_gradients[sites[1]].count
    assert got.shard_moments("weight_gradient", "blocks.0.attn.W_K") == {}


class TestFilters:
    """Documents with special ids (1 and 2 in the configuration) and a token whose embedding makes it a sink."""

    SINK = 60

    @staticmethod
    @cache
    def documents() -> list[list[int]]:
        found = [[1, *document] for document in DOCUMENTS]
        found[0][5] = 2
        for document in found[1:6]:
            document[min(4, len(document) - 1)] = TestFilters.SINK
        return found

    @staticmethod
    @cache
    def model() -> Any:
        changed = copy.deepcopy(model())
        with torch.no_grad():
            changed.model.embed_tokens.weight[TestFilters.SINK] *= 100
        return changed

    @staticmethod
    def rows(site: str) -> list[tuple[int, Tensor]]:
        from tests.reference.gradients import reference_gradients

        documents = TestFilters.documents()
        values = reference_gradients(TestFilters.model(), documents).residuals[site]
        return [(i, row) for ids, rows in zip(documents, values, strict=True) for i, row in zip(ids, rows, strict=True)]

    @pytest.mark.parametrize("filters", [(), ("special",), ("sink",), ("special", "sink")])
    def test_exactly_the_named_rows_go(self, filters: tuple[str, ...]) -> None:
        got = capture(self.model(), self.documents(), exclude=filters, progress=False)
        site = "blocks.0.hook_resid_pre"
        special = {1, 2} if "special" in filters else set()
        sink = {self.SINK} if "sink" in filters else set()
        rows = self.rows(site)
        kept = torch.stack([row for i, row in rows if i not in special | sink])
        moments = got.activations[site]
        assert moments.count == len(kept) == got.activation_gradients[site].count
        torch.testing.assert_close(moments.mean, kept.mean(0), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(moments.covariance(), torch.cov(kept.T), rtol=1e-5, atol=1e-5)
        assert got.excluded_share(site) == pytest.approx(1 - len(kept) / len(rows), abs=1e-12)
        everything = torch.stack([row for _, row in rows])
        expected = 1 - float(kept.square().sum() / everything.square().sum())
        assert got.excluded_energy_share(site) == pytest.approx(expected, abs=1e-6)

    def test_both_readings_differ_and_weight_gradients_do_not(self) -> None:
        filtered = capture(self.model(), self.documents(), progress=False)
        plain = capture(self.model(), self.documents(), exclude=(), progress=False)
        site = "blocks.0.hook_resid_pre"
        assert filtered.excluded_energy_share(site) > 0.9 > filtered.excluded_share(site) > 0
        assert plain.excluded_share(site) == 0
        assert float(plain.activations[site].covariance().trace()) > 10 * float(
            filtered.activations[site].covariance().trace()
        )
        for name, moments in filtered.weight_gradients.items():
            assert torch.equal(moments.scatter, plain.weight_gradients[name].scatter), name

    def test_padding_has_no_say_in_what_a_sink_is(self) -> None:
        changed = copy.deepcopy(self.model())
        with torch.no_grad():
            changed.model.embed_tokens.weight[0] *= 1000  # the id that pads
        options = {"exclude": "sink", "progress": False}
        alone = [capture(changed, [document], **options) for document in self.documents()]
        together = capture(changed, self.documents(), batch_size=len(DOCUMENTS), **options)
        for site, moments in together.activations.items():
            assert moments.count == sum(one.activations[site].count for one in alone), site
        assert together.excluded_share("blocks.0.hook_resid_pre") > 0

    @pytest.mark.parametrize("kind", ["neox-parallel", "neox-sequential"])
    def test_inputs_lose_the_sinks_they_read_and_outputs_those_they_write(self, kind: str) -> None:
        changed = tiny_model(kind)

        def push(_module: Any, _args: Any, output: Tensor) -> Tensor:
            return torch.cat([output[:, :1] * 1e4, output[:, 1:]], dim=1)

        changed.gpt_neox.layers[0].attention.dense.register_forward_hook(push)  # position 0 of every sequence
        got = capture(changed, DOCUMENTS[:4], exclude="sink", progress=False).activations
        tokens = sum(map(len, DOCUMENTS[:4]))
        parallel = kind == "neox-parallel"
        assert got["blocks.0.hook_resid_pre"].count == got["blocks.0.attn.input"].count == tokens
        assert got["blocks.0.mlp.input"].count == (tokens if parallel else tokens - 4)
        for site in ("blocks.0.attn.W_O.output", "blocks.0.mlp.W_out.output", "blocks.0.hook_resid_post"):
            assert got[site].count == tokens - 4, site

    def test_shares_follow_the_half(self) -> None:
        got = capture(self.model(), self.documents(), progress=False)
        site, shares = "blocks.0.hook_resid_pre", {}
        for half in ("A", "B"):
            documents = [d for d in self.documents() if half_of(document_hash(d)) == half]
            shares[half] = got.half(half).excluded_share(site)
            assert shares[half] == capture(self.model(), documents, progress=False).excluded_share(site)
        assert shares["A"] != shares["B"]

    def test_weight_gradients_without_special_tokens(self) -> None:
        from tests.reference.gradients import reference_gradients

        got = capture(self.model(), self.documents(), weight_exclude="special", progress=False)
        reference = reference_gradients(self.model(), self.documents())
        for site, moments in got.weight_gradients.items():
            expected = torch.zeros(32, 32, dtype=torch.float64)
            for ids, rows, factor in zip(self.documents(), reference.rows[site], reference.factors[site], strict=True):
                keep = torch.tensor([i not in (1, 2) for i in ids])
                gradient = factor[keep].T @ rows[keep]
                expected += gradient.T @ gradient
            error = float((moments.scatter - expected).norm() / expected.norm())
            assert error < 1e-5, (site, error)
