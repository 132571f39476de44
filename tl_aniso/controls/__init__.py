"""Controls of gradient energy: their names, the planes that some compare with, and the model before any training."""

from tl_aniso.controls.fit import fit_control_planes
from tl_aniso.controls.names import CONTROLS
from tl_aniso.controls.planes import ControlPlanes
from tl_aniso.controls.untrained import reinitialised

__all__ = ["CONTROLS", "ControlPlanes", "fit_control_planes", "reinitialised"]
