"""From a model and text to sums: the only room that knows a model."""

from tl_aniso.capturing.run import capture
from tl_aniso.capturing.store import Capture

__all__ = ["Capture", "capture"]
