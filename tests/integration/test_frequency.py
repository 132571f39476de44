"""Type captures of tiny models against the tokens themselves: counts, tables, moments, samples, merging and files."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch

from tests.encoder_models import MASK, tiny_encoder
from tests.models import as_bridge, random_documents, tiny_model
from tl_aniso import frequency_variance
from tl_aniso.capturing.token_rows import token_rows
from tl_aniso.cli import main
from tl_aniso.errors import MergeError, SiteError, TextError, TlAnisoError, UndefinedMeasureError
from tl_aniso.frequency import TypeCapture, type_capture
from tl_aniso.training import train_tokenizer

N_MIN = 4
SITES = ("blocks.0.hook_resid_post", "blocks.1.hook_resid_post")
OPTIONS = {"progress": False, "n_min": N_MIN, "sites": SITES}


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama")


@pytest.fixture(scope="module")
def documents():
    return random_documents((40, 31, 28, 50, 23, 61, 35, 12))


@pytest.fixture(scope="module")
def held(model, documents):
    return type_capture(model, documents, **OPTIONS)


def rows_by_type(model, documents, site, **options):
    found: dict[int, list[torch.Tensor]] = {}
    for rows in token_rows(model, documents, sites=site, progress=False, **options):
        keep = rows.kept[site]
        for kind, row in zip(rows.ids[keep].tolist(), rows.activations[site][keep], strict=True):
            found.setdefault(kind, []).append(row.double())
    return {kind: torch.stack(rows) for kind, rows in found.items()}


def test_counts_tables_and_moments_are_those_of_the_tokens(model, documents, held):
    flat = [i for ids in documents for i in ids]
    assert held.counts.tolist() == np.bincount(flat, minlength=held.n_types).tolist()
    assert torch.equal(held.tables["embed.W_E"], model.get_input_embeddings().weight)
    assert torch.equal(held.tables["unembed.W_U"], model.get_output_embeddings().weight)
    assert not held.tied
    for site in SITES:
        moments = held.rows[site].all
        expected = rows_by_type(model, documents, site)
        assert {i for i, n in enumerate(moments.count.tolist()) if n} == set(expected)
        for kind, rows in expected.items():
            assert torch.allclose(moments.means([kind])[0], rows.mean(0), atol=1e-5)
            assert float(moments.squares[kind]) == pytest.approx(float((rows - rows.mean(0)).square().sum()), rel=1e-5)
        assert held.rows[site].pooled.count == sum(len(rows) for rows in expected.values())


def test_the_sample_has_equally_many_of_every_frequent_type(held):
    for site in SITES:
        counts, matched = held.rows[site].all.count, held.rows[site].matched.count
        free = held.counts >= N_MIN
        assert int(matched.max()) == N_MIN
        assert bool((matched[~free] == 0).all())
        assert bool((matched <= counts).all())
        # Only rows that turned out sinks may be missing.
        assert float((matched[free] == N_MIN).float().mean()) > 0.9


def test_batches_and_order_change_nothing_and_the_seed_draws_another_sample(model, documents, held):
    other = type_capture(model, documents[::-1], batch_size=3, **OPTIONS)
    drawn = type_capture(model, documents, seed=1, **OPTIONS)
    for site in SITES:
        mine, theirs = held.rows[site], other.rows[site]
        assert torch.equal(mine.matched.count, theirs.matched.count)
        assert torch.allclose(mine.matched.squares, theirs.matched.squares, rtol=1e-4, atol=1e-6)
        assert torch.allclose(mine.all.squares, theirs.all.squares, rtol=1e-4, atol=1e-6)
        assert not torch.allclose(drawn.rows[site].matched.squares, mine.matched.squares, rtol=1e-3)
        assert torch.allclose(drawn.rows[site].all.squares, mine.all.squares)


def test_merging_is_one_pass_over_both_and_in_any_order(model, documents, held):
    parts = [type_capture(model, some, **OPTIONS) for some in (documents[:3], documents[3:6], documents[6:])]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    turned = parts[2].merge(parts[1].merge(parts[0]))
    assert torch.equal(merged.counts, held.counts)
    for site in SITES:
        assert torch.allclose(merged.rows[site].all.squares, held.rows[site].all.squares, rtol=1e-5, atol=1e-7)
        assert torch.equal(merged.rows[site].matched.count, turned.rows[site].matched.count)
        assert torch.allclose(merged.rows[site].matched.squares, turned.rows[site].matched.squares, rtol=1e-12)
        assert int(merged.rows[site].matched.count.max()) == N_MIN  # a merge does not make it grow
    with pytest.raises(MergeError, match="both captures hold document"):
        merged.merge(parts[1])
    with pytest.raises(MergeError, match="weights"):
        parts[0].merge(type_capture(tiny_model("llama", seed=1), documents[3:], **OPTIONS))
    with pytest.raises(MergeError, match="n_min"):
        parts[0].merge(type_capture(model, documents[3:], **{**OPTIONS, "n_min": 3}))


def test_files_hold_all_of_it(held, tmp_path):
    again = TypeCapture.load(held.save(tmp_path / "types"))
    assert again.metadata == held.metadata
    one, other = (frequency_variance(one, n_min=N_MIN, n_controls=19) for one in (held, again))
    assert one.frame.equals(other.frame)
    assert one.types.equals(other.types)
    with pytest.raises(TlAnisoError, match="not overwritten"):
        held.save(tmp_path / "types")
    path = tmp_path / "types" / "types.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(TlAnisoError, match="damaged"):
        TypeCapture.load(tmp_path / "types")
    with pytest.raises(TlAnisoError, match="no type capture"):
        TypeCapture.load(tmp_path / "nowhere")


def test_a_model_is_measured_and_left_alone(model, documents, held):
    before = copy.deepcopy(model.state_dict())
    found = frequency_variance(model, documents, n_controls=19, **OPTIONS)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert set(found.frame["scope"]) == {"within"}
    assert set(found.frame["control"]) == {"none", "shuffled_frequencies", "size_matched", "gaussian_surrogate"}
    types = found.types.set_index(["site", "id"])
    kind = int(held.counts.argmax())
    rows = rows_by_type(model, documents, SITES[1])[kind]
    expected = float(rows.var(0, correction=1).sum().sqrt())
    assert types.loc[(SITES[1], kind), "distance_raw"] == pytest.approx(expected, rel=1e-5)
    assert types.loc[(SITES[1], kind), "norm"] == pytest.approx(float(rows.square().sum(1).mean().sqrt()), rel=1e-5)
    assert "one checkpoint" in found.summary()
    assert "frequency" not in found._repr_html_()


def test_checkpoints_are_measured_over_and_within(model, documents):
    held = []
    for step in range(3):
        moved = tiny_model("llama", seed=step)
        held.append(type_capture(moved, documents, **OPTIONS).labelled(step=step))
    found = frequency_variance(held, n_min=N_MIN, n_controls=19)
    frame = found.frame
    over = frame[frame["scope"] == "over_checkpoints"]
    assert set(over["site"]) == {"embed.W_E", "unembed.W_U", *SITES}
    assert set(over.loc[over["site"] == SITES[0], "control"]) == {
        "none",
        "shuffled_frequencies",
        "size_matched",
        "gaussian_surrogate",
    }
    assert set(frame.loc[frame["scope"] == "within", "step"]) == {0.0, 1.0, 2.0}
    with pytest.raises(MergeError, match="documents"):
        frequency_variance([held[0], type_capture(model, documents[1:], **OPTIONS)])


def test_tied_tables_are_told_apart(documents):
    held = type_capture(tiny_model("llama-tied"), documents, **OPTIONS)
    assert held.tied
    assert list(held.tables) == ["embed.W_E"]


def test_a_bridge_gives_what_its_model_gives(model, documents, held):
    other = type_capture(as_bridge(model), documents, **OPTIONS)
    assert torch.equal(other.tables["unembed.W_U"], held.tables["unembed.W_U"])
    assert torch.allclose(other.rows[SITES[1]].all.squares, held.rows[SITES[1]].all.squares, rtol=1e-4, atol=1e-6)


def test_masked_tokens_of_an_encoder_are_left_out(documents):
    encoder = tiny_encoder("EuroBert")
    held = type_capture(encoder, [[i + 3 for i in ids] for ids in documents], **OPTIONS)
    assert held.metadata["options"]["exclude"] == ["special", "sink", "masked"]
    rows = held.rows[SITES[0]]
    assert 0 < int(rows.all.count.sum()) < 0.85 * int(held.counts.sum())
    assert int(rows.all.count[MASK]) == 0
    # Drawn among the tokens that are not masked, so that the sample is whole all the same.
    enough = rows.all.count >= N_MIN
    assert float((rows.matched.count[enough] == N_MIN).float().mean()) > 0.9


def test_what_cannot_be_used_is_named(model, documents):
    with pytest.raises(SiteError, match="no_such"):
        type_capture(model, documents, sites="no_such", progress=False)
    with pytest.raises(TextError, match="needs text"):
        frequency_variance(model)
    with pytest.raises(TlAnisoError, match="n_min"):
        type_capture(model, documents, n_min=1, progress=False)
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises((UndefinedMeasureError, TlAnisoError), match="down_proj"):
        type_capture(broken, documents, progress=False)


def test_the_command_writes_tables(tmp_path, capsys):
    texts = ["the crow saw a river of glass and the stone saw the crow again and again"] * 3
    texts = [f"{text} {number} times" for number, text in enumerate(texts)]
    tokenizer = train_tokenizer(texts, 270)
    place, text = tmp_path / "model", tmp_path / "words.txt"
    tiny_model("llama", vocab_size=len(tokenizer)).save_pretrained(place)
    tokenizer.save_pretrained(place)
    text.write_text("\n\n".join(texts), encoding="utf-8")
    arguments = ["frequency", str(place), "--text", str(text), "--n-min", "3"]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    assert {"results.csv", "types.csv"} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert "within" in capsys.readouterr().out
    types = pd.read_csv(tmp_path / "out" / "types.csv", keep_default_na=False)
    assert len(types)
    assert (types["token"] != "").all()
    assert main([*arguments, "--sites", "nowhere", "--out", str(tmp_path / "other")]) == 2
    assert main([*arguments, "--sites", "unembed.W_U", "--out", str(tmp_path / "other")]) == 2
    assert main(["frequency", str(place), "--text", str(tmp_path / "none.txt"), "--out", str(tmp_path / "other")]) == 2
    assert not (tmp_path / "other").exists()
