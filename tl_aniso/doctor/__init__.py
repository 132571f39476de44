"""The library's promises, checked on a user's own model."""

from tl_aniso.doctor.check import Check, Diagnosis
from tl_aniso.doctor.run import diagnose

__all__ = ["Check", "Diagnosis", "diagnose"]
