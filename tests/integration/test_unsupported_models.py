"""Models that cannot be measured are refused before anything runs, each with its reason and a way out."""

import types
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from tests.models import as_bridge, random_documents, tiny_model
from tl_aniso import capture
from tl_aniso.capturing.bind import SUPPORTED_CLASSES, bind
from tl_aniso.errors import ModelError

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def on_meta(class_name: str, config: Any) -> Any:
    with torch.device("meta"):
        return getattr(transformers, class_name)(config)


class TestExperts:
    @pytest.mark.parametrize(
        ("name", "extra"),
        [
            ("Mixtral", {"num_local_experts": 4}),
            ("Olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
            ("Qwen2Moe", {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}),
        ],
    )
    def test_refused(self, name: str, extra: dict[str, int]) -> None:
        model = on_meta(f"{name}ForCausalLM", getattr(transformers, f"{name}Config")(**SMALL, **extra))
        with pytest.raises(ModelError, match=rf"no adapter for {name}ForCausalLM; it is a mixture of experts.*dense"):
            bind(model)

    def test_experts_in_the_place_of_an_mlp(self) -> None:
        model = tiny_model("llama")
        model.model.layers[1].mlp = nn.ModuleDict({"experts": nn.Linear(32, 32)})
        with pytest.raises(ModelError, match=r"block 1 of LlamaForCausalLM has no module mlp\.up_proj; was a part"):
            bind(model)


class TestMultimodal:
    def test_gemma3(self) -> None:
        vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = transformers.Gemma3Config(
            text_config={**SMALL, "head_dim": 8}, vision_config={**vision, "image_size": 28, "patch_size": 14}
        )
        model = on_meta("Gemma3ForConditionalGeneration", config)
        reason = (
            r"no adapter for Gemma3ForConditionalGeneration; it is multimodal; pass its text model.*Gemma3ForCausalLM"
        )
        with pytest.raises(ModelError, match=reason):
            bind(model)

    def test_llava(self) -> None:
        vision = transformers.CLIPVisionConfig(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28
        )
        config = transformers.LlavaConfig(text_config=transformers.LlamaConfig(**SMALL), vision_config=vision)
        with pytest.raises(ModelError, match="no adapter for LlavaForConditionalGeneration; it is multimodal"):
            bind(on_meta("LlavaForConditionalGeneration", config))


class TestAdapters:
    """PEFT's own names, without PEFT: a wrapping model, and layers put into a model of a supported class."""

    def test_wrapping_model(self) -> None:
        class PeftModel(nn.Module):
            def __init__(self, base: nn.Module) -> None:
                super().__init__()
                self.base_model = base

        class PeftModelForCausalLM(PeftModel):
            pass

        for cls in (PeftModel, PeftModelForCausalLM):
            with pytest.raises(ModelError, match=rf"{cls.__name__} wraps a model with adapters.*merge_and_unload"):
                bind(cls(tiny_model("llama")))

    @pytest.mark.parametrize("path", ["layers.1.self_attn.q_proj", "embed_tokens", "layers.0.mlp.gate_proj"])
    @pytest.mark.parametrize("bridged", [False, True])
    def test_layers_inside(self, path: str, bridged: bool) -> None:
        class Adapted(nn.Module):  # as peft.tuners.lora.Linear and Embedding: they show the base's weight
            def __init__(self, base: nn.Module) -> None:
                super().__init__()
                self.base_layer = base
                self.lora_A = nn.ModuleDict({"default": nn.Linear(32, 2, bias=False)})

            @property
            def weight(self) -> torch.Tensor:
                return self.base_layer.weight

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.base_layer(x)

        model = as_bridge(tiny_model("llama")) if bridged else tiny_model("llama")
        body = (model.original_model if bridged else model).model
        parent, _, name = path.rpartition(".")
        setattr(body.get_submodule(parent), name, Adapted(body.get_submodule(path)))
        with pytest.raises(ModelError, match=rf"model\.{path} is a Adapted with an adapter .*merge_and_unload"):
            bind(model)

    def test_a_layer_that_is_known_by_its_library(self) -> None:
        model = tiny_model("llama")
        layer = type("IA3Linear", (nn.Linear,), {"__module__": "peft.tuners.ia3.layer"})(32, 32, bias=False)
        model.model.layers[0].self_attn.o_proj = layer
        with pytest.raises(ModelError, match=r"model\.layers\.0\.self_attn\.o_proj is a IA3Linear with an adapter"):
            bind(model)

    def test_a_linear_layer_with_a_forward_of_its_own(self) -> None:
        class Noisy(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(x) + 1

        class Plain(nn.Linear):
            pass

        model = tiny_model("llama")
        for cls in (Plain, Noisy):
            layer = cls(32, 32, bias=False)
            model.model.layers[0].self_attn.o_proj = layer
            if cls is Plain:
                assert bind(model).blocks[0].matrices[-2].module is layer
        with pytest.raises(ModelError, match=r"blocks\.0\.attn\.W_O is a Noisy, not a plain linear layer"):
            bind(model)

    def test_an_embedding_that_does_more_than_look_up(self) -> None:
        class Shifted(nn.Embedding):
            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                return super().forward(ids) + 1

        model = tiny_model("gpt2")
        model.transformer.wte = Shifted(97, 32)
        with pytest.raises(ModelError, match="embedding of GPT2LMHeadModel is a Shifted, not a plain table"):
            bind(model)


class TestSubclasses:
    def test_one_that_keeps_the_forward_pass_runs(self) -> None:
        class Mine(transformers.LlamaForCausalLM):
            def summary(self) -> str:
                return "mine"

        plain = tiny_model("llama")
        mine = Mine(plain.config)
        mine.load_state_dict(plain.state_dict())
        documents = random_documents((12, 9, 20))
        one, other = (capture(m, documents, progress=False) for m in (plain, mine))
        for site, moments in one.weight_gradients.items():
            assert torch.equal(moments.scatter, other.weight_gradients[site].scatter), site
        assert other.metadata["model"]["family"] == "llama"

    def test_one_with_a_forward_pass_of_its_own(self) -> None:
        class Scaled(transformers.LlamaForCausalLM):
            def forward(self, *args: Any, **kwargs: Any) -> Any:
                return super().forward(*args, **kwargs)

        with pytest.raises(ModelError, match=r"Scaled overrides the forward pass of LlamaForCausalLM.*leaves forward"):
            bind(Scaled(tiny_model("llama").config))

    def test_another_block(self) -> None:
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer

        class Scaled(LlamaDecoderLayer):
            def forward(self, *args: Any, **kwargs: Any) -> Any:
                return 0.5 * super().forward(*args, **kwargs)

        model = tiny_model("llama")
        model.model.layers[1].__class__ = Scaled
        with pytest.raises(
            ModelError, match="block 1 is a Scaled, whose forward pass is not that of LlamaDecoderLayer"
        ):
            bind(model)

    def test_another_library_under_the_same_name(self) -> None:
        other = type("LlamaForCausalLM", (nn.Module,), {"__module__": "transformers_modules.somebody.modeling"})
        with pytest.raises(ModelError, match=r"not the one of transformers but code of its own \(transformers_modules"):
            bind(other())


class TestOthers:
    def test_a_bare_backbone(self) -> None:
        for kind in ("llama", "gpt2"):
            body = tiny_model(kind).base_model
            with pytest.raises(ModelError, match=rf"no adapter for {type(body).__name__}; it has no unembedding"):
                bind(body)

    @pytest.mark.parametrize(
        ("name", "remedy"),
        [("OptimizedModule", "before torch.compile"), ("DistributedDataParallel", r"\.module"), ("DataParallel", "")],
    )
    def test_wrapped_models(self, name: str, remedy: str) -> None:
        with pytest.raises(ModelError, match=rf"no adapter for {name}; it wraps a model: pass .*{remedy}"):
            bind(type(name, (nn.Module,), {})())

    def test_encoder_decoder_and_encoder(self) -> None:
        config = transformers.T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
        with pytest.raises(ModelError, match="no adapter for T5ForConditionalGeneration; it is an encoder-decoder"):
            bind(on_meta("T5ForConditionalGeneration", config))
        config = transformers.ElectraConfig(**{**SMALL, "num_key_value_heads": None})
        with pytest.raises(ModelError, match="no adapter for ElectraForMaskedLM; supported: GPTNeoX"):
            bind(on_meta("ElectraForMaskedLM", config))

    def test_no_model_at_all(self) -> None:
        for thing in (None, 3, "EleutherAI/pythia-70m", types.SimpleNamespace(config=None)):
            with pytest.raises(ModelError, match=f"no adapter for {type(thing).__name__}; supported"):
                bind(thing)

    def test_a_bridge_of_an_unsupported_class(self) -> None:
        config = transformers.OPTConfig(
            vocab_size=40, max_position_embeddings=32, hidden_size=16, ffn_dim=16, num_hidden_layers=1,
            num_attention_heads=2, word_embed_proj_dim=16,
        )  # fmt: skip
        config.architectures = ["OPTForCausalLM"]
        bridge = as_bridge(transformers.OPTForCausalLM(config).eval())
        with pytest.raises(ModelError, match="no adapter for a TransformerBridge of OPTForCausalLM; supported"):
            bind(bridge)

    def test_attention_in_both_directions(self) -> None:
        with pytest.raises(ModelError, match="use_bidirectional_attention"):
            bind(tiny_model("gemma3", use_bidirectional_attention=True))

    def test_every_supported_class_is_one_of_transformers(self) -> None:
        assert {name for name in SUPPORTED_CLASSES if not hasattr(transformers, name)} == set()
        assert len(SUPPORTED_CLASSES) == len(set(SUPPORTED_CLASSES)) == 15
