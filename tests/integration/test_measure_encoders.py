"""``tl-aniso measure`` on encoders: masked tokens by default, how they are masked by option, and wrong combinations."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.encoder_models import tiny_encoder
from tests.hub_cache import tiny_tokenizer
from tests.models import tiny_model
from tl_aniso import MaskedLM, TlAnisoError
from tl_aniso.cli import main
from tl_aniso.commands import measure as measure_module

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [
    f"the {a} {b} sat on the {c} and looked at the {b} of the {a} again, then at the {c} once more"
    for a, b, c in [(a, b, c) for a in ("old", "red", "wet") for b in ("cat", "dog") for c in ("mat", "hat", "bed")]
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two encoders and a decoder with their tokenizers, and a text."""
    root = tmp_path_factory.mktemp("measured")
    found = {"text": root / "text.jsonl"}
    found["text"].write_text("\n".join(json.dumps({"text": text}) for text in TEXTS), encoding="utf-8")
    small = {"vocab_size": 300, "num_hidden_layers": 2}
    models = {kind: tiny_encoder(kind, "sdpa", **small) for kind in ("EuroBert", "Bert")}
    models["llama"] = tiny_model("llama", vocab_size=300, bos_token_id=0, eos_token_id=0)
    for name, model in models.items():
        found[name] = root / name
        model.save_pretrained(found[name])
        tiny_tokenizer(mask=name != "llama").save_pretrained(found[name])
    return found


def measured(places: dict[str, Path], model: str, out: Path, *options: str) -> int:
    return main(["measure", str(places[model]), "--text", str(places["text"]), "--out", str(out), *options])


@pytest.mark.parametrize(
    ("model", "options", "objective", "said"),
    [
        ("Bert", [], "masked", "30% of all but special ones, 80% of them as"),
        (
            "EuroBert",
            ["--mask-rate", "0.15", "--mask-with", "mask"],
            "masked(rate=0.15, replacement=mask)",
            "15% of all but special ones, each as the mask token",
        ),
        ("llama", ["--objective", "causal"], "causal", "next-token cross-entropy"),
    ],
)
def test_the_objective_is_the_models_own_or_as_asked(
    model: str, options: list[str], objective: str, said: str, places: dict[str, Path], tmp_path: Path
) -> None:
    # Not block 0: where all masked tokens become one, their rows alone would have no plane there.
    sites = ["--sites", "blocks.1.hook_resid_pre", "blocks.1.attn.W_Q", "blocks.1.mlp.W_in"]
    assert measured(places, model, tmp_path / "out", *options, *sites) == 0
    frame = pd.read_csv(tmp_path / "out" / "results.csv")
    assert set(frame["objective"]) == {objective}
    assert {"energy_share", "r_energy", "excess", "isoscore_star"} <= set(frame["measure"])
    assert frame["value"].notna().all()
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert said in page
    assert ("masked and carry the loss" in page) == (model != "llama")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], None),
        (["--objective", "masked"], "masked"),
        (["--mask-with", "mask"], MaskedLM(replacement="mask")),
        (["--objective", "masked", "--mask-rate", ".5"], MaskedLM(0.5)),
    ],
)
def test_the_objective_is_handed_on(
    options: list[str], expected: Any, places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, objective: Any, **__: Any) -> None:
        assert objective == expected
        raise TlAnisoError("seen")

    monkeypatch.setattr(measure_module, "measure_once", stop)
    assert measured(places, "EuroBert", tmp_path / "out", *options) == 1


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("EuroBert", ["--objective", "causal"], "'causal' on EuroBertForMaskedLM: its tokens attend to both sides"),
        ("Bert", ["--objective", "causal"], "'causal' on BertForMaskedLM"),
        ("llama", ["--objective", "masked"], "'masked' on LlamaForCausalLM: its tokens attend to those before"),
        ("llama", ["--mask-rate", "0.2"], "are of encoders, and LlamaForCausalLM is a decoder"),
        ("llama", ["--mask-with", "bert"], "are of encoders, and LlamaForCausalLM is a decoder"),
        ("llama", ["--objective", "masked", "--mask-rate", "0.3"], "are of encoders, and LlamaForCausalLM is"),
    ],
)
def test_what_the_model_cannot_do_is_one_line(
    model: str, options: list[str], message: str, places: dict[str, Path], tmp_path: Path, capsys: Any
) -> None:
    assert measured(places, model, tmp_path / "out", *options) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tl-aniso: ")]
    assert message in line
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("option", [["--mask-rate", "0.2"], ["--mask-with", "mask"]])
def test_masks_of_a_causal_loss_are_refused_before_anything_loads(
    option: list[str], places: dict[str, Path], tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_module, "load_model", lambda *_, **__: pytest.fail("loaded"))
    assert measured(places, "EuroBert", tmp_path / "out", "--objective", "causal", *option) == 2
    assert f"{option[0]} is of masked tokens, and --objective causal masks none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--mask-rate", "0", "--mask-rate: must be a number above 0 and at most 1, got 0"),
        ("--mask-rate", "30", "--mask-rate: must be a number above 0 and at most 1, got 30"),
        ("--mask-rate", "nan", "must be a number above 0"),
        ("--mask-rate", "many", "must be a number above 0"),
        ("--mask-with", "roberta", "--mask-with: invalid choice"),
        ("--objective", "mlm", "--objective: invalid choice"),
    ],
)
def test_values_that_no_model_takes(option: str, value: str, message: str, capsys: Any) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["measure", "m", "--text", "t.txt", option, value])
    assert message in capsys.readouterr().err
