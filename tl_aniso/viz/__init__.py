"""What results look like: figures, a reading in words, and one page that holds both."""

from tl_aniso.viz.figures import (
    energy_by_layer,
    energy_by_step,
    energy_heat_map,
    isotropy_by_layer,
    isotropy_by_step,
    loss_by_step,
)
from tl_aniso.viz.reading import Finding, Reading, read_frame
from tl_aniso.viz.report import write_report

__all__ = [
    "Finding",
    "Reading",
    "energy_by_layer",
    "energy_by_step",
    "energy_heat_map",
    "isotropy_by_layer",
    "isotropy_by_step",
    "loss_by_step",
    "read_frame",
    "write_report",
]
