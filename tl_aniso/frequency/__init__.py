"""Whether frequent token types vary less, with controls: ``docs/frequency.md``."""

from tl_aniso.frequency.capture import type_capture
from tl_aniso.frequency.result import FrequencyVariance
from tl_aniso.frequency.store import TypeCapture
from tl_aniso.frequency.type_moments import TypeMoments
from tl_aniso.frequency.variance import frequency_variance

__all__ = ["FrequencyVariance", "TypeCapture", "TypeMoments", "frequency_variance", "type_capture"]
