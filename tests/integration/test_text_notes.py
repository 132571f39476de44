"""Notes on text that is likely not what was meant, and errors of text and arguments that say so."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel

from tests.encoder_models import MASK, tiny_encoder
from tests.hub_cache import tiny_tokenizer
from tests.integration.test_masked_capture import Tokenizer
from tests.masked_models import encoder
from tests.models import random_documents, tiny_model
from tl_aniso import Capture, MaskedLM, TlAnisoError, ablation_isotropy, capture, tangent_energy
from tl_aniso.cli import main
from tl_aniso.errors import ModelError, TextError, UndefinedMeasureError

pytestmark = pytest.mark.usefixtures("one_thread")

DOCUMENTS = [[1, *ids, 2] for ids in random_documents(tuple(20 + i % 17 for i in range(30)), low=MASK + 1)]
SITE = "blocks.1.mlp.W_in"
OPTIONS: dict[str, Any] = {"sites": SITE, "progress": False, "n_controls": 0, "controls": ()}
PAD = 0


def notes_of(text: Any, model: Any = None, **options: Any) -> str:
    return "\n".join(tangent_energy(model or encoder(), text, **{**OPTIONS, **options}).notes)


def padded(left: bool = False) -> dict[str, torch.Tensor]:
    width = max(map(len, DOCUMENTS))
    pads = [[PAD] * (width - len(document)) for document in DOCUMENTS]
    rows = [p + d if left else d + p for p, d in zip(pads, DOCUMENTS, strict=True)]
    mask = [[0] * len(p) + [1] * len(d) for p, d in zip(pads, DOCUMENTS, strict=True)]
    mask = mask if left else [row[::-1] for row in mask]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}


class TestPadding:
    @pytest.mark.parametrize("left", [False, True])
    def test_pads_without_a_mask_are_counted(self, left: bool) -> None:
        n = sum(len(document) < max(map(len, DOCUMENTS)) for document in DOCUMENTS)
        said = f"{n} of {len(DOCUMENTS)} documents begin or end with the pad token {PAD} and are read with it, as text"
        text = padded(left)
        assert said in notes_of(text["input_ids"])
        # This tokenizer names no pad token, so the config's counts.
        assert said in notes_of(list(text["input_ids"]), tokenizer=Tokenizer(MASK, (1, 2, MASK)))
        assert "pad token" not in notes_of(text)
        assert "pad token" not in notes_of(DOCUMENTS)

    def test_of_a_decoder_too_and_one_eos_that_also_pads_is_an_end(self) -> None:
        model = tiny_model("llama", eos_token_id=2, pad_token_id=2)
        assert "pad token" not in notes_of(DOCUMENTS, model)
        ended = [[*document, 2] for document in DOCUMENTS[:20]] + DOCUMENTS[20:]
        assert "20 of 30 documents begin or end with the pad token 2" in notes_of(ended, model)

    def test_merged_and_saved_the_counts_add_up(self, tmp_path: Path) -> None:
        rows = list(padded()["input_ids"])
        options: dict[str, Any] = {"sites": SITE, "progress": False}
        whole = capture(encoder(), rows, **options)
        parts = [capture(encoder(), part, **options) for part in (rows[:13], rows[13:])]
        merged = parts[0].merge(parts[1])
        assert merged.metadata["text"]["given"] == whole.metadata["text"]["given"]
        merged.save(tmp_path / "held")
        note = "documents begin or end with the pad token"
        assert any(note in n for n in tangent_energy(Capture.load(tmp_path / "held"), controls=(), n_controls=0).notes)
        # A capture of an earlier version knows no such counts.
        old = capture(encoder(), rows[13:], **options)
        del old._metadata["text"]["given"]
        assert parts[0].merge(old).metadata["text"]["given"] is None
        assert "given" not in old.merge(parts[0]).metadata["text"]


class TestSpecialTokensInText:
    def test_written_out(self) -> None:
        tokenizer = tiny_tokenizer(mask=True)  # its mask token is "J", its pad token "Q"
        texts = [f"the old cat sat on mat {i} and looked at the dog, then sat {i * i} times more" for i in range(40)]
        model = tiny_encoder("EuroBert", vocab_size=300)
        assert "written" not in notes_of(texts, model, tokenizer=tokenizer)
        texts[:5] = [f"{text} J then" for text in texts[:5]]
        texts[5] += " Q"
        said = notes_of(texts, model, tokenizer=tokenizer)
        assert "special tokens stand written in the text (J in 5 of 40 documents, Q in 1 of 40 documents)" in said

    def test_ids_that_are_masked_already(self) -> None:
        assert f"written in the text (id {MASK} in 1 of 31 documents)" in notes_of([*DOCUMENTS, [5, MASK, 9, 11]])


class TestMaskToken:
    @pytest.mark.parametrize(
        ("tokenizer", "named", "said"),
        [
            (Tokenizer(9, (1, 2, 9)), 8, "mask token is 8, as the objective names it, and not the tokenizer's own, 9"),
            (Tokenizer(9, (1, 2, 9)), 9, None),
            (Tokenizer(9, (1, 2, 9)), None, None),
            (None, 8, f"mask token is 8, as the objective names it, and not the config's own, {MASK}"),
            (Tokenizer(None, (1, 2)), None, f"mask token {MASK} is an ordinary token of the tokenizer"),
            (Tokenizer(None, (1, 2, MASK)), None, None),
        ],
    )
    def test_which_is_not_the_models_own(self, tokenizer: Any, named: int | None, said: str | None) -> None:
        notes = notes_of(DOCUMENTS, tokenizer=tokenizer, objective=MaskedLM(mask_token_id=named))
        assert (said or "the mask token") in notes if said else "mask token" not in notes

    def test_ids_without_a_tokenizer(self) -> None:
        said = f"that the model's config names (0, 1, 2, {MASK}), others can be masked and predicted"
        drawn = "random replacements are drawn from all 97 ids of the model"
        by_default = notes_of(DOCUMENTS)
        assert said in by_default
        assert drawn in by_default
        by_mask = notes_of(DOCUMENTS, objective=MaskedLM(replacement="mask"))
        assert said in by_mask
        assert drawn not in by_mask
        assert "without a tokenizer" not in notes_of(DOCUMENTS, tokenizer=Tokenizer(MASK, (1, 2, MASK)))
        assert "without a tokenizer" not in notes_of(DOCUMENTS, tiny_model("llama"))

    def test_differences_of_other_mask_tokens_and_vocabularies(self) -> None:
        def found(mask: int = 9, special: tuple[int, ...] = (1, 2, 8, 9), size: int = 97, **options: Any) -> Any:
            return tangent_energy(encoder(), DOCUMENTS, tokenizer=Tokenizer(mask, special, size), **OPTIONS, **options)

        mine = found()
        assert "part of the difference" not in "".join(n for n in (mine - found()).notes if "planes" not in n)
        assert any("different mask tokens (9 and 8)" in note for note in (mine - found(8)).notes)
        assert any("vocabularies of 97 and 60 ids" in note for note in (mine - found(size=60)).notes)
        assert any("differ (1, 2, 8, 9 and 1, 2, 9)" in n for n in (mine - found(special=(1, 2, 9))).notes)
        by_mask = {"objective": MaskedLM(replacement="mask")}
        assert not any("vocabularies" in n for n in (found(**by_mask) - found(size=60, **by_mask)).notes)


class TestShortText:
    @pytest.mark.parametrize("question", [tangent_energy, ablation_isotropy])
    def test_says_how_many_tokens_there_are(self, question: Any) -> None:
        with pytest.raises(TextError, match=r"the text has 1 ordinary token beside 2 special ones, too few") as caught:
            question(encoder(), [[1, 40, 2]], progress=False)
        assert isinstance(caught.value, UndefinedMeasureError)
        with pytest.raises(TextError, match=r"has 2 ordinary tokens beside 2 special ones, too few.*\(isotropy of"):
            ablation_isotropy(encoder(), [[1, 40, 41, 2]], gradients="none", progress=False)
        with pytest.raises(TextError, match="the text has 0 ordinary tokens beside 9 special ones"):
            question(tiny_model("llama", bos_token_id=1, eos_token_id=2), [[1, *[2] * 8]], progress=False)
        held = capture(encoder(), [[1, 40, 2]], progress=False)
        with pytest.raises(TextError, match="the text has 1 ordinary token beside"):
            question(held)

    def test_a_long_text_of_one_token_is_not_short(self) -> None:
        with pytest.raises(UndefinedMeasureError, match="constant") as caught:
            tangent_energy(encoder(), [[1, *[40] * 30, 2]], objective=MaskedLM(1.0, "mask"), progress=False)
        assert not isinstance(caught.value, TextError)

    @pytest.mark.parametrize("text", ["a\n", "XZXZ\n"])
    def test_of_the_command_line_exit_code_2(self, text: str, tmp_path: Path, capsys: Any) -> None:
        model = tmp_path / "model"
        tiny_encoder("EuroBert", vocab_size=300).save_pretrained(model)
        tiny_tokenizer(mask=True).save_pretrained(model)
        (tmp_path / "one.txt").write_text(text, encoding="utf-8")
        command = ["measure", str(model), "--text", str(tmp_path / "one.txt"), "--out", str(tmp_path / "out")]
        assert main(command) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tl-aniso: ")]
        assert "one.txt: " in line
        assert not (tmp_path / "out").exists()


class TestArguments:
    @pytest.mark.parametrize("text", [["a text", "another"], DOCUMENTS])
    @pytest.mark.parametrize("given", ["bert", Path("bert")])
    def test_the_name_of_a_tokenizer_is_none(self, given: Any, text: Any) -> None:
        with pytest.raises(TlAnisoError, match=r"tokenizer must be a tokenizer, got 'bert', which is only the name"):
            capture(encoder(), text, tokenizer=given, progress=False)

    def test_a_tokenizer_that_cannot_be_called(self) -> None:
        with pytest.raises(TextError, match="is a text, and the tokenizer is of type Tokenizer, which cannot"):
            capture(encoder(), ["a text"], tokenizer=Tokenizer(9, (9,)), progress=False)
        with pytest.raises(TlAnisoError, match="got the class Tokenizer"):
            capture(encoder(), ["a text"], tokenizer=Tokenizer, progress=False)

    @pytest.mark.parametrize("model", [encoder, lambda: tiny_model("llama")])
    def test_a_class_is_no_objective(self, model: Any) -> None:
        for objective in (MaskedLM, torch.nn.CrossEntropyLoss):
            with pytest.raises(TlAnisoError, match=rf"pass {objective.__name__}\(\), not the class") as caught:
                capture(model(), DOCUMENTS, objective=objective, progress=False)
            assert "tensor" not in str(caught.value)

    def test_an_encoder_made_a_decoder(self) -> None:
        config = BertConfig(
            vocab_size=40,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            is_decoder=True,
        )
        with pytest.raises(ModelError, match=r"made a decoder \(is_decoder\), which is supported") as caught:
            capture(BertLMHeadModel(config), DOCUMENTS, progress=False)
        assert "AutoModelForMaskedLM" not in str(caught.value)
