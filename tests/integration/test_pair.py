"""The pair, small, end to end: same text and tokens, own planes, differences, tables, page and command."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
import torch

from tl_aniso.capturing import capture
from tl_aniso.capturing.masked_lm import MaskedLM
from tl_aniso.cli import main
from tl_aniso.errors import TlAnisoError
from tl_aniso.pair import PairText, run_pair
from tl_aniso.pair.compare import WINDOWS, compare
from tl_aniso.pair.progress import Match
from tl_aniso.pair.reading import read_pair
from tl_aniso.pair.run import CONTROLS
from tl_aniso.pair.tables import c5_frame, learning_frame
from tl_aniso.pair.verdict import judge
from tl_aniso.questions import tangent_energy
from tl_aniso.subspace import fit_tangent_proxies
from tl_aniso.text import document_hash, half_of
from tl_aniso.training import PairRecipe, measured_documents, pack_windows, train_model, train_tokenizer
from tl_aniso.training.pair import build_pair

RECIPE = PairRecipe(
    d_model=16,
    n_layers=1,
    n_heads=2,
    d_mlp=32,
    vocab_size=300,
    context=16,
    batch_size=8,
    n_steps=20,
    warmup=2,
    learning_rate=2e-2,
    measured=(0.0, 0.05, 0.2, 0.5, 1.0),
)


@pytest.fixture(scope="module")
def text():
    # Sentences that are almost all alike, so that a few steps learn something.
    texts = [f"the {i % 4} of {i} is the {i % 4} of {i} and the {i % 4} of {i} is {i}" for i in range(400)]
    tokenizer = train_tokenizer(texts, 300, mask=True)
    documents = measured_documents(texts[300:], tokenizer, length=16, per_half=14)
    windows = [pack_windows(part, tokenizer, 16) for part in (texts[:300], texts[300:])]
    return PairText(windows[0], windows[1][:40], documents, tokenizer)


@pytest.fixture(scope="module")
def result(text):
    return run_pair(seeds=(0, 1), recipe=RECIPE, text=text)


def test_both_are_measured_alike(result):
    frame = result.frame
    assert set(zip(frame["architecture"], frame["family"], frame["objective"], strict=True)) == {
        ("decoder", "llama", "causal"),
        ("encoder", "eurobert", "masked"),
    }
    assert [(run.seed, run.kind) for run in result.runs] == [(s, k) for s in (0, 1) for k in ("decoder", "encoder")]
    for run in result.runs:
        assert tuple(run.held) == RECIPE.default_checkpoints()
        assert len(run.losses) == 20
    sizes = frame.groupby("architecture")[["n_documents", "n_sequences", "rank"]].agg(["min", "max"])
    assert sizes.loc["decoder"].tolist() == sizes.loc["encoder"].tolist()
    assert frame["held_out"].all()
    assert (frame.groupby("architecture")["tokens_seen"].max() == 20 * 8 * 16).all()
    # Equal weights at step 0, and other losses: the objectives differ.
    assert result.runs[0].held[0] != result.runs[1].held[0]


def test_the_differences_are_of_the_frames(result):
    whole = result.differences
    assert set(whole["control"]) == {"none", *CONTROLS}
    row = whole[
        (whole["seed"] == 1)
        & (whole["decoder_step"] == 20)
        & (whole["group"] == "readers")
        & (whole["control"] == "sign_flip")
    ].iloc[0]
    frame = result.frame
    rows = frame[
        (frame["seed"] == 1)
        & (frame["step"] == 20)
        & (frame["gradient"] == "weight")
        & (frame["measure"] == "excess")
        & (frame["control"] == "sign_flip")
        & frame["site"].isin(
            ["blocks.0.attn.W_Q", "blocks.0.attn.W_K", "blocks.0.attn.W_V", "blocks.0.mlp.W_in", "blocks.0.mlp.W_gate"]
        )
    ]
    logs = np.log(rows["value"]).groupby(rows["architecture"]).mean()
    assert row["n_sites"] == 5
    assert row["value"] == pytest.approx(logs["decoder"] - logs["encoder"])
    assert row["encoder"] == pytest.approx(math.exp(logs["encoder"]))
    assert row["ci_low"] < row["value"] < row["ci_high"]
    # Over a window: the mean over its checkpoints. Step 0, where nothing is learned, is in none.
    assert not (whole["decoder_step"] == 0).any()
    late = whole[
        (whole["window"] == WINDOWS[1])
        & (whole["group"] == "writers")
        & (whole["control"] == "none")
        & (whole["seed"] == 0)
    ]
    single = late[late["decoder_step"].notna()]
    assert late.loc[late["decoder_step"].isna(), "value"].item() == pytest.approx(single["value"].mean())


def test_planes_are_the_encoders_own_of_early_steps(result, text):
    half = {name: [ids for ids in text.documents if half_of(document_hash(ids)) == name] for name in "AB"}
    early, found = [], []
    options = {"tokenizer": text.tokenizer, "objective": MaskedLM(), "progress": False, "batch_size": 8}

    def keep(step, model, loss):
        if step <= 6:
            early.append(capture(model, half["A"], gradients=(), **options))
        if step == 20:
            proxies = fit_tangent_proxies(early)
            found.append(tangent_energy(capture(model, half["B"], proxies=proxies, **options), proxies=proxies).frame)

    train_model(
        build_pair(RECIPE, 0).encoder,
        RECIPE,
        text.windows,
        RECIPE.objective(0),
        checkpoints=(*range(7), 20),
        on_checkpoint=keep,
    )
    mine = result.run(0, "encoder").frame
    chosen = [
        f[(f["measure"] == "energy_share") & (f["control"] == "none") & (f["gradient"] == "weight")].set_index("site")[
            "value"
        ]
        for f in (mine[mine["step"] == 20], found[0])
    ]
    assert chosen[0].to_dict() == pytest.approx(chosen[1].to_dict(), rel=1e-6)


def test_a_seed_is_a_run(result, text):
    again = run_pair(seeds=(1,), recipe=RECIPE, text=text)
    mine = result.frame[result.frame["seed"] == 1].reset_index(drop=True)
    pd.testing.assert_frame_equal(again.frame, mine)


def verdicts(table, windows=WINDOWS[:2]):
    return {one.verdict for one in judge(table) if one.window in windows}


def test_verdicts_and_reading(result):
    judged = judge(result.differences)
    assert [one.control for one in judged if one.window == WINDOWS[0]] == ["none", *CONTROLS]
    reading = str(read_pair(result))
    for expected in ("C5 as stated, equal tokens, early", "C5 beyond controls, equal progress", "unigram entropy"):
        assert expected in reading
    # A claim that is planted is found: all differences above 0, then all below.
    table = result.differences.assign(value=1.0, ci_low=0.5, ci_high=1.5, decoder=2.0)
    assert verdicts(table) == {"holds"}
    assert verdicts(table.assign(value=-1.0, ci_low=-1.5, ci_high=-0.5)) == {"does not hold"}
    assert verdicts(table.assign(decoder=0.9)) == {"holds", "unclear"}  # no excess that could be the stronger
    # Of a window that only one of the seeds has, nothing is said.
    late = (table["window"] == WINDOWS[1]) & (table["seed"] == 0)
    assert verdicts(table[~late], WINDOWS[1:2]) == {"not known"}
    planted = dataclasses.replace(result, differences=table)
    assert "C5 as stated, equal tokens, late" in str(read_pair(planted))
    assert read_pair(planted).findings[1].verdict == "holds"
    assert learning_frame(result)["step"].tolist() == list(RECIPE.default_checkpoints())
    assert set(c5_frame(result)["C5"]) <= {"holds", "does not hold", "unclear", "not known"}


def test_what_does_not_pair_is_refused(result, text):
    energies = tangent_energy(build_pair(RECIPE).decoder, torch.tensor(np.array(text.documents[:12])), progress=False)
    other = tangent_energy(build_pair(RECIPE).decoder, torch.tensor(np.array(text.documents[4:])), progress=False)
    with pytest.raises(TlAnisoError, match="different documents"):
        compare({0: energies}, {0: other}, {WINDOWS[0]: [Match(0, 0, 0.1, 0.1)]}, seed=0, controls=())
    with pytest.raises(TlAnisoError, match="shuffled_labels"):
        compare({0: energies}, {0: energies}, {WINDOWS[0]: [Match(0, 0, 0.1, 0.1)]}, seed=0, controls=CONTROLS)
    for seeds in ((), (1, 1), (-1,)):
        with pytest.raises(TlAnisoError, match="seeds"):
            run_pair(seeds=seeds, recipe=RECIPE, text=text)


def test_the_command_writes_tables_page_planes_and_models(tmp_path, capsys, monkeypatch, text, result):
    import tl_aniso.commands.pair as command

    asked = {}

    def given(**options):
        asked.update(options)
        options["on_step"](3, "decoder", 2, 5.0)
        return result

    monkeypatch.setattr(command, "pair_text", lambda recipe: text)
    monkeypatch.setattr(command, "run_pair", given)
    out = tmp_path / "pair"
    assert main(["demo", "--pair", "--seed", "3", "--steps", "20", "--out", str(out)]) == 0
    assert asked["seeds"] == (3, 4)
    assert asked["recipe"].n_steps == 20
    models = {f"{kind}-seed-{seed}" for kind in ("decoder", "encoder") for seed in (0, 1)}
    assert {path.name for path in out.iterdir() if not path.name.startswith(".")} == {
        "results.csv",
        "differences.csv",
        "report.html",
        *models,
    }
    assert len(pd.read_csv(out / "results.csv")) == len(result.frame)
    shown = capsys.readouterr()
    assert "min left in all" in shown.err
    for expected in (
        "held-out loss and progress",
        "C5, readers",
        "excess over shuffled labels",
        "What the numbers do not mean",
    ):
        assert expected in shown.out
    page = (out / "report.html").read_text(encoding="utf-8")
    for expected in ("Losses against unigram entropy", "E and excess at equal progress", "EuroBertForMaskedLM"):
        assert expected in page
