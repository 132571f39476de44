"""EuroBERT: Llama's block with attention in both directions."""

from typing import Any

from tl_aniso.adapters.parts import LlamaArchitectureAdapter

__all__ = ["EuroBertAdapter"]


class EuroBertAdapter(LlamaArchitectureAdapter):
    """Adapter of ``EuroBertForMaskedLM``.

    The bridge computes attention itself here. Without padding Hugging Face hands it no mask, and it would then take the
    causal one.

    Example:
        >>> from tl_aniso.adapters import ARCHITECTURES
        >>> ARCHITECTURES["EuroBertForMaskedLM"].endswith(EuroBertAdapter.__name__)
        True
    """

    supports_generation = False
    supports_causal_loss = False  # the bridge's own loss is shifted by a token

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.cfg.attention_dir = "bidirectional"
        self.component_mapping["blocks"].submodules["attn"].is_causal = False
