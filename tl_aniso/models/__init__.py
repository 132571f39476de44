"""Models: a registry, the checkpoints that are published of them, and loading one.

Loading is from the hub, from a directory, or from a GGUF file in one. Public names load on first use: looking a name up
needs neither torch nor pandas.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "REGISTRY": "tl_aniso.models.registry",
    "Comparison": "tl_aniso.models.fingerprints",
    "Downloads": "tl_aniso.models.download",
    "Entry": "tl_aniso.models.registry",
    "Fingerprint": "tl_aniso.models.fingerprints",
    "ListedCheckpoint": "tl_aniso.models.listing",
    "Listing": "tl_aniso.models.listing",
    "LoadedModel": "tl_aniso.models.load",
    "Nearest": "tl_aniso.models.revisions",
    "Objective": "tl_aniso.models.kind",
    "Revision": "tl_aniso.models.revisions",
    "compare": "tl_aniso.models.fingerprints",
    "discover": "tl_aniso.models.listing",
    "find": "tl_aniso.models.registry",
    "fingerprint": "tl_aniso.models.fingerprints",
    "load_model": "tl_aniso.models.load",
    "nearest": "tl_aniso.models.revisions",
    "parse_revision": "tl_aniso.models.revisions",
    "read_listings": "tl_aniso.models.recorded",
    "save_listings": "tl_aniso.models.recorded",
    "with_sizes": "tl_aniso.models.listing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tl_aniso.models' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
