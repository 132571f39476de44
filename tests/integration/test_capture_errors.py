"""What a user can get wrong: one clear `TlAnisoError` naming culprit and remedy, and nothing half-done."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.models import VOCAB, as_bridge, random_documents, tiny_model
from tl_aniso import TlAnisoError, capture, fit_tangent_proxies
from tl_aniso.capturing.bindings import bridge as bridge_module
from tl_aniso.errors import ModelError, SiteError, TextError, UndefinedMeasureError

pytestmark = pytest.mark.usefixtures("one_thread")

DOCUMENTS = random_documents((12, 9, 20, 15))
PROJECTION = "blocks.0.mlp.W_out"


def quiet(model: Any, text: Any = DOCUMENTS, **options: Any) -> Any:
    return capture(model, text, **{"progress": False, **options})


def down_projection(model: Any) -> nn.Module:
    return model.model.layers[0].mlp.down_proj


class TestModels:
    def test_no_adapter(self) -> None:
        with pytest.raises(ModelError, match=r"no adapter for Linear; supported: GPTNeoXForCausalLM, Llama"):
            quiet(nn.Linear(3, 3))
        from transformers import OPTConfig, OPTForCausalLM

        config = OPTConfig(vocab_size=30, max_position_embeddings=16, hidden_size=12, ffn_dim=8, num_hidden_layers=1)
        with pytest.raises(ModelError, match="no adapter for OPTForCausalLM; supported"):
            quiet(OPTForCausalLM(config))

    def test_hooked_transformer(self) -> None:
        class HookedTransformer(nn.Module):
            pass

        with pytest.raises(ModelError, match=r"HookedTransformer.*TransformerBridge"):
            quiet(HookedTransformer())

    @pytest.mark.parametrize("found", ["3.5.1", "2.0.0", "unknown"])
    def test_bridge_of_an_older_transformer_lens(self, monkeypatch: pytest.MonkeyPatch, found: str) -> None:
        bridge = as_bridge(tiny_model("llama"))
        monkeypatch.setattr(bridge_module, "version", lambda _name: found)
        with pytest.raises(ModelError, match=rf"TransformerLens {found}.*install transformer_lens >= 4"):
            quiet(bridge)
        quiet(tiny_model("llama"))  # the plain model needs no TransformerLens

    def test_bridge_whose_weights_were_processed(self) -> None:
        bridge = as_bridge(tiny_model("llama"))
        bridge.enable_compatibility_mode()
        with pytest.raises(ModelError, match="processed"):
            quiet(bridge)

    def test_weights_that_are_not_finite(self) -> None:
        for value in (float("nan"), float("inf")):
            model = tiny_model("llama")
            with torch.no_grad():
                down_projection(model).weight[3, 4] = value
            with pytest.raises(ModelError, match=r"layers\.0\.mlp\.down_proj\.weight holds NaN or infinite"):
                quiet(model)

    @pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
    def test_quantised_parameter(self, dtype: torch.dtype) -> None:
        model = tiny_model("llama")
        weight = nn.Parameter(down_projection(model).weight.detach().to(dtype), requires_grad=False)
        down_projection(model).weight = weight
        with pytest.raises(ModelError, match=rf"{PROJECTION} is quantised.*{dtype}.*without quantisation"):
            quiet(model)

    def test_quantised_module(self) -> None:
        class Packed(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x

        class Method(Packed):
            def weight(self) -> torch.Tensor:
                return torch.zeros(2, 2)

        class Parameter4bit(nn.Parameter):
            pass

        for change in (Packed(), Method()):
            model = tiny_model("llama")
            model.model.layers[0].mlp.down_proj = change
            with pytest.raises(ModelError, match=f"{PROJECTION} is quantised"):
                quiet(model)
        model = tiny_model("llama")
        down_projection(model).weight = Parameter4bit(down_projection(model).weight.detach())
        with pytest.raises(ModelError, match=rf"{PROJECTION} is quantised.*Parameter4bit"):
            quiet(model)
        model = tiny_model("llama")
        model.model.embed_tokens = Packed()
        with pytest.raises(ModelError, match="embedding"):
            quiet(model)

    def test_half_precision(self) -> None:
        with pytest.raises(ModelError, match=r"float16.*model\.float\(\)"):
            quiet(tiny_model("llama").half())

    def test_bfloat16_weights_run(self) -> None:
        assert quiet(tiny_model("llama").bfloat16()).weight_gradients["embed.W_E"].count == len(DOCUMENTS)

    def test_inference_weights(self) -> None:
        with torch.inference_mode():
            model = tiny_model("llama")
        with pytest.raises(ModelError, match="inference_mode"):
            quiet(model)

    def test_weights_never_loaded(self) -> None:
        model = tiny_model("llama")
        down_projection(model).to("meta")
        with pytest.raises(ModelError, match=r"(meta device|never loaded)"):
            quiet(model)

    def test_another_device(self) -> None:
        with pytest.raises(TlAnisoError, match=r"model is on cpu, not on cuda; move it"):
            quiet(tiny_model("llama"), device="cuda")
        with pytest.raises(TlAnisoError, match="unknown device"):
            quiet(tiny_model("llama"), device="nowhere")


class TestTexts:
    @pytest.mark.parametrize("text", ["", "  \n", [], [[]], torch.zeros(0, dtype=torch.int64), [[5]], [""]])
    def test_nothing_to_measure(self, text: Any) -> None:
        with pytest.raises(TextError):
            quiet(tiny_model("llama"), text, tokenizer=lambda text, **_: {"input_ids": [3] * len(text)})

    @pytest.mark.parametrize("wrong", [-1, VOCAB, 50_000])
    def test_ids_outside_the_vocabulary(self, wrong: int) -> None:
        with pytest.raises(TextError, match=rf"id {wrong} at position 2 of document 1"):
            quiet(tiny_model("llama"), [[3, 4, 5], [3, 4, wrong, 5]])

    def test_strings_without_a_tokenizer(self) -> None:
        with pytest.raises(TextError, match=r"pass tokenizer=\.\.\., or token ids"):
            quiet(tiny_model("llama"), "some words")

    def test_sequences_beyond_the_context(self) -> None:
        with pytest.raises(TlAnisoError, match="context of 160"):
            quiet(tiny_model("llama"), seq_len=161)
        with pytest.raises(TlAnisoError, match="seq_len"):
            quiet(tiny_model("llama"), seq_len=1)

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(TextError, match="no file"):
            quiet(tiny_model("llama"), tmp_path / "none.txt")


class TestForms:
    """The same documents in every form give the same sums."""

    def test_strings_lists_tensors_and_masks(self) -> None:
        def tokenizer(text: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": [3 + ord(letter) % 40 for letter in text]}

        model, text = tiny_model("llama"), "the cat sat on the mat"
        ids = tokenizer(text)["input_ids"]
        expected = quiet(model, ids, exclude=())
        padded = torch.tensor([[0, 0, *ids]])
        mask = torch.tensor([[0, 0] + [1] * len(ids)])
        forms: list[Any] = [
            torch.tensor(ids),
            torch.tensor([ids]),
            [ids],
            [torch.tensor(ids)],
            {"input_ids": ids},
            [{"input_ids": ids, "label": 3}],
            {"input_ids": padded, "attention_mask": mask},
        ]
        got = [quiet(model, form, exclude=()) for form in forms]
        got += [quiet(model, form, exclude=(), tokenizer=tokenizer) for form in (text, [text], [{"text": text}])]
        for one in got:
            assert one.metadata["text"] == expected.metadata["text"]
            for site, moments in expected.weight_gradients.items():
                assert torch.equal(one.weight_gradients[site].scatter, moments.scatter)


class TestSites:
    @pytest.mark.parametrize("argument", ["sites", "shard_sites"])
    @pytest.mark.parametrize(
        ("wrong", "near"),
        [
            ("blocks.0.attn.WQ", r"blocks\.0\.attn\.W_Q"),
            ("blocks.0.resid_pre", r"blocks\.0\.hook_resid_pre"),
            ("blocks.9.attn.W_Q", r"blocks\.[01]\.attn\.W_Q"),
        ],
    )
    def test_near_matches(self, argument: str, wrong: str, near: str) -> None:
        with pytest.raises(SiteError, match=rf"no site '{wrong}' on this model; near matches: .*{near}"):
            quiet(tiny_model("llama"), **{argument: [wrong]})

    def test_parallel_blocks_have_no_mid(self) -> None:
        with pytest.raises(SiteError, match="hook_resid_mid"):
            quiet(tiny_model("neox-parallel"), sites="blocks.0.hook_resid_mid")

    def test_asking_a_capture(self) -> None:
        got = quiet(tiny_model("llama"), sites=["blocks.0.attn.W_Q"])
        for asked in (got.weight_gradients, got.activations, got.controls["sign_flip"]):
            with pytest.raises(SiteError, match=r"holds no .* of 'blocks\.0\.attn\.W_P'.*near matches"):
                asked["blocks.0.attn.W_P"]
            assert "blocks.0.attn.W_P" not in asked
        assert "blocks.0.attn.W_Q" in got.weight_gradients
        assert got.weight_gradients.get("blocks.0.attn.W_K") is None
        with pytest.raises(TlAnisoError, match="no half 'C'"):
            got.half("C")
        with pytest.raises(TlAnisoError, match="no such field: steps"):
            got.labelled(steps=3)


class TestOptions:
    @pytest.mark.parametrize(
        "options",
        [
            {"gradients": "weights"},
            {"controls": ["other_layer"]},
            {"controls": 5},
            {"extra_passes": "permuted"},
            {"exclude": "pads"},
            {"weight_exclude": "sink"},
            {"objective": "mlm"},
            {"unit": "token"},
            {"basis": "tangent"},
            {"keep_rows": -1},
            {"n_shards": 0},
            {"n_shards": 2.5},
            {"dtype": torch.float16},
            {"seed": "zero"},
            {"pooled": True},
            {"batch_size": 0},
            {"max_bytes": 1000},
        ],
        ids=str,
    )
    def test_unknown_values(self, options: dict[str, Any]) -> None:
        model = tiny_model("llama")
        with pytest.raises(TlAnisoError, match=next(iter(options))):
            quiet(model, **options)
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class TestProxies:
    def test_rank_above_half_the_width(self) -> None:
        got = quiet(tiny_model("llama"))
        with pytest.raises(TlAnisoError, match=r"17.*32|32.*17"):
            fit_tangent_proxies(got, 17)

    def test_constant_activations(self) -> None:
        model = tiny_model("llama")
        with torch.no_grad():
            model.model.embed_tokens.weight[:] = model.model.embed_tokens.weight[0]
        with pytest.raises(UndefinedMeasureError, match=r"blocks\.0\.hook_resid_pre"):
            fit_tangent_proxies(quiet(model, sites=["blocks.0.hook_resid_pre"]))

    def test_no_proxy_for_a_site(self) -> None:
        model = tiny_model("llama")
        proxies = fit_tangent_proxies(quiet(model, sites=["blocks.0.attn.W_Q"]), 4)
        with pytest.raises(SiteError, match=r"no proxy for embed\.W_E"):
            quiet(model, proxies=proxies)

    def test_proxies_of_another_width(self) -> None:
        proxies = fit_tangent_proxies(quiet(tiny_model("llama", hidden_size=16)), 4)
        with pytest.raises(TlAnisoError, match=r"has width 16, the model has d_model 32"):
            quiet(tiny_model("llama"), proxies=proxies)


def test_a_layer_wrapped_by_an_adapter_is_refused_though_it_shows_a_weight():
    class Adapted(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base
            self.extra = torch.nn.Linear(base.in_features, base.out_features, bias=False)

        @property
        def weight(self):
            return self.base.weight

        def forward(self, x):
            return self.base(x) + self.extra(x)

    model = tiny_model("llama")
    model.model.layers[1].self_attn.q_proj = Adapted(model.model.layers[1].self_attn.q_proj)
    with pytest.raises(TlAnisoError, match=r"blocks\.1\.attn\.W_Q is a Adapted, not a plain linear"):
        capture(model, random_documents(), progress=False)
