"""Models: a registry, the checkpoints that are published of them, and loading one.

Loading is from the hub, from a directory, or from a GGUF file in one.
"""

from tl_aniso.models.download import Downloads
from tl_aniso.models.fingerprints import Comparison, Fingerprint, compare, fingerprint
from tl_aniso.models.kind import Objective
from tl_aniso.models.listing import ListedCheckpoint, Listing, discover, with_sizes
from tl_aniso.models.load import LoadedModel, load_model
from tl_aniso.models.recorded import read_listings, save_listings
from tl_aniso.models.registry import REGISTRY, Entry, find
from tl_aniso.models.revisions import Nearest, Revision, nearest, parse_revision

__all__ = [
    "REGISTRY",
    "Comparison",
    "Downloads",
    "Entry",
    "Fingerprint",
    "ListedCheckpoint",
    "Listing",
    "LoadedModel",
    "Nearest",
    "Objective",
    "Revision",
    "compare",
    "discover",
    "find",
    "fingerprint",
    "load_model",
    "nearest",
    "parse_revision",
    "read_listings",
    "save_listings",
    "with_sizes",
]
