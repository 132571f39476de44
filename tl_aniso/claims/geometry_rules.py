"""The rules of ``data/claims_geometry.yaml``, checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tl_aniso.claims.rules import GRADIENTS, SIDES
from tl_aniso.claims.schema import Reader, read_rules

__all__ = ["GeometryClaim", "GeometryRules", "Part", "Quantity", "load_geometry_rules"]

_FORMAT = 1
SCALES = ("correlation", "difference", "slope", "ratio")
VERDICTS = ("as_stated", "beyond_controls", "shown")
WAYS = ("p_value", "control", "difference", "value")
SCOPES = ("over_checkpoints", "within")


@dataclass(frozen=True)
class GeometryEnough:
    """What must have been measured before anything is said: counts, and shares of sites and of models."""

    runs: int
    models: int
    steps: int
    types: int
    sites: float
    share_of_models: float


@dataclass(frozen=True)
class Part:
    """One of the statements that a claim is made of.

    Attributes:
        name: of the part.
        measure: of the rows that the effect is in.
        variant: of these rows.
        group: of these rows.
        control: of these rows.
        scale: "correlation", "difference", "slope" or "ratio" (judged by logarithms).
        side: of the threshold on which the interval must lie, "above" or "below".
        threshold: on the measure's own scale.
        verdict: "as_stated" (decides both), "beyond_controls" (decides that one) or "shown" (decides none).
        beside: a number shown beside the effect, of the paper or of theory; None for none.
        controls: how each is passed: "p_value", "control", "difference" or "value"; the first that was measured.
        controls_measure: of the rows that controls are in.
    """

    name: str
    measure: str
    variant: str
    group: str
    control: str
    scale: str
    side: str
    threshold: float
    verdict: str
    beside: float | None
    controls: Mapping[str, tuple[str, ...]]
    controls_measure: str


@dataclass(frozen=True)
class Quantity:
    """What is judged apart.

    Attributes:
        name: of the quantity.
        scope: "over_checkpoints" or "within" one.
        sites: endings of site names, by kind of gradient.
        parts: by name, the controls without which nothing is said beyond controls.
    """

    name: str
    scope: str
    sites: Mapping[str, tuple[str, ...]]
    parts: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class GeometryClaim:
    """The rule of one claim: its parts, and of which quantities they are asked."""

    name: str
    statement: str
    parts: Mapping[str, Part]
    quantities: Mapping[str, Quantity]


@dataclass(frozen=True)
class GeometryRules:
    """All rules about frequency and local geometry, and where they came from.

    Attributes:
        level: confidence of every interval.
        enough: what must have been measured.
        after_step: checkpoints up to this step are not training.
        claims: the claims, by name.
        source: the file.
        digest: SHA-256 of the file's text, so that a report can say by which rules it was judged.
    """

    level: float
    enough: GeometryEnough
    after_step: float
    claims: Mapping[str, GeometryClaim]
    source: str
    digest: str


def load_geometry_rules(path: Any = None) -> GeometryRules:
    """The rules of C6 to C8 in a YAML file; without a path, the library's (``data/claims_geometry.yaml``).

    Args:
        path: of a file in the same form.

    Raises:
        TlAnisoError: a file that cannot be read or is no YAML, unknown, missing or repeated keys, values of the wrong
            kind or out of bounds; the message names the place in the file.

    Example:
        >>> from tl_aniso.claims import load_geometry_rules
        >>> rules = load_geometry_rules()
        >>> rules.claims["C7"].parts["slope"].threshold, list(rules.claims)
        (1.0, ['C6', 'C7', 'C8'])
    """
    top, digest = read_rules(path, "claims_geometry.yaml")
    top.keys("format", "level", "enough", "after_step", "claims")
    if top.value("format") != _FORMAT:
        raise top.wrong("format", f"must be {_FORMAT}, the form that this version reads")
    enough, claims = top.inner("enough"), top.inner("claims")
    least = {"runs": 2, "models": 2, "steps": 1, "types": 4}  # fewer have no interval
    shares = ("sites", "share_of_models")
    enough.keys(*least, *shares)
    return GeometryRules(
        level=top.number("level", 0.5, 1.0, open_ends=True),
        enough=GeometryEnough(
            *(enough.integer(name, at_least) for name, at_least in least.items()),
            *(enough.number(name, 0.0, 1.0) for name in shares),
        ),
        after_step=top.number("after_step"),
        claims={name: _claim(claims.inner(name), name) for name in claims.given},
        source=top.source,
        digest=digest,
    )


def _claim(given: Reader, name: str) -> GeometryClaim:
    given.keys("statement", "parts", "quantities")
    inner, asked = given.inner("parts"), given.inner("quantities")
    parts = {part: _part(inner.inner(part), part) for part in inner.given}
    quantities = {quantity: _quantity(asked.inner(quantity), quantity, parts) for quantity in asked.given}
    return GeometryClaim(name, given.text("statement"), parts, quantities)


def _part(given: Reader, name: str) -> Part:
    given.keys(
        *("measure", "scale", "side", "threshold", "verdict", "controls"),
        optional=("variant", "group", "control", "beside", "controls_measure"),
    )
    scale = given.choice("scale", SCALES)
    threshold, controls = given.number("threshold"), given.inner("controls")
    if scale == "ratio" and threshold <= 0:
        raise given.wrong("threshold", "is a ratio and must be above 0")
    if scale == "correlation" and not -1 < threshold < 1:
        raise given.wrong("threshold", "is a correlation and must lie between -1 and 1")
    beside = given.number("beside") if "beside" in given.given else None
    if beside is not None and scale == "ratio" and beside <= 0:
        raise given.wrong("beside", "is a ratio and must be above 0")

    def text(key: str, default: str) -> str:
        return given.text(key) if key in given.given else default

    measure, control = given.text("measure"), text("control", "none")
    if control in controls.given:
        raise given.wrong("controls", f"holds {control}, which the effect itself is in")
    return Part(
        name=name,
        measure=measure,
        variant=text("variant", "raw"),
        group=text("group", "all"),
        control=control,
        scale=scale,
        side=given.choice("side", SIDES),
        threshold=threshold,
        verdict=given.choice("verdict", VERDICTS),
        beside=beside,
        controls={name: controls.names(name, among=WAYS) for name in controls.given},
        controls_measure=text("controls_measure", measure),
    )


def _quantity(given: Reader, name: str, known: Mapping[str, Part]) -> Quantity:
    given.keys("scope", "sites", "parts")
    sites, parts = given.inner("sites"), given.inner("parts")
    sites.keys(optional=GRADIENTS)
    parts.keys(optional=tuple(known))
    if not sites.given:
        raise given.wrong("sites", f"must name sites of {', '.join(GRADIENTS)}")
    if not any(known[part].verdict == "as_stated" for part in parts.given):
        raise given.wrong("parts", "holds none whose verdict is as_stated, so there would be nothing to say")
    return Quantity(
        name=name,
        scope=given.choice("scope", SCOPES),
        sites={gradient: sites.names(gradient) for gradient in sites.given},
        parts={part: parts.names(part, among=tuple(known[part].controls), empty=True) for part in parts.given},
    )
