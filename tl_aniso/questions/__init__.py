"""Questions asked of captures: energy in tangent directions, isotropy after ablation."""

from tl_aniso.questions.ask import ablation_isotropy, tangent_energy

__all__ = ["ablation_isotropy", "tangent_energy"]
