"""Every public plot: a function from a tidy frame to a plotly figure, pure and quick."""

from tl_aniso.viz.plots.energy import energy_by_layer, energy_by_step
from tl_aniso.viz.plots.forest import claims_forest
from tl_aniso.viz.plots.frequency import frequency_scatter
from tl_aniso.viz.plots.geometry import curvature_by_layer, local_energy_by_layer
from tl_aniso.viz.plots.heat_maps import energy_heat_map, isotropy_heat_map
from tl_aniso.viz.plots.isotropy import isotropy_by_layer, isotropy_by_step
from tl_aniso.viz.plots.loss import loss_by_step
from tl_aniso.viz.plots.overlaps import angles_by_step, overlap_heat_map
from tl_aniso.viz.plots.spectrum import ablation_spectrum
from tl_aniso.viz.plots.trajectories import energy_trajectories

__all__ = [
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
]
