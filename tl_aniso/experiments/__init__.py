"""The paper's experiments, behind the scripts of ``experiments/``: one family, all ten, or a pair trained here."""

from tl_aniso.experiments.families import FAMILIES, Family, family_config, run_family
from tl_aniso.experiments.local import local_config, run_local, train_pair

__all__ = ["FAMILIES", "Family", "family_config", "local_config", "run_family", "run_local", "train_pair"]
