"""Local geometry on manifolds with known answers: closed forms, samples, and what they do not imply (docs/theory.md)."""

from tl_aniso.theory.density import Density, radial_density, radial_mean, radial_moment, radial_probability
from tl_aniso.theory.manifold import KnownManifold, Manifold, Sample
from tl_aniso.theory.quadratic import Paraboloid, SecondFundamentalForm, form_energies
from tl_aniso.theory.round import Cylinder, Sphere, Veronese

__all__ = [
    "Cylinder",
    "Density",
    "KnownManifold",
    "Manifold",
    "Paraboloid",
    "Sample",
    "SecondFundamentalForm",
    "Sphere",
    "Veronese",
    "form_energies",
    "radial_density",
    "radial_mean",
    "radial_moment",
    "radial_probability",
]
