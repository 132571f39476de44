"""What a study is to do: one YAML file, checked before anything is loaded; every message has the place in the file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import yaml

from tl_aniso.capturing.options import EXTRA_PASSES, GRADIENTS
from tl_aniso.checks import MOST_SEED, as_integer, as_list
from tl_aniso.controls.names import ALL, CLOSED_FORMS, CONTROLS
from tl_aniso.errors import ConfigError, TlAnisoError
from tl_aniso.strict_yaml import RepeatedKey, load_yaml
from tl_aniso.study.fields import Fields, near
from tl_aniso.study.values import count, flag, fraction, one_of, optional, ranks, sites, some_of, string

__all__ = ["Checkpoints", "EarlyUnit", "Geometry", "ModelEntry", "StudyConfig", "read_config"]

EarlyUnit = Literal["steps", "tokens", "checkpoints"]

OBJECTIVES = ("causal", "masked")
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class ModelEntry:
    """One model of a study.

    Attributes:
        name: what results call it.
        source: a directory of ``step*/`` model directories, a name of the registry, or a hub id.
        tokens_per_step: tokens that an optimiser step sees, where the source does not say.
    """

    name: str
    source: str
    tokens_per_step: int | None = None


@dataclass(frozen=True)
class Checkpoints:
    """Which checkpoints are measured: all of them, or the one choice that is not None.

    Attributes:
        steps: exactly these steps.
        log_spaced: so many, evenly spaced in log(1 + step), the first and the last among them.
        early: so many of the early ones, evenly spaced in log(1 + step).
        late: so many of the late ones, evenly spaced in steps.
    """

    steps: tuple[int, ...] | None = None
    log_spaced: int | None = None
    early: int | None = None
    late: int | None = None


@dataclass(frozen=True)
class Geometry:
    """What is asked about frequency and local geometry (C6 to C8).

    Attributes:
        sites: names or patterns of residual and weight sites; those of three blocks where None.
        text: as the study's; that one where None. Frequency needs more text than gradients.
        n_tokens: tokens of it, at most.
        checkpoints: at most so many of the measured ones, evenly spread; all where None.
        n_min: occurrences that a token type must have in correlations with frequency.
        n_types: frequent types, and as many rare ones, whose local geometry is measured.
        n_local: occurrences that each of these must have.
    """

    sites: tuple[str, ...] | None = None
    text: str | None = None
    n_tokens: int | None = None
    checkpoints: int | None = None
    n_min: int = 8
    n_types: int = 30
    n_local: int = 100


@dataclass(frozen=True)
class StudyConfig:
    """A checked configuration; `read_config` makes it from YAML or a mapping, and its attributes are the file's keys.

    Attributes:
        models: at least one.
        checkpoints: which of each model's.
        text: a .txt or .jsonl file, or a recipe of `tl_aniso.text`: its name or a YAML file.
        seq_len: tokens of a document that are measured, at most.
        n_documents: documents measured, at most; all where None.
        n_tokens: tokens of all documents together, shared between the sources of a recipe; instead of `n_documents`.
        early_fraction: share of training that counts as early.
        early_unit: of what: steps, tokens or checkpoints.
        rank: of the tangent proxies, or several; min(16, d // 4) where None.
        gradients: "activation" and "weight".
        controls: names of controls, or "all".
        extra_passes: "shuffled_labels" and "permuted_tokens", which may stand among the controls as well.
        objective: None for what each model was made for, or "causal" or "masked".
        sites: names or patterns; every site where None.
        dtype: "float32", or "bfloat16" under autocast.
        device: where models are moved; the processor where None.
        batch_size: sequences in a batch; changes speed, not results.
        seed: of every draw.
        n_shards: shards of documents for intervals.
        n_controls: planes for the Monte Carlo p-value.
        late_fitted: also fit planes on the late checkpoints, and measure in both.
        keep_last: downloaded checkpoints that stay on disk; all where None.
        listings: a file of recorded listings, used instead of asking the hub which checkpoints there are.
        trainings: (name, models): models that are trainings of one architecture by several seeds, judged as one.
        geometry: what is asked about frequency and local geometry, in a pass of its own over each checkpoint; None for
            nothing.
        token_views: whether single tokens are looked at: a few documents of half B in the early planes, at the last
            early checkpoint and at the last.
    """

    models: tuple[ModelEntry, ...]
    text: str
    checkpoints: Checkpoints = Checkpoints()
    seq_len: int = 128
    n_documents: int | None = None
    n_tokens: int | None = None
    early_fraction: float = 0.3
    early_unit: EarlyUnit = "steps"
    rank: tuple[int, ...] | None = None
    gradients: tuple[str, ...] = GRADIENTS
    controls: tuple[str, ...] = CLOSED_FORMS
    extra_passes: tuple[str, ...] = ("shuffled_labels",)
    objective: str | None = None
    sites: tuple[str, ...] | None = None
    dtype: str = "float32"
    device: str | None = None
    batch_size: int | None = None
    seed: int = 0
    n_shards: int = 8
    n_controls: int = 999
    late_fitted: bool = True
    keep_last: int | None = None
    listings: str | None = None
    trainings: tuple[tuple[str, tuple[str, ...]], ...] = ()
    geometry: Geometry | None = None
    token_views: bool = True

    @property
    def all_controls(self) -> tuple[str, ...]:
        """Every control that is asked for, extra passes among them, in the order of tables."""
        asked = {*self.controls, *self.extra_passes}
        return tuple(name for name in CONTROLS if name in asked or ALL in asked)

    @property
    def strict(self) -> bool:
        """Whether each control must be had; of "all", those that cannot be had are left out with a note."""
        return ALL not in self.controls

    def with_device(self, device: str | None) -> "StudyConfig":
        """The same study on another device; the same where None."""
        return self if device is None else replace(self, device=device)


def read_config(given: Any) -> StudyConfig:
    """A configuration from a YAML file or from a mapping with the same keys.

    Relative paths in a file are relative to the file.

    Args:
        given: a path, a mapping, or a `StudyConfig`, which is handed back.

    Raises:
        ConfigError: no such file, not YAML, an unknown key (with its near matches), or a value that cannot be used.

    Example:
        >>> read_config({"models": ["checkpoints"], "text": "text.jsonl", "early_fraction": 0.1}).early_unit
        'steps'
        >>> read_config({"models": ["checkpoints"], "text": "a.txt", "earlyfraction": 0.1})
        Traceback (most recent call last):
        tl_aniso.errors.ConfigError: the config: unknown key 'earlyfraction'; did you mean early_fraction?
    """
    if isinstance(given, StudyConfig):
        return given
    if isinstance(given, Mapping):
        return _checked(given, "the config", None)
    if not isinstance(given, str | Path):
        raise ConfigError(f"a study's config is a YAML file or a mapping, got {type(given).__name__}")
    path = Path(given)
    try:
        found = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no config {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the config {path}: {error}") from error
    except RepeatedKey as error:
        line = "" if error.problem_mark is None else f" in line {error.problem_mark.line + 1}"
        raise ConfigError(f"{path}: {error.problem}{line}; leave one of the two") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, Mapping):
        kind = "nothing" if found is None else type(found).__name__
        raise ConfigError(f"{path} holds {kind}; the config of a study is keys and values")
    return _checked(found, str(path), path.parent)


def _checked(given: Mapping[Any, Any], where: str, base: Path | None) -> StudyConfig:
    fields = Fields(given, where)
    fields.refuse_unknown(tuple(StudyConfig.__dataclass_fields__))
    models = fields.required("models", lambda value: _models(value, base), "a list of models")
    twice = sorted({m.name for m in models if [n.name for n in models].count(m.name) > 1})
    if twice:
        raise ConfigError(f"{where}: models: {twice[0]!r} names two models; give each a name of its own")
    found: dict[str, Any] = {
        "models": models,
        "text": fields.required("text", lambda value: _text(value, base), "a path or the name of a recipe"),
    }
    for key, check in _CHECKS.items():
        if key in given:
            found[key] = fields.checked(key, check)
    if found.get("listings") is not None:
        found["listings"] = _placed(found["listings"], base)
    if found.get("n_tokens") is not None and found.get("n_documents") is not None:
        raise ConfigError(f"{where}: n_tokens and n_documents are both given; one of them says how much text there is")
    if "geometry" in given:
        found["geometry"] = fields.checked("geometry", lambda value: _geometry(value, base))
    if "trainings" in given:
        found["trainings"] = fields.checked("trainings", lambda value: _trainings(value, [m.name for m in models]))
    return StudyConfig(**found)


def _trainings(value: Any, models: Sequence[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Groups of models, each of which is in one group at most."""
    if not isinstance(value, Mapping):
        raise TlAnisoError(
            f"must name models by what they are trainings of, such as {{small: [small-0]}}, got {value!r}"
        )
    found: dict[str, tuple[str, ...]] = {}
    for name, several in value.items():
        members = tuple(str(member) for member in as_list(several) or [])
        unknown = [member for member in members if member not in models]
        if not members or unknown:
            what = f"holds {unknown[0]!r}{near(unknown[0], tuple(models))}" if unknown else "is empty"
            raise TlAnisoError(f"{name}: {what}; name models of this config ({', '.join(models)})")
        found[str(name)] = members
    every = [member for members in found.values() for member in members]
    twice = sorted({member for member in every if every.count(member) > 1})
    if twice:
        raise TlAnisoError(f"{twice[0]!r} stands in it twice")
    alone = sorted(set(found) & (set(models) - set(every)))
    if alone:
        raise TlAnisoError(f"{alone[0]!r} is a model of its own; give its trainings another name")
    return tuple(found.items())


def _models(value: Any, base: Path | None) -> tuple[ModelEntry, ...]:
    entries = [value] if isinstance(value, str | Mapping) else as_list(value) or []
    if not entries:
        raise TlAnisoError("name at least one: a directory of step*/ directories, a registry name or a hub id")
    return tuple(_model(entry, number, base) for number, entry in enumerate(entries))


def _model(entry: Any, number: int, base: Path | None) -> ModelEntry:
    if isinstance(entry, str) and entry:
        return ModelEntry(Path(entry).name or entry, _placed(entry, base))
    if not isinstance(entry, Mapping):
        raise TlAnisoError(f"[{number}] must be a name or keys (source, name, tokens_per_step), got {entry!r}")
    fields = Fields(entry, f"[{number}]")
    fields.refuse_unknown(tuple(ModelEntry.__dataclass_fields__))
    source = fields.required("source", string, "a directory, a registry name or a hub id")
    name = fields.checked("name", string) if "name" in entry else Path(source).name or source
    per_step = fields.checked("tokens_per_step", optional(count)) if "tokens_per_step" in entry else None
    return ModelEntry(name, _placed(source, base), per_step)


def _placed(source: str, base: Path | None) -> str:
    """A directory beside the config by its path from here; anything else, such as a hub id, as it is."""
    if base is not None and not Path(source).is_absolute() and (base / source).exists():
        return str(base / source)
    return source


def _text(value: Any, base: Path | None) -> str:
    return _placed(string(value), base)


def _choice(value: Any) -> Checkpoints:
    if value == "all":
        return Checkpoints()
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    if isinstance(value, list | tuple):
        if not value:
            raise TlAnisoError("is an empty list; name steps, or write all")
        return Checkpoints(steps=tuple(sorted({as_integer("a step", step, least=0) for step in value})))
    if isinstance(value, Mapping):
        fields = Fields(value, "")
        fields.refuse_unknown(("log_spaced", "early", "late"))
        counts: dict[str, Any] = {key: fields.checked(key, count) for key in value}
        if set(counts) == {"log_spaced"} or set(counts) == {"early", "late"}:
            return Checkpoints(**counts)
    raise TlAnisoError(
        f"must be all, a list of steps, {{log_spaced: how many}} or {{early: how many, late: how many}}, got {value!r}"
    )


def _geometry(value: Any, base: Path | None) -> Geometry | None:
    if value is None or isinstance(value, bool):
        return Geometry() if value else None
    if not isinstance(value, Mapping):
        known = ", ".join(Geometry.__dataclass_fields__)
        raise TlAnisoError(f"must be true, false or keys ({known}), got {value!r}")
    fields = Fields(value, "")
    fields.refuse_unknown(tuple(Geometry.__dataclass_fields__))
    checks: dict[str, Callable[[Any], Any]] = {
        "sites": optional(sites),
        "text": optional(lambda given: _text(given, base)),
        "n_tokens": optional(count),
        "checkpoints": optional(count),
        "n_min": lambda n: as_integer("it", n, least=2),  # one occurrence has no spread
        "n_types": lambda n: as_integer("it", n, least=2),
        "n_local": lambda n: as_integer("it", n, least=16),
    }
    return Geometry(**{key: fields.checked(key, check) for key, check in checks.items() if key in value})


def _unit(value: Any) -> EarlyUnit:
    return cast(EarlyUnit, one_of(get_args(EarlyUnit))(value))


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "checkpoints": _choice,
    "seq_len": lambda value: as_integer("it", value, least=2),
    "n_documents": optional(count),
    "early_fraction": fraction,
    "early_unit": _unit,
    "rank": optional(ranks),
    "gradients": some_of(GRADIENTS, least=1),
    "controls": some_of((*CONTROLS, ALL)),
    "extra_passes": some_of(EXTRA_PASSES),
    "objective": optional(one_of(OBJECTIVES)),
    "sites": optional(sites),
    "dtype": one_of(DTYPES),
    "device": optional(string),
    "batch_size": optional(count),
    "seed": lambda value: as_integer("it", value, least=0, most=MOST_SEED),
    "n_shards": lambda value: as_integer("it", value, least=1, most=1024),
    "n_controls": lambda value: as_integer("it", value, least=0),
    "late_fitted": flag,
    "token_views": flag,
    "keep_last": optional(count),
    "n_tokens": optional(count),
    "listings": optional(string),
}
