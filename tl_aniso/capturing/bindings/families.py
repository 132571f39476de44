"""What distinguishes the supported architectures: names of modules, and where the residual after attention is read.

A family is data. A model whose modules carry the same names as another's, in the same roles, needs one more entry
and no code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

__all__ = ["FAMILIES", "Family"]

Fused = Literal["heads", "thirds"]


@dataclass(frozen=True)
class Family:
    """Where one architecture keeps its parts; dotted paths start at the model (body), the body, or a block.

    Attributes:
        name: lower-case family name, recorded in results.
        layer_class: class of a block.
        body: from the model to the module that turns ids into the unembedding's input.
        layers: the list of blocks, from the body.
        embed: the token embedding, from the body.
        attention: readers of the attention sublayer, from a block, with the matrices each holds.
        attention_out: its writer.
        mlp: readers of the MLP, with the matrices each holds (where there are two, the rows of the first come first).
        mlp_out: its writer.
        mid: the module, from a block, whose first input is the residual after attention: the norm before the MLP, or
            the MLP itself where nothing stands before it.
        bridge_mid: the same module on a TransformerBridge's block.
        fused: how a projection that holds query, key and value orders its outputs: "heads", three parts within each
            head, or "thirds", all queries first, then all keys, then all values.
        bridge_fused: the projection on a TransformerBridge's block where it stays fused there; a bridge runs copies of
            the query, key and value parts of the others.
        parallel: the field of the config that says whether attention and MLP read the same residual.
        softcaps: whether the model soft-caps its logits where the config asks for it.
        masked: whether it is a masked-language model, whose tokens see all of their sequence.
        head: of a masked-language model, the modules around its decoder matrix, outermost first: path from the model,
            and class. The last one's output is the decoder's input.
        head_steps: of a head that applies the decoder itself, its layer and its norm in front of that.
        positions: the module, from the body, behind whose `padding_idx` positions begin.
    """

    name: str
    layer_class: str
    body: str = "model"
    layers: str = "layers"
    embed: str = "embed_tokens"
    attention: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("self_attn.q_proj", ("W_Q",)),
        ("self_attn.k_proj", ("W_K",)),
        ("self_attn.v_proj", ("W_V",)),
    )
    attention_out: str = "self_attn.o_proj"
    mlp: tuple[tuple[str, tuple[str, ...]], ...] = (("mlp.up_proj", ("W_in",)), ("mlp.gate_proj", ("W_gate",)))
    mlp_out: str = "mlp.down_proj"
    mid: str = "post_attention_layernorm"
    bridge_mid: str = "ln2"
    fused: Fused | None = None
    bridge_fused: str | None = None
    parallel: str | None = None
    softcaps: bool = False
    masked: bool = False
    head: tuple[tuple[str, str], ...] = ()
    head_steps: tuple[str, str] | None = None
    positions: str | None = None


_LLAMA = Family("llama", "LlamaDecoderLayer")
# Norms stand behind the sums. What the norm after attention puts out is what the MLP reads and what the skip around the
# MLP carries: that is the residual after attention, not the sum in front of the norm, which nothing else reads.
_BERT = Family(
    "bert",
    "BertLayer",
    body="bert",
    layers="encoder.layer",
    embed="embeddings.word_embeddings",
    attention=(
        ("attention.self.query", ("W_Q",)),
        ("attention.self.key", ("W_K",)),
        ("attention.self.value", ("W_V",)),
    ),
    attention_out="attention.output.dense",
    mlp=(("intermediate.dense", ("W_in",)),),
    mlp_out="output.dense",
    mid="intermediate",
    bridge_mid="mlp.in",
    masked=True,
    head=(
        ("cls", "BertOnlyMLMHead"),
        ("cls.predictions", "BertLMPredictionHead"),
        ("cls.predictions.transform", "BertPredictionHeadTransform"),
    ),
)
_ROBERTA = replace(
    _BERT,
    name="roberta",
    layer_class="RobertaLayer",
    body="roberta",
    head=(("lm_head", "RobertaLMHead"),),
    head_steps=("dense", "layer_norm"),
    positions="embeddings",
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "GPTNeoXForCausalLM": Family(
            "gptneox",
            "GPTNeoXLayer",
            body="gpt_neox",
            embed="embed_in",
            attention=(("attention.query_key_value", ("W_Q", "W_K", "W_V")),),
            attention_out="attention.dense",
            mlp=(("mlp.dense_h_to_4h", ("W_in",)),),
            mlp_out="mlp.dense_4h_to_h",
            fused="heads",
            parallel="use_parallel_residual",
        ),
        "LlamaForCausalLM": _LLAMA,
        "OlmoForCausalLM": replace(_LLAMA, name="olmo", layer_class="OlmoDecoderLayer"),
        # Norms stand behind the sublayers: what `post_attention_layernorm` sees is the branch, not the residual, and
        # the MLP reads the residual itself.
        "Olmo2ForCausalLM": replace(_LLAMA, name="olmo2", layer_class="Olmo2DecoderLayer", mid="mlp", bridge_mid="mlp"),
        "GPT2LMHeadModel": Family(
            "gpt2",
            "GPT2Block",
            body="transformer",
            layers="h",
            embed="wte",
            attention=(("attn.c_attn", ("W_Q", "W_K", "W_V")),),
            attention_out="attn.c_proj",
            mlp=(("mlp.c_fc", ("W_in",)),),
            mlp_out="mlp.c_proj",
            mid="ln_2",
            fused="thirds",
        ),
        # Norms on both sides: `post_attention_layernorm` is behind attention, `pre_feedforward_layernorm` reads mid.
        "Gemma3ForCausalLM": replace(
            _LLAMA, name="gemma3", layer_class="Gemma3DecoderLayer", mid="pre_feedforward_layernorm", softcaps=True
        ),
        "MistralForCausalLM": replace(_LLAMA, name="mistral", layer_class="MistralDecoderLayer"),
        "Qwen2ForCausalLM": replace(_LLAMA, name="qwen2", layer_class="Qwen2DecoderLayer"),
        "Qwen3ForCausalLM": replace(_LLAMA, name="qwen3", layer_class="Qwen3DecoderLayer"),
        # Llama's block, attending to both sides.
        "EuroBertForMaskedLM": replace(_LLAMA, name="eurobert", layer_class="EuroBertDecoderLayer", masked=True),
        "BertForMaskedLM": _BERT,
        "RobertaForMaskedLM": _ROBERTA,
        "CamembertForMaskedLM": replace(
            _ROBERTA, name="camembert", layer_class="CamembertLayer", head=(("lm_head", "CamembertLMHead"),)
        ),
        "XLMRobertaForMaskedLM": replace(
            _ROBERTA, name="xlmroberta", layer_class="XLMRobertaLayer", head=(("lm_head", "XLMRobertaLMHead"),)
        ),
        # Norms in front of the sublayers, but none before the first attention, which reads the residual as it is. Only
        # the input half of `Wi` goes through the activation; the gate multiplies it.
        "ModernBertForMaskedLM": Family(
            "modernbert",
            "ModernBertEncoderLayer",
            embed="embeddings.tok_embeddings",
            attention=(("attn.Wqkv", ("W_Q", "W_K", "W_V")),),
            attention_out="attn.Wo",
            mlp=(("mlp.Wi", ("W_in", "W_gate")),),
            mlp_out="mlp.Wo",
            mid="mlp_norm",
            fused="thirds",
            bridge_fused="attn.qkv",
            masked=True,
            head=(("head", "ModernBertPredictionHead"),),
        ),
    }
)
