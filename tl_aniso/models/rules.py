"""Names by the families' naming rules alone: a listing to plan with where the hub cannot be asked.

The hub was not asked for any of this. Commits and sizes are unknown, so nothing of it can be loaded, and single names
may not exist: OLMo is known to lack some. A listing of the hub takes its place as soon as there is a connection.
"""

from pathlib import Path

from tl_aniso.models.listed import Listing, checkpoint_of, in_order
from tl_aniso.models.registry import REGISTRY, Entry
from tl_aniso.models.revisions import MAIN

__all__ = ["RECORDED_RULES", "from_naming_rules"]

# The listings of every model of the registry, as `save_listings` writes them.
RECORDED_RULES = Path(__file__).with_name("naming_rules.json")

_NOTE = "recorded from naming rules, not from the hub: commits and sizes are unknown, and single names may not exist"
_LISTED = "2026-12-01T00:00:00+00:00"

_PYTHIA = ("step0", *(f"step{2**power}" for power in range(10)), *(f"step{n}" for n in range(1000, 143_001, 1000)))
# Of 4,194,304 tokens, as the published names have it (41B at step 10,000), up to 3 T; every tenth of those published.
_OLMO = tuple(f"step{n}-tokens{n * 4_194_304 // 10**9}B" for n in range(10_000, 715_001, 10_000))
# Up to the tokens that the cards name: 2 T, 4 T and 11 T.
_NAMES = {
    "pythia-160m": _PYTHIA,
    "pythia-410m": _PYTHIA,
    "pythia-1b": _PYTHIA,
    "olmo-1b": _OLMO,
    "smollm2-135m": tuple(f"step-{n}" for n in range(240_000, 1_900_000, 240_000)),
    "smollm2-360m": tuple(f"step-{n}" for n in range(160_000, 2_540_000, 160_000)),
    "smollm2-1.7b": tuple(f"step-{n}" for n in range(125_000, 5_240_000, 125_000)),
}


def from_naming_rules(entry: Entry) -> Listing:
    """What is published if the rules hold: names and tokens, no commits. Of families without a rule, `main` alone.

    Example:
        >>> listing = from_naming_rules(REGISTRY["olmo-1b"])
        >>> listing.checkpoints[0].name, listing.final.name, listing.final.commit is None
        ('step10000-tokens41B', 'main', True)
    """
    names = [checkpoint_of(entry, entry.hub_id, name) for name in _NAMES.get(entry.name, ())]
    return Listing(
        entry, "naming rules", _NOTE, _LISTED, in_order([*names, checkpoint_of(entry, entry.final_id, MAIN)])
    )


if __name__ == "__main__":  # writes the file anew, after a change of the rules
    from tl_aniso.models.recorded import save_listings

    save_listings(RECORDED_RULES, map(from_naming_rules, REGISTRY.values()))
