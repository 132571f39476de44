"""The embedded default, small: planes are frozen early, and every checkpoint and control is there."""

import pandas as pd
import pytest

from tl_aniso.capturing import capture
from tl_aniso.cli import main
from tl_aniso.demo import demo_text, run_demo
from tl_aniso.questions import tangent_energy
from tl_aniso.subspace import fit_tangent_proxies
from tl_aniso.text import document_hash, half_of
from tl_aniso.training import DecoderRecipe, train_decoder

RECIPE = DecoderRecipe(d_model=32, n_layers=2, n_heads=2, d_mlp=64, vocab_size=400, context=48, n_steps=20, warmup=4)


@pytest.fixture(scope="module")
def text():
    return demo_text(RECIPE, per_half=12, packages=())


@pytest.fixture(scope="module")
def result(text):
    return run_demo(recipe=RECIPE, text=text)


def test_every_checkpoint_every_control_every_measure(result):
    table = result.by_step()
    assert table["step"].tolist() == list(range(21))
    for control in ("input_energy", "sign_flip", "shuffled_g", "shuffled_labels"):
        assert table[f"R {control}"].notna().all()
    energy = result.frame[(result.frame["measure"] == "energy_share") & (result.frame["gradient"] == "weight")]
    assert energy["ci_low"].notna().all()
    isotropy = result.frame[(result.frame["measure"] == "isoscore_star") & (result.frame["control"] == "normal")]
    assert set(isotropy["gradient"]) == {"none", "activation", "weight"}
    assert result.frame["held_out"].all()
    assert (result.frame["phase"] == "early").eq(result.frame["step"] <= 6).all()


def test_planes_are_of_the_early_checkpoints_and_frozen(result, text):
    half_a = [ids for ids in text.documents if half_of(document_hash(ids)) == "A"]
    half_b = [ids for ids in text.documents if half_of(document_hash(ids)) == "B"]
    early, last = [], []

    def keep(step, model, loss):
        if step <= 6:
            early.append(capture(model, half_a, gradients=(), progress=False, batch_size=8))
        if step == 20:
            proxies = fit_tangent_proxies(early)
            last.append(capture(model, half_b, proxies=proxies, progress=False, batch_size=8))
            last.append(proxies)

    train_decoder(RECIPE, text.windows, on_checkpoint=keep)
    by_hand = tangent_energy(last[0], proxies=last[1]).frame
    mine = result.frame[(result.frame["step"] == 20) & (result.frame["gradient"] == "weight")]
    for measure in ("energy_share", "r_energy"):
        control = "none" if measure == "energy_share" else "normal"
        chosen = [
            f[(f["measure"] == measure) & (f["control"] == control)].set_index("site")["value"] for f in (mine, by_hand)
        ]
        assert chosen[0].to_dict() == pytest.approx(chosen[1].to_dict(), rel=1e-6)


def test_a_seed_is_a_run(text, result):
    again = run_demo(recipe=RECIPE, text=text)
    pd.testing.assert_frame_equal(again.frame, result.frame)
    other = run_demo(recipe=RECIPE, text=text, seed=1)
    assert other.by_step()["R"].iloc[-1] != result.by_step()["R"].iloc[-1]


def test_training_learns(result):
    losses = [loss for _, loss in result.losses]
    assert sum(losses[-5:]) / 5 < losses[0] - 0.2


def test_the_command_writes_table_page_planes_and_model(tmp_path, capsys, monkeypatch, text):
    import tl_aniso.commands.demo as command

    monkeypatch.setattr(command, "DecoderRecipe", lambda n_steps: RECIPE)
    monkeypatch.setattr(command, "demo_text", lambda recipe: text)
    out = tmp_path / "demo"
    assert main(["demo", "--out", str(out)]) == 0
    names = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    assert names == {"results.csv", "report.html", "proxies", "model"}
    shown = capsys.readouterr().out
    for expected in (
        "true R",
        "shuffled labels",
        "excess by step",
        "R by layer",
        "IsoScore*",
        "What the numbers do not mean",
    ):
        assert expected in shown
    assert "<title>" in (out / "report.html").read_text(encoding="utf-8")
