"""What results look like: figures, a reading in words, and one page that holds both."""

from tl_aniso.viz.plots import (
    ablation_spectrum,
    angles_by_step,
    claims_forest,
    curvature_by_layer,
    energy_by_layer,
    energy_by_step,
    energy_heat_map,
    energy_trajectories,
    frequency_scatter,
    isotropy_by_layer,
    isotropy_by_step,
    isotropy_heat_map,
    local_energy_by_layer,
    loss_by_step,
    overlap_heat_map,
)
from tl_aniso.viz.reading import Finding, Reading, read_frame
from tl_aniso.viz.report import write_report
from tl_aniso.viz.static import save_static

__all__ = [
    "Finding",
    "Reading",
    "ablation_spectrum",
    "angles_by_step",
    "claims_forest",
    "curvature_by_layer",
    "energy_by_layer",
    "energy_by_step",
    "energy_heat_map",
    "energy_trajectories",
    "frequency_scatter",
    "isotropy_by_layer",
    "isotropy_by_step",
    "isotropy_heat_map",
    "local_energy_by_layer",
    "loss_by_step",
    "overlap_heat_map",
    "read_frame",
    "save_static",
    "write_report",
]
