"""Local geometry on manifolds with known answers: closed forms, samples, and what does not follow (docs/theory.md)."""

from tl_aniso.theory.concentration import (
    concentration_effect,
    concentration_slope,
    energy_radius,
    leading_share,
    neighbour_moment,
    neighbour_share,
)
from tl_aniso.theory.density import Density, radial_density, radial_mean, radial_moment, radial_probability
from tl_aniso.theory.gradients import (
    Energies,
    Errors,
    GradientMoments,
    counterexample,
    gradient_moments,
    gradient_rows,
)
from tl_aniso.theory.known import KnownManifold
from tl_aniso.theory.manifold import Manifold, Sample
from tl_aniso.theory.quadratic import CurvatureEnergy, Paraboloid, SecondFundamentalForm, curvature_energy
from tl_aniso.theory.round import Cylinder, Sphere, Veronese

__all__ = [
    "CurvatureEnergy",
    "Cylinder",
    "Density",
    "Energies",
    "Errors",
    "GradientMoments",
    "KnownManifold",
    "Manifold",
    "Paraboloid",
    "Sample",
    "SecondFundamentalForm",
    "Sphere",
    "Veronese",
    "concentration_effect",
    "concentration_slope",
    "counterexample",
    "curvature_energy",
    "energy_radius",
    "gradient_moments",
    "gradient_rows",
    "leading_share",
    "neighbour_moment",
    "neighbour_share",
    "radial_density",
    "radial_mean",
    "radial_moment",
    "radial_probability",
]
