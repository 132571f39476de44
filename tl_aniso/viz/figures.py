"""The figures of energies, isotropy and loss under the name of the module that once held them all."""

from tl_aniso.viz.plots.energy import energy_by_layer, energy_by_step
from tl_aniso.viz.plots.heat_maps import energy_heat_map
from tl_aniso.viz.plots.isotropy import isotropy_by_layer, isotropy_by_step
from tl_aniso.viz.plots.loss import loss_by_step

__all__ = [
    "energy_by_layer",
    "energy_by_step",
    "energy_heat_map",
    "isotropy_by_layer",
    "isotropy_by_step",
    "loss_by_step",
]
