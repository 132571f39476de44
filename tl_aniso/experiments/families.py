"""One family of published models at a time: discovery, plan, captures, planes, claims, pages."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tl_aniso.commands.study import print_claims, print_outline
from tl_aniso.errors import ConfigError, TlAnisoError
from tl_aniso.experiments.smoke import smoke_hub
from tl_aniso.study import Study
from tl_aniso.study.devices import check_device

__all__ = ["CONTROLS", "FAMILIES", "Family", "family_config", "parse_checkpoints", "run_family"]


@dataclass(frozen=True)
class Family:
    """Models that one script measures.

    Attributes:
        title: for people.
        sizes: size -> name in the registry.
        checkpoints: measured by default, as a study's config has them.
    """

    title: str
    sizes: Mapping[str, str]
    checkpoints: Any


_EARLY_AND_LATE = {"early": 6, "late": 4}

FAMILIES: Mapping[str, Family] = {
    "pythia": Family("Pythia", {"160m": "pythia-160m", "410m": "pythia-410m", "1b": "pythia-1b"}, _EARLY_AND_LATE),
    "olmo": Family("OLMo", {"1b": "olmo-1b"}, _EARLY_AND_LATE),
    "smollm2": Family("SmolLM2", {"360m": "smollm2-360m", "1.7b": "smollm2-1.7b"}, _EARLY_AND_LATE),
    "gaperon": Family("Gaperon", {"1.5b": "gaperon-1.5b"}, _EARLY_AND_LATE),
    "eurobert": Family("EuroBERT", {"210m": "eurobert-210m", "610m": "eurobert-610m"}, _EARLY_AND_LATE),
    "camembert": Family("ModernCamemBERT", {"base": "moderncamembert-base"}, _EARLY_AND_LATE),
}
SMOKE_SITES = ["blocks.*.attn.W_V", "blocks.*.hook_resid_pre"]
# What claims need beyond controls: docs/claims.md.
CONTROLS = ["input_energy", "sign_flip", "shuffled_g", "covariance_drawn", "next_k"]


def family_config(
    models: Sequence[str],
    *,
    text: str = "paper",
    checkpoints: Any = None,
    device: str | None = None,
    smoke: bool = False,
) -> dict[str, Any]:
    """The study of some models of the registry, as ``study.yaml`` would hold it.

    Example:
        >>> family_config(["pythia-160m"], checkpoints=[0, 1000])["checkpoints"]
        [0, 1000]
    """
    config: dict[str, Any] = {
        "models": list(models),
        "text": text,
        "checkpoints": _EARLY_AND_LATE if checkpoints is None else checkpoints,
        "controls": CONTROLS,
        "device": device,
    }
    if smoke:
        return {**config, "seq_len": 24, "rank": 4, "n_controls": 19, "n_shards": 4, "sites": SMOKE_SITES}
    return {**config, "seq_len": 512, "n_tokens": 500_000, "keep_last": 2}


def parse_checkpoints(text: str) -> Any:
    """Checkpoints as they are written behind ``--checkpoints``.

    Example:
        >>> parse_checkpoints("all"), parse_checkpoints("0,512,1000"), parse_checkpoints("early=4,late=2")
        ('all', [0, 512, 1000], {'early': 4, 'late': 2})
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    try:
        if parts == ["all"]:
            return "all"
        if any("=" in part for part in parts):
            return {name.strip(): int(count) for name, count in (part.split("=") for part in parts)}
        return [int(part) for part in parts]
    except ValueError:
        raise ConfigError(
            f"--checkpoints {text}: write all, steps such as 0,512,1000, or early=4,late=4, or log_spaced=8"
        ) from None


def run_family(name: str, arguments: Sequence[str] | None = None) -> int:
    """What ``experiments/<name>.py`` does; returns its exit code.

    Args:
        name: of the family.
        arguments: of the command line; those of the process by default.
    """
    family = FAMILIES[name]
    options = _parser(name, family).parse_args(arguments)
    models = list(family.sizes.values()) if options.size == "all" else [family.sizes[options.size]]
    try:
        checkpoints = None if options.checkpoints is None else parse_checkpoints(options.checkpoints)
        return run_models(models, options, checkpoints or family.checkpoints, title=family.title)
    except TlAnisoError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def run_models(models: Sequence[str], options: argparse.Namespace, checkpoints: Any, *, title: str) -> int:
    """Plan, run and report a study of models of the registry; with `options.smoke`, of tiny ones."""
    check_device(options.device)
    if options.smoke and options.text is not None:
        raise ConfigError("--text: --smoke measures on a text of its own; leave one of them out")
    with smoke_hub(models) if options.smoke else nullcontext((None, list(models))) as (text, _):
        config = family_config(
            models,
            text=(options.text or "paper") if text is None else str(text),
            checkpoints="all" if options.smoke and options.checkpoints is None else checkpoints,
            device=options.device,
            smoke=options.smoke,
        )
        study = Study(config, options.out)
        print_outline(study.outline(), title)
        frame = study.run()
        page = study.report()
    print_claims(study.claims)
    print(f"\n{len(frame)} rows in {options.out / 'results.parquet'}; claims and controls: {page}")
    return 0


def add_options(parser: argparse.ArgumentParser, out: str) -> None:
    """The options that every script has."""
    parser.add_argument(
        "--checkpoints", help="all; steps such as 0,512,1000; early=4,late=4; log_spaced=8 (early=6,late=4)"
    )
    parser.add_argument("--device", help="where models are moved, e.g. cuda; the processor by default")
    parser.add_argument("--smoke", action="store_true", help="tiny models of the same architecture, offline")
    parser.add_argument("--text", help="recipe or file of the text, without --smoke (paper: the merged corpus)")
    parser.add_argument("--out", type=Path, default=Path(out), help=f"directory of the study ({out})")


def _parser(name: str, family: Family) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"{name}.py", description=f"{family.title}: claims over its training.")
    first = next(iter(family.sizes))
    parser.add_argument("--size", choices=(*family.sizes, "all"), default=first, help=f"of the model ({first})")
    add_options(parser, f"{name}-out")
    return parser
