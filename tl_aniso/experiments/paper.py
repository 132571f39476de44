"""All ten models of arXiv:2604.08764, and its table: R, E and excess of each, early and late."""

import argparse
import sys
from contextlib import nullcontext

import numpy as np
import pandas as pd

from tl_aniso.commands.output import print_table
from tl_aniso.commands.study import print_claims, print_outline
from tl_aniso.errors import ConfigError, TlAnisoError
from tl_aniso.experiments.families import family_config
from tl_aniso.experiments.smoke import smoke_hub
from tl_aniso.study import Study, read_config
from tl_aniso.study.claims import points
from tl_aniso.study.devices import check_device

__all__ = ["paper_table", "run_paper"]

_CONTROLS = ("input_energy", "shuffled_labels")


def paper_table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a model and phase: weight gradients of its blocks.

    E and delta IsoScore* are means over sites and checkpoints, R and excess geometric means; step 0 is left out.
    R of models of different widths cannot be compared; E at equal k/d and excess can.
    """
    rows = points(frame)
    rows = rows[rows["site"].str.startswith("blocks.") & (rows["gradient"] == "weight") & (rows["step"] != 0)]
    found = []
    for (model, phase), group in rows.groupby(["model", "phase"], sort=False, dropna=False):
        row: dict[str, object] = {"model": model, "phase": phase, "checkpoints": group["revision"].nunique()}
        row["E"] = group[(group["measure"] == "energy_share") & (group["control"] == "none")]["value"].mean()
        row["R"] = _geometric(group[(group["measure"] == "r_energy") & (group["control"] == "normal")]["value"])
        for control in _CONTROLS:
            excess = group[(group["measure"] == "excess") & (group["control"] == control)]["value"]
            row[f"excess over {control}"] = _geometric(excess)
        delta = group[(group["measure"] == "delta_isoscore_star") & (group["control"] == "normal")]
        row["delta IsoScore*"] = delta["value"].mean()
        found.append(row)
    return pd.DataFrame(found)


def _geometric(values: pd.Series) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(values.to_numpy(dtype=float))
    logs = logs[np.isfinite(logs)]
    return float(np.exp(logs.mean())) if len(logs) else float("nan")


def run_paper(options: argparse.Namespace) -> int:
    """What ``experiments/paper.py`` does; returns its exit code."""
    try:
        config = read_config(options.config).with_device(options.device)
        check_device(config.device)
        names = [entry.source for entry in config.models]
        with smoke_hub(names) if options.smoke else nullcontext((None, names)) as (text, _):
            if options.smoke:
                config = read_config(
                    family_config(names, text=str(text), checkpoints="all", device=config.device, smoke=True)
                )
            study = Study(config, options.out)
            print_outline(study.outline(), "The ten models of the paper")
            table = paper_table(study.run())
            page = study.report()
        table.to_csv(options.out / "paper.csv", index=False)
        print_table(table, "weight gradients of the blocks, by model and phase")
        print_claims(study.claims)
        print(f"\n{page}: claims and controls; {options.out / 'paper.csv'}: the table")
    except TlAnisoError as error:
        print(f"paper.py: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0
