"""CamemBERT and XLM-RoBERTa: RoBERTa's modules under other class names."""

from tl_aniso.adapters.parts import RobertaArchitectureAdapter

__all__ = ["CamembertAdapter", "XLMRobertaAdapter"]


class CamembertAdapter(RobertaArchitectureAdapter):
    """Adapter of ``CamembertForMaskedLM``, whose every module has RoBERTa's name.

    Example:
        >>> CamembertAdapter.supports_generation
        False
    """

    supports_causal_loss = False  # the bridge's own loss is shifted by a token


class XLMRobertaAdapter(RobertaArchitectureAdapter):
    """Adapter of ``XLMRobertaForMaskedLM``, whose every module has RoBERTa's name.

    Example:
        >>> XLMRobertaAdapter.supports_generation
        False
    """

    supports_causal_loss = False  # the bridge's own loss is shifted by a token
