"""Captures of masked text: the same whatever stands beside, row filters, records of them, and clear refusals."""

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.encoder_models import MASK, save_as_on_hub, tiny_encoder
from tests.integration.test_capture_invariance import added, assert_equal, sums
from tests.masked_models import DOCUMENTS, SPECIAL, encoder, masked_by_hand
from tests.models import tiny_model
from tl_aniso import Capture, MaskedLM, TlAnisoError, capture
from tl_aniso.capturing import run
from tl_aniso.errors import MergeError, TextError
from tl_aniso.text import document_hash, half_of

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS: dict[str, Any] = {"progress": False, "batch_size": 4, "extra_passes": ("shuffled_labels", "permuted_tokens")}


@cache
def whole() -> Capture:
    return capture(encoder(), DOCUMENTS, **OPTIONS)


def kinds() -> list[list[str]]:
    """Kind of every position of every document."""
    _, labels = masked_by_hand(DOCUMENTS)
    return [
        ["special" if i in SPECIAL else "unmasked" if t == -100 else "masked" for i, t in zip(ids, label, strict=True)]
        for ids, label in zip(DOCUMENTS, labels, strict=True)
    ]


# -- what stands beside a document ---------------------------------------------------------------------------------


def test_alone_in_a_batch_and_padded() -> None:
    alone = [sums(capture(encoder(), [document], **OPTIONS)) for document in DOCUMENTS]
    for size in (1, 4, len(DOCUMENTS)):
        together = capture(encoder(), DOCUMENTS, **{**OPTIONS, "batch_size": size})
        assert together.loss == pytest.approx(whole().loss, rel=1e-6)
        assert_equal(added(alone), sums(together), 1e-5)


def test_any_order_and_any_padding_are_the_same_to_the_last_bit() -> None:
    order = torch.randperm(len(DOCUMENTS), generator=torch.Generator().manual_seed(1)).tolist()
    assert_equal(sums(capture(encoder(), [DOCUMENTS[i] for i in order], **OPTIONS)), sums(whole()), 0)
    width = max(map(len, DOCUMENTS))
    for left in (False, True):
        pads = [[41] * (width - len(document)) for document in DOCUMENTS]
        rows = [(p + d) if left else (d + p) for p, d in zip(pads, DOCUMENTS, strict=True)]
        lengths = [(len(p), len(d)) for p, d in zip(pads, DOCUMENTS, strict=True)]
        mask = [[0] * p + [1] * d if left else [1] * d + [0] * p for p, d in lengths]
        text = {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}
        assert_equal(sums(capture(encoder(), text, **OPTIONS)), sums(whole()), 0)


def test_masks_are_the_same_at_every_checkpoint_and_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[str, list[dict[str, tuple[list[int], list[int]]]]] = {}
    original = run.feed
    for name, model in (("early", encoder(0)), ("late", encoder(1))):
        for size in (1, 3, 10):
            seen: dict[str, tuple[list[int], list[int]]] = {}

            def spy(batch: Any, *args: Any, into: Any = seen) -> Any:
                fed = original(batch, *args)
                for row, piece in enumerate(batch.sequences):
                    n = len(piece)
                    into[piece.document] = fed.ids[row, :n].tolist(), fed.masked[row, :n].tolist()
                    assert not fed.masked[row, n:].any()
                    assert torch.equal(fed.targets.ids[row, :n], torch.tensor(piece.ids))
                return fed

            monkeypatch.setattr(run, "feed", spy)
            capture(model, DOCUMENTS, gradients=(), progress=False, batch_size=size)
            read.setdefault(name, []).append(seen)
    fed, labels = masked_by_hand(DOCUMENTS)
    expected = {
        document_hash(ids): (f, [t != -100 for t in label])
        for ids, f, label in zip(DOCUMENTS, fed, labels, strict=True)
    }
    assert all(seen == expected for found in read.values() for seen in found)


def test_pieces_of_a_document_are_masked_apart() -> None:
    got = capture(encoder(), DOCUMENTS, seq_len=16, exclude=("special", "masked"), progress=False)
    pieces = [document[i : i + 16] for document in DOCUMENTS for i in range(0, len(document), 16)]
    kept = [p for p in pieces if len(p) >= 8 or p in DOCUMENTS]
    positions = got.metadata["text"]["positions"]
    assert sum(sum(counts.values()) for counts in positions.values()) == sum(map(len, kept))
    assert sum(counts["masked"] for counts in positions.values()) >= len(kept)


# -- rows by kind --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "exclude",
    [(), ("special",), ("masked",), ("unmasked",), ("special", "masked"), ("special", "unmasked")],
)
def test_filters_leave_the_rows_that_were_counted_by_hand(exclude: tuple[str, ...]) -> None:
    got = capture(encoder(), DOCUMENTS, exclude=exclude, keep_rows=1000, progress=False)
    assert got.metadata["options"]["exclude"] == list(exclude)
    by_half = {half: {"masked": 0, "unmasked": 0, "special": 0} for half in "AB"}
    for ids, names in zip(DOCUMENTS, kinds(), strict=True):
        for name in names:
            by_half[half_of(document_hash(ids))][name] += 1
    assert got.metadata["text"]["positions"] == by_half
    for half in ("A", "B"):
        part = got.half(half)
        n = sum(count for kind, count in by_half[half].items() if kind not in exclude)
        for moments in (part.activations, part.activation_gradients):
            assert {site: moments[site].count for site in moments} == dict.fromkeys(moments, n)
        for site in part.rows:
            assert len(part.rows[site]) == n
            assert relative(part.rows[site].double().mean(0), part.activations[site].mean) < 1e-5
    total = sum(map(len, DOCUMENTS))
    gone = sum(by_half[half][kind] for half in "AB" for kind in exclude)
    assert got.excluded_share("blocks.1.hook_resid_pre") == pytest.approx(gone / total)


def test_filters_take_apart_what_no_filter_holds() -> None:
    every, masked, unmasked, special = (
        capture(encoder(), DOCUMENTS, exclude=exclude, progress=False)
        for exclude in ((), ("special", "unmasked"), ("special", "masked"), ("masked", "special"))
    )
    fed, _ = masked_by_hand(DOCUMENTS)
    site = "blocks.0.hook_resid_pre"
    table = encoder().get_input_embeddings().weight.detach().double()
    for got, kind in ((masked, "masked"), (unmasked, "unmasked")):
        read = [
            i
            for ids, names in zip(fed, kinds(), strict=True)
            for i, name in zip(ids, names, strict=True)
            if name == kind
        ]
        # Rows go by kind of position and not by the token that stands there: a masked position may hold any token.
        assert relative(got.activations[site].mean, table[read].mean(0)) < 1e-6
    assert every.activations[site].count > masked.activations[site].count + unmasked.activations[site].count
    assert special.metadata["options"]["exclude"] == ["special", "masked"]


def relative(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm().clamp_min(1e-12))


def test_sinks_are_judged_beside_the_other_filters() -> None:
    model = copy.deepcopy(encoder())
    with torch.no_grad():
        model.get_input_embeddings().weight[MASK] *= 200
    got = capture(model, DOCUMENTS, exclude=("sink", "unmasked"), progress=False)
    fed, _ = masked_by_hand(DOCUMENTS)
    left = sum(
        name != "unmasked" and i != MASK
        for ids, names in zip(fed, kinds(), strict=True)
        for i, name in zip(ids, names, strict=True)
    )
    assert got.activations["blocks.0.hook_resid_pre"].count == left


def test_permuted_tokens_are_masked_at_the_same_places() -> None:
    got = whole().variants["permuted_tokens"].activations
    only = capture(encoder(), DOCUMENTS, **{**OPTIONS, "exclude": ("special", "sink", "unmasked")})
    permuted = only.variants["permuted_tokens"].activations
    for site in ("blocks.0.hook_resid_pre", "blocks.2.mlp.input"):
        assert got[site].count == whole().activations[site].count
        assert permuted[site].count == only.activations[site].count < got[site].count
        assert relative(got[site].mean, whole().activations[site].mean) > 1e-4


# -- files and merging ---------------------------------------------------------------------------------------------


def test_saved_loaded_and_merged(tmp_path: Any) -> None:
    parts = [capture(encoder(), part, **OPTIONS) for part in (DOCUMENTS[:4], DOCUMENTS[4:])]
    first, second = (Capture.load(part.save(tmp_path / str(number))) for number, part in enumerate(parts))
    assert first.metadata == parts[0].metadata
    merged = first.merge(second)
    assert merged.metadata == whole().metadata
    assert merged.metadata["options"]["masking"] == {
        "rate": 0.3,
        "replacement": "bert",
        "mask_token_id": MASK,
        "n_tokens": 97,
    }
    assert_equal(sums(merged), sums(whole()), 1e-5)
    assert merged.loss == pytest.approx(whole().loss, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"objective": MaskedLM(0.2)}, r"objective: 'masked' and 'masked\(rate=0\.2, replacement=bert\)'"),
        ({"objective": MaskedLM(mask_token_id=50)}, "masking: "),
        ({"seed": 1}, "seed: 0 and 1"),
        ({"exclude": ("special", "sink", "masked")}, "exclude: "),
    ],
)
def test_other_masks_do_not_merge(changes: dict[str, Any], named: str) -> None:
    options = {**OPTIONS, "extra_passes": (), "sites": "*.hook_resid_pre"}
    first = capture(encoder(), DOCUMENTS[:4], **options)
    with pytest.raises(MergeError, match=named):
        first.merge(capture(encoder(), DOCUMENTS[4:], **{**options, **changes}))


# -- objectives that do not fit, and mask tokens that are not known ------------------------------------------------


def test_none_is_what_the_model_was_made_for() -> None:
    for model, name in ((encoder(), "masked"), (tiny_model("llama"), "causal")):
        found = [capture(model, DOCUMENTS, objective=o, gradients=(), progress=False) for o in (None, name)]
        assert found[0].metadata == found[1].metadata
        assert found[0].metadata["options"]["objective"] == name
        assert (found[0].metadata["options"]["masking"] is None) == (name == "causal")
    assert capture(encoder(), DOCUMENTS, objective=MaskedLM(), progress=False).metadata["options"] == {
        **capture(encoder(), DOCUMENTS, progress=False).metadata["options"]
    }


def test_objectives_of_the_other_kind() -> None:
    with pytest.raises(TlAnisoError, match=r"'causal' on EuroBertForMaskedLM.*both sides.*leave objective out"):
        capture(encoder(), DOCUMENTS, objective="causal", progress=False)
    for objective in ("masked", MaskedLM()):
        with pytest.raises(TlAnisoError, match=r"'masked' on LlamaForCausalLM.*before them alone.*leave objective out"):
            capture(tiny_model("llama"), DOCUMENTS, objective=objective, progress=False)

    def masked(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        return logits[..., 0]

    with pytest.raises(TlAnisoError, match="cannot be named 'masked'"):
        capture(encoder(), DOCUMENTS, objective=masked, progress=False)
    with pytest.raises(TlAnisoError, match=r"'mlm' is not supported; use 'causal'.*'masked' or MaskedLM"):
        capture(encoder(), DOCUMENTS, objective="mlm", progress=False)


def test_filters_that_need_masks() -> None:
    for argument in ("exclude", "weight_exclude"):
        with pytest.raises(TlAnisoError, match=f"^{argument} holds both masked and unmasked"):
            capture(encoder(), DOCUMENTS, progress=False, **{argument: ("masked", "unmasked")})
        for model, objective in ((tiny_model("llama"), None), (encoder(), lambda logits, ids, mask: logits[..., 0])):
            with pytest.raises(TlAnisoError, match=rf"^{argument} holds unmasked, but the objective .* masks nothing"):
                capture(model, DOCUMENTS, objective=objective, progress=False, **{argument: "unmasked"})
    with pytest.raises(TlAnisoError, match="weight_exclude holds sink; known are special, masked, unmasked"):
        capture(encoder(), DOCUMENTS, progress=False, weight_exclude="sink")


class Tokenizer:
    """As little of a tokenizer as ids need."""

    name_or_path = "small"

    def __init__(self, mask: int | None, special: tuple[int, ...], size: int = 97) -> None:
        self.mask_token_id, self.all_special_ids, self._size = mask, list(special), size

    def __len__(self) -> int:
        return self._size


def nameless() -> Any:
    """An encoder whose config names no mask token."""
    model = tiny_encoder("EuroBert")
    vars(model.config)["mask_token_id"] = None  # which its class checks, and those of other encoders do not have
    return model


def test_the_mask_token_is_named_by_the_objective_the_tokenizer_or_the_config() -> None:
    def found(model: Any, **options: Any) -> tuple[int, int, list[int]]:
        got = capture(model, DOCUMENTS, gradients=(), sites="*.hook_resid_pre", progress=False, **options).metadata
        masking = got["options"]["masking"]
        return masking["mask_token_id"], masking["n_tokens"], got["options"]["special"]

    assert found(encoder()) == (MASK, 97, [0, 1, 2, 3])
    assert found(encoder(), tokenizer=Tokenizer(9, (1, 2, 9))) == (9, 97, [1, 2, 9])
    # Tables are padded beyond the tokens there are; the tokenizer knows how many that is.
    assert found(encoder(), tokenizer=Tokenizer(9, (1, 2, 9), 60)) == (9, 60, [1, 2, 9])
    assert found(nameless(), tokenizer=Tokenizer(9, (1, 2, 9), 200)) == (9, 97, [1, 2, 9])
    assert found(nameless(), objective=MaskedLM(mask_token_id=8)) == (8, 97, [0, 1, 2, 8])
    assert found(encoder(), tokenizer=Tokenizer(9, (1, 2, 9)), objective=MaskedLM(mask_token_id=8))[0] == 8
    assert found(encoder(), tokenizer=Tokenizer(None, (1, 2))) == (MASK, 97, [1, 2, 3])


def test_no_mask_token() -> None:
    with pytest.raises(TextError, match=r"came as ids, without a tokenizer.*pass tokenizer=.*MaskedLM\(mask_token"):
        capture(nameless(), DOCUMENTS, progress=False)
    with pytest.raises(
        TextError, match=r"tokenizer small has no mask token.*config of this EuroBertForM\w+ names none"
    ):
        capture(nameless(), DOCUMENTS, progress=False, tokenizer=Tokenizer(None, (1, 2)))
    with pytest.raises(TextError, match="mask token 97 is outside the vocabulary of 97 ids"):
        capture(encoder(), DOCUMENTS, progress=False, objective=MaskedLM(mask_token_id=97))
    # A callable masks nothing and needs none.
    capture(nameless(), DOCUMENTS[:2], progress=False, objective=lambda logits, ids, mask: logits[..., 7])


def test_sequences_of_special_tokens_alone_are_dropped_and_counted() -> None:
    empty = [1, 3, 3, 0, 2]
    got = capture(encoder(), [*DOCUMENTS, empty], **OPTIONS)
    assert got.metadata["text"]["dropped"] == {"no_maskable_token": 1}
    assert document_hash(empty) not in got.metadata["text"]["documents"]
    assert got.metadata["text"]["n_tokens"] == sum(map(len, DOCUMENTS))
    assert_equal(sums(got), sums(whole()), 0)
    with pytest.raises(TextError, match="all 1 sequences are made of special tokens alone"):
        capture(encoder(), [empty], progress=False)


def test_one_token_is_enough() -> None:
    got = capture(encoder(), [[1, 40, 2]], exclude=(), progress=False)
    assert got.metadata["text"]["positions"][half_of(document_hash([1, 40, 2]))] == {
        "masked": 1,
        "unmasked": 0,
        "special": 2,
    }
    assert np.isfinite(got.loss)


def test_strings_by_the_encoders_own_tokenizer(tmp_path: Any) -> None:
    from transformers import AutoTokenizer

    model = tiny_encoder("EuroBert")
    save_as_on_hub(model, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = ["the crow saw a river of glass and the stone", "a stone of glass saw the crow and a river"]
    got = capture(model, text, tokenizer=tokenizer, progress=False)
    assert got.metadata["options"]["masking"] == {
        "rate": 0.3,
        "replacement": "bert",
        "mask_token_id": tokenizer.mask_token_id,
        "n_tokens": len(tokenizer),
    }
    assert sum(c["special"] for c in got.metadata["text"]["positions"].values()) == 4
    assert got.metadata["options"]["special"] == sorted(tokenizer.all_special_ids)
