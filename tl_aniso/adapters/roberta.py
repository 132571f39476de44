"""CamemBERT and XLM-RoBERTa: RoBERTa's modules under other class names."""

from tl_aniso.adapters.parts import RobertaArchitectureAdapter

__all__ = ["CamembertAdapter", "XLMRobertaAdapter"]


class CamembertAdapter(RobertaArchitectureAdapter):
    """Adapter of ``CamembertForMaskedLM``, whose every module has RoBERTa's name.

    Example:
        >>> CamembertAdapter.supports_generation
        False
    """

    supports_causal_loss = False
    applicable_phases = [1, 2, 3]  # noqa: RUF012 -- overrides a plain list; of them, only 4 writes text


class XLMRobertaAdapter(RobertaArchitectureAdapter):
    """Adapter of ``XLMRobertaForMaskedLM``, whose every module has RoBERTa's name.

    Example:
        >>> XLMRobertaAdapter.supports_generation
        False
    """

    supports_causal_loss = False
    applicable_phases = [1, 2, 3]  # noqa: RUF012 -- overrides a plain list; of them, only 4 writes text
