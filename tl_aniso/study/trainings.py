"""Models that a config calls trainings of one: refused before anything is run where they cannot be."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tl_aniso.errors import ConfigError
from tl_aniso.study.config import StudyConfig
from tl_aniso.study.outline import ModelOutline

__all__ = ["refuse_unlike_trainings"]


def refuse_unlike_trainings(models: Sequence[ModelOutline], config: StudyConfig) -> None:
    """Trainings of one architecture have family, objective, width and depth in common, as far as configs say it.

    Raises:
        ConfigError: two members that differ, naming both.
    """
    named = {model.entry.name: model for model in models}
    for name, members in config.trainings:
        for one, other in pairwise(members):
            known = _facts(named[one], config), _facts(named[other], config)
            differ = [
                f"{what} ({a}, {b})"
                for what, a, b in ((key, known[0][key], known[1][key]) for key in known[0])
                if a is not None and b is not None and a != b
            ]
            if differ:
                raise ConfigError(
                    f"trainings: {name}: {one} and {other} are no trainings of one architecture: they differ in "
                    f"{', '.join(differ)}; give each a name of its own, or leave them out of trainings"
                )


def _facts(model: ModelOutline, config: StudyConfig) -> dict[str, Any]:
    found, size = model.source.config(), model.estimate
    names = getattr(found, "architectures", None) or [None]
    made_for = None if names[0] is None else "masked" if str(names[0]).endswith("ForMaskedLM") else "causal"
    return {
        "family": getattr(found, "model_type", None),
        "objective": config.objective or made_for,
        "width": getattr(found, "hidden_size", None) if size is None else size.d_model,
        "depth": getattr(found, "num_hidden_layers", None) if size is None else size.n_layers,
    }
