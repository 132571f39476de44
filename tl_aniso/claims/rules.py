"""The rules of ``data/claims.yaml``, checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tl_aniso.claims.schema import Reader, read_rules

__all__ = ["Alike", "ClaimRule", "Enough", "Often", "Rules", "load_rules"]

_FORMAT = 1
TESTS = ("level", "fall", "depth", "contrast")
QUANTITIES = ("energy", "isotropy")
GRADIENTS = ("weight", "activation", "none")
PHASES = ("any", "early", "late")
SIDES = ("above", "below")
ALIGNMENTS = ("tokens", "progress")


@dataclass(frozen=True)
class Enough:
    """What must have been measured before anything is said: counts, and shares of sites and of models."""

    runs: int
    models: int
    steps: int
    layers: int
    layers_alone: int
    sites: float
    share_of_models: float


@dataclass(frozen=True)
class Alike:
    """Within which tolerance two measurements count as alike."""

    rank_ratio: float
    rows: float
    tokens: float
    progress: float


@dataclass(frozen=True)
class Often:
    """A ratio that must be reached in a share of models."""

    ratio: float
    share_of_models: float


@dataclass(frozen=True)
class ClaimRule:
    """The rule of one claim.

    Attributes:
        name: "C1", "C2", ...
        statement: what is claimed.
        test: "level", "fall" (early less late), "depth" (rank correlation with layer) or "contrast" (encoder less
            decoder).
        gradients: kinds of gradient judged, by quantity ("energy" or "isotropy").
        threshold: by quantity; of ratios, differences or correlations.
        side: on which side of the threshold the interval must lie: "above" or "below".
        phase: checkpoints that enter: "any", "early" or "late".
        stays: whether the late effect must still lie above its own null (ratio 1, difference 0).
        exists: whether the effect whose course or contrast is judged must lie above its own null.
        often: for all models together, a ratio that a share of them must reach.
        alignments: along which encoders and decoders are matched: "tokens", "progress".
    """

    name: str
    statement: str
    test: str
    gradients: Mapping[str, tuple[str, ...]]
    threshold: Mapping[str, float]
    side: str
    phase: str = "any"
    stays: bool = False
    exists: bool = False
    often: Often | None = None
    alignments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rules:
    """All rules, and where they came from.

    Attributes:
        level: confidence of every interval.
        enough: what must have been measured.
        alike: what must agree before two measurements are compared.
        after_step: checkpoints up to this step are not training.
        sites: endings of site names that enter, by kind of gradient.
        controls: controls beside the normal one, by quantity.
        needs: controls without which nothing is said beyond controls, by quantity and kind of gradient.
        claims: the claims, by name.
        source: the file.
        digest: SHA-256 of the file's text, so that a report can say by which rules it was judged.
    """

    level: float
    enough: Enough
    alike: Alike
    after_step: float
    sites: Mapping[str, tuple[str, ...]]
    controls: Mapping[str, tuple[str, ...]]
    needs: Mapping[str, Mapping[str, tuple[str, ...]]]
    claims: Mapping[str, ClaimRule]
    source: str
    digest: str


def load_rules(path: Any = None) -> Rules:
    """The rules of a YAML file; without a path, those of the library (``data/claims.yaml``, ``docs/claims.md``).

    Args:
        path: of a file in the same form.

    Raises:
        TlAnisoError: a file that cannot be read or is no YAML, unknown, missing or repeated keys, values of the wrong
            kind or out of bounds; the message names the place in the file.

    Example:
        >>> from tl_aniso.claims import load_rules
        >>> rules = load_rules()
        >>> rules.claims["C1"].threshold, rules.level
        ({'energy': 1.0}, 0.95)
    """
    return _rules(*read_rules(path, "claims.yaml"))


def _rules(top: Reader, digest: str) -> Rules:
    top.keys("format", "level", "enough", "alike", "after_step", "sites", "controls", "needs", "claims")
    if top.value("format") != _FORMAT:
        raise top.wrong("format", f"must be {_FORMAT}, the form that this version reads")
    enough, alike = top.inner("enough"), top.inner("alike")
    counts, shares = ("runs", "models", "steps", "layers", "layers_alone"), ("sites", "share_of_models")
    enough.keys(*counts, *shares)
    alike.keys("rank_ratio", "rows", "tokens", "progress")
    least = {"runs": 2, "models": 2, "steps": 1, "layers": 3, "layers_alone": 5}  # fewer have no interval
    sites, controls, needs = top.inner("sites"), top.inner("controls"), top.inner("needs")
    sites.keys(*GRADIENTS)
    controls.keys(*QUANTITIES)
    needs.keys(*QUANTITIES)
    known = {quantity: controls.names(quantity) for quantity in QUANTITIES}
    needed: dict[str, dict[str, tuple[str, ...]]] = {}
    for quantity in QUANTITIES:
        by_gradient = needs.inner(quantity)
        by_gradient.keys(optional=GRADIENTS)
        needed[quantity] = {kind: by_gradient.names(kind, among=known[quantity]) for kind in by_gradient.given}
    claims = top.inner("claims")
    found = {name: _claim(claims.inner(name), name) for name in claims.given}
    for rule in found.values():
        for quantity, kinds in rule.gradients.items():
            lacking = [kind for kind in kinds if kind not in needed[quantity]]
            if lacking:
                raise needs.wrong(quantity, f"says nothing of {lacking[0]}, which claims.{rule.name} judges")
    return Rules(
        level=top.number("level", 0.5, 1.0, open_ends=True),
        enough=Enough(
            *(enough.integer(name, least[name]) for name in counts),
            *(enough.number(name, 0.0, 1.0) for name in shares),
        ),
        alike=Alike(**{name: alike.number(name, 0.0, 1.0) for name in alike.given}),
        after_step=top.number("after_step"),
        sites={kind: sites.names(kind) for kind in GRADIENTS},
        controls=known,
        needs=needed,
        claims=found,
        source=top.source,
        digest=digest,
    )


def _claim(given: Reader, name: str) -> ClaimRule:
    given.keys(
        "statement",
        "test",
        "threshold",
        "side",
        "gradients",
        optional=("phase", "stays", "exists", "often", "alignments"),
    )
    test = given.choice("test", TESTS)
    gradients = given.inner("gradients")
    gradients.keys(optional=QUANTITIES)
    kinds = {quantity: gradients.names(quantity, among=GRADIENTS) for quantity in gradients.given}
    if not kinds:
        raise given.wrong("gradients", f"must name gradients of {' or '.join(QUANTITIES)}")
    if "none" in kinds.get("energy", ()):
        raise gradients.wrong("energy", "cannot hold none: activations have no gradient energy")
    phase = given.choice("phase", PHASES) if "phase" in given.given else "any"
    if test in ("fall", "contrast") and "phase" in given.given:
        raise given.wrong("phase", f"has no meaning where test is {test}")
    if ("alignments" in given.given) != (test == "contrast"):
        raise given.wrong("alignments", "goes with test: contrast, and with no other")
    if test == "contrast" and set(kinds) != {"energy"}:
        raise given.wrong("gradients", "must be of energy alone where test is contrast")
    stays = given.flag("stays") if "stays" in given.given else False
    if stays and test != "fall":
        raise given.wrong("stays", "goes with test: fall, and with no other")
    exists = given.flag("exists") if "exists" in given.given else False
    if exists and test not in ("depth", "contrast"):
        raise given.wrong("exists", "goes with test: depth or contrast, and with no other")
    often = None
    if "often" in given.given:
        if test != "level" or set(kinds) != {"energy"}:
            raise given.wrong("often", "goes with test: level of energy, and with no other")
        inner = given.inner("often")
        inner.keys("ratio", "share_of_models")
        often = Often(inner.number("ratio", 0.0), inner.number("share_of_models", 0.0, 1.0))
    return ClaimRule(
        name=name,
        statement=given.text("statement"),
        test=test,
        gradients=kinds,
        threshold=_thresholds(given, test, tuple(kinds)),
        side=given.choice("side", SIDES),
        phase=phase,
        stays=stays,
        exists=exists,
        often=often,
        alignments=given.names("alignments", among=ALIGNMENTS) if test == "contrast" else (),
    )


def _thresholds(given: Reader, test: str, quantities: tuple[str, ...]) -> dict[str, float]:
    if isinstance(given.value("threshold"), Mapping):
        inner = given.inner("threshold")
        inner.keys(*quantities)
        found = {quantity: inner.number(quantity) for quantity in quantities}
    else:
        found = dict.fromkeys(quantities, given.number("threshold"))
    if test != "depth" and found.get("energy", 1.0) <= 0:
        raise given.wrong("threshold", "of energy is a ratio and must be above 0")
    if test == "depth" and not all(-1 < value < 1 for value in found.values()):
        raise given.wrong("threshold", "is a correlation and must lie between -1 and 1")
    return found
