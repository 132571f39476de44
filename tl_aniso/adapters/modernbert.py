"""ModernBERT: fused projections, local and global attention, no norm before the first attention."""

from typing import Any

from tl_aniso.adapters.parts import (
    ArchitectureAdapter,
    AttentionBridge,
    BlockBridge,
    EmbeddingBridge,
    LinearBridge,
    MLPBridge,
    NormalizationBridge,
    RotaryEmbeddingBridge,
    UnembeddingBridge,
)

__all__ = ["ModernBertAdapter"]


class ModernBertAdapter(ArchitectureAdapter):
    """Adapter of ``ModernBertForMaskedLM``.

    Attention is left to Hugging Face, which has a window and a rotary base of its own in each kind of layer.
    ``attn.qkv`` is fused (rows of Q, K, V), and so is ``mlp.in`` (rows of the input, then of the gate); there is no
    ``hook_q``.

    Example:
        >>> ModernBertAdapter.supports_fold_ln
        False
    """

    # The first attention reads the residual stream itself: there is no norm to fold into it, and it is not blind to the
    # mean, so writers cannot be centred either.
    supports_fold_ln = False
    supports_center_writing_weights = False
    supports_generation = False
    supports_causal_loss = False  # the bridge's own loss is shifted by a token
    # TransformerLens' component checks hand rotary positions to attention that computes them itself.
    _testing_eager = None
    _testing_wire_rotary = False

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.cfg.attention_dir = "bidirectional"
        self.cfg.normalization_type = "LN"
        self.cfg.uses_rms_norm = False
        self.cfg.positional_embedding_type = "rotary"
        self.cfg.gated_mlp = False  # the gate is half of mlp.in, not a matrix of its own
        self.cfg.attn_only = False
        self.cfg.final_rms = False
        conversions: dict[str, Any] = {}
        self.weight_processing_conversions = conversions
        self.component_mapping = {
            "embed": EmbeddingBridge(name="model.embeddings.tok_embeddings"),
            "embed_ln": self._norm("model.embeddings.norm"),
            "rotary_emb": RotaryEmbeddingBridge(name="model.rotary_emb"),
            "blocks": BlockBridge(name="model.layers", config=self.cfg, submodules=self._block()),
            "ln_final": self._norm("model.final_norm"),
            "mlm_head": LinearBridge(name="head.dense"),
            "mlm_head_ln": self._norm("head.norm"),
            "unembed": UnembeddingBridge(name="decoder"),
        }

    def _block(self) -> dict[str, Any]:
        attention = AttentionBridge(
            name="attn",
            config=self.cfg,
            submodules={"qkv": LinearBridge(name="Wqkv"), "o": LinearBridge(name="Wo")},
            maintain_native_attention=True,
            is_causal=False,
            fused_qkv=True,
        )
        mlp = MLPBridge(
            name="mlp",
            config=self.cfg,
            submodules={"in": LinearBridge(name="Wi"), "out": LinearBridge(name="Wo")},
        )
        return {"ln1": self._norm("attn_norm"), "attn": attention, "ln2": self._norm("mlp_norm"), "mlp": mlp}

    def _norm(self, name: str) -> Any:
        # Hugging Face's own norm runs, an Identity in the first block included.
        return NormalizationBridge(name=name, config=self.cfg, use_native_layernorm_autograd=True)
