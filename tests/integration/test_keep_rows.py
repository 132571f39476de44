"""keep_rows: real rows of each activation site, at places that depend on the text alone."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.models import random_documents, tiny_model
from tests.reference.gradients import reference_gradients
from tl_aniso import Capture, TlAnisoError, capture
from tl_aniso.capturing.kept_rows import RowsKey
from tl_aniso.errors import MergeError, SiteError
from tl_aniso.text import document_hash, half_of

pytestmark = pytest.mark.usefixtures("one_thread")

DOCUMENTS = random_documents()
OPTIONS: dict[str, Any] = {"progress": False, "exclude": (), "gradients": (), "keep_rows": 12}
SITE = "blocks.0.hook_resid_post"


@cache
def whole() -> Capture:
    return capture(tiny_model("llama"), DOCUMENTS, **OPTIONS)


def keys(got: Capture, site: str = "blocks.1.hook_resid_pre") -> list[Any]:
    return [got._sums.rows[RowsKey(site, half)].keys.tolist() for half in ("A", "B")]


def sorted_rows(rows: Tensor) -> Tensor:
    return rows[np.lexsort(rows.numpy().round(3).T)]


def test_with_room_for_all_they_are_all_rows() -> None:
    model, tokens = tiny_model("llama"), sum(map(len, DOCUMENTS))
    got = capture(model, DOCUMENTS, **{**OPTIONS, "keep_rows": tokens})
    reference = reference_gradients(model, DOCUMENTS)
    assert set(got.rows) == set(got.activations)
    for site, values in reference.residuals.items():
        rows = got.rows[site]
        assert (rows.shape, rows.dtype) == ((tokens, 32), torch.float32)
        torch.testing.assert_close(sorted_rows(rows).double(), sorted_rows(torch.cat(values)), rtol=1e-4, atol=1e-4)
    for half in ("A", "B"):
        n = sum(len(d) for d in DOCUMENTS if half_of(document_hash(d)) == half)
        assert got.half(half).rows[SITE].shape == (n, 32)
    # Inputs and outputs of matrices come row by row too, and all sites at the same places.
    for site in ("blocks.0.attn.input", "blocks.1.mlp.W_out.output", "unembed.input"):
        assert keys(got, site) == keys(got)
        torch.testing.assert_close(got.rows[site].double().mean(0), got.activations[site].mean, rtol=1e-4, atol=1e-5)


def test_the_same_places_at_every_checkpoint_and_batch_size() -> None:
    for model, size in ((tiny_model("llama"), 1), (tiny_model("llama", seed=3), 4)):
        got = capture(model, DOCUMENTS[::-1], **OPTIONS, batch_size=size)
        assert keys(got) == keys(whole())
        assert got.rows[SITE].shape == (12, 32)
        close = torch.allclose(got.rows[SITE], whole().rows[SITE], rtol=1e-4, atol=1e-5)
        assert close == (size == 1)
    other = capture(tiny_model("llama"), DOCUMENTS, **{**OPTIONS, "seed": 1})
    assert keys(other) != keys(whole())


def test_pieces_of_a_document_are_other_places() -> None:
    got = capture(tiny_model("llama"), DOCUMENTS, **{**OPTIONS, "seq_len": 10, "keep_rows": 10_000})
    assert len({key for half in keys(got) for key in half}) == got.activations[SITE].count


def test_merged_captures_keep_what_one_would() -> None:
    parts = [capture(tiny_model("llama"), DOCUMENTS[start::3], **OPTIONS) for start in range(3)]
    merged = parts[2].merge(parts[0]).merge(parts[1])
    assert keys(merged) == keys(whole())
    assert set(merged.rows) == set(whole().rows)
    for site in whole().rows:
        torch.testing.assert_close(merged.rows[site], whole().rows[site], rtol=1e-4, atol=1e-5)
    with pytest.raises(MergeError, match="keep_rows: 12 and 5"):
        parts[0].merge(capture(tiny_model("llama"), DOCUMENTS[1::3], **{**OPTIONS, "keep_rows": 5}))


def test_they_are_saved_and_loaded(tmp_path: Any) -> None:
    loaded = Capture.load(whole().save(tmp_path / "a"))
    assert keys(loaded) == keys(whole())
    for site in whole().rows:
        assert torch.equal(loaded.rows[site], whole().rows[site])


def test_filtered_rows_are_not_among_them() -> None:
    documents = [[1, *document] for document in DOCUMENTS]
    options = {**OPTIONS, "keep_rows": 10_000, "exclude": "special", "sites": SITE}
    rows = capture(tiny_model("llama"), documents, **options).rows[SITE]
    assert len(rows) == sum(map(len, DOCUMENTS))
    special = reference_gradients(tiny_model("llama"), documents).residuals[SITE][0][0].float()
    assert float((rows - special).norm(dim=1).min()) > 1e-2


def test_sums_are_the_same_with_and_without() -> None:
    options = {"progress": False, "gradients": ()}
    plain, got = (capture(tiny_model("llama"), [[1, *d] for d in DOCUMENTS], **options, keep_rows=n) for n in (0, 50))
    for site, moments in plain.activations.items():
        assert torch.equal(got.activations[site].scatter, moments.scatter)


def test_what_was_not_kept_is_named() -> None:
    with pytest.raises(SiteError, match=r"kept no rows of 'blocks\.0\.attn\.W_Q'; capture with keep_rows=n"):
        whole().rows["blocks.0.attn.W_Q"]
    assert not capture(tiny_model("llama"), DOCUMENTS[:2], progress=False).rows
    assert SITE in whole().rows
    with pytest.raises(TlAnisoError, match="keep fewer rows"):
        capture(tiny_model("llama"), DOCUMENTS, **{**OPTIONS, "keep_rows": 10_000, "max_bytes": 5_000_000})
