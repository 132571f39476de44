"""Loading models: from the hub, from a directory, or from a GGUF file in one."""

from tl_aniso.models.kind import Objective
from tl_aniso.models.load import LoadedModel, load_model

__all__ = ["LoadedModel", "Objective", "load_model"]
