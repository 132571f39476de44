"""The one place that imports private parts of TransformerLens, and says which of them moved."""

from tl_aniso.adapters.versions import check_version, moved

try:
    check_version()
    from transformer_lens.factories import architecture_adapter_factory as factory
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
    from transformer_lens.model_bridge.generalized_components import (
        AttentionBridge,
        BlockBridge,
        EmbeddingBridge,
        LinearBridge,
        MLPBridge,
        NormalizationBridge,
        RotaryEmbeddingBridge,
        UnembeddingBridge,
    )
    from transformer_lens.model_bridge.supported_architectures.llama import LlamaArchitectureAdapter
    from transformer_lens.model_bridge.supported_architectures.roberta import RobertaArchitectureAdapter
    from transformer_lens.utilities import architectures
except ImportError as error:
    raise moved(str(error)) from error

__all__ = [
    "ArchitectureAdapter",
    "AttentionBridge",
    "BlockBridge",
    "EmbeddingBridge",
    "LinearBridge",
    "LlamaArchitectureAdapter",
    "MLPBridge",
    "NormalizationBridge",
    "RobertaArchitectureAdapter",
    "RotaryEmbeddingBridge",
    "TransformerBridge",
    "UnembeddingBridge",
    "architectures",
    "factory",
]
