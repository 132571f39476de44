"""Make the gallery: every public plot of `tl_aniso.viz` from small data, as docs/gallery/*.svg and docs/gallery.md.

    python docs/make_gallery.py                            # writes beside itself
    python docs/make_gallery.py --to DIRECTORY --theme dark --format png   # to look at

A decoder of three layers is trained here on seeded random text in seconds and measured as it learns; where only a long
study gives a table, its numbers are planted and the entry says so.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from tl_aniso import TangentProxies, ablation_spectra, capture, fit_tangent_proxies, viz
from tl_aniso.capturing import Capture
from tl_aniso.claims import judge
from tl_aniso.demo import one_thread
from tl_aniso.probe import EARLY_FRACTION, Probe
from tl_aniso.subspace import compare_over_steps
from tl_aniso.training import DecoderRecipe, train_decoder
from tl_aniso.viz.static import Look, save_all_static

HERE = Path(__file__).parent
RECIPE = DecoderRecipe(
    d_model=32, n_layers=3, n_heads=2, d_mlp=64, vocab_size=300, context=32, batch_size=8, n_steps=60, warmup=6
)
STEPS = (0, 2, 5, 10, 15, 20, 30, 45, 60)
TRAINED = "A decoder of three layers, trained here for 60 steps on seeded random text."
PLANTED = "Planted numbers: only a study gives this table."


@dataclass(frozen=True)
class Data:
    """What the figures are drawn from."""

    frame: pd.DataFrame
    losses: list[tuple[float, float]]
    proxies: dict[float, TangentProxies]
    frozen: TangentProxies
    last: Capture


@dataclass(frozen=True)
class Entry:
    """One picture of the gallery: what to read off, how it is called, and from what it is drawn."""

    reads: str
    code: str
    draw: Callable[[Data], Any]
    source: str = TRAINED


def text(n: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """Ids of a made-up language: Zipfian words, and half of the time the successor of the word before."""
    words = 20 + np.minimum(rng.zipf(1.3, (n, length)), 279) - 1
    successor = 20 + np.random.default_rng(7).permutation(280)
    for column in range(1, length):
        follows = rng.random(n) < 0.5
        words[follows, column] = successor[words[follows, column - 1] - 20]
    return words.astype(np.int64)


def made_data() -> Data:
    """Train, and measure as it learns. Takes some seconds."""
    rng = np.random.default_rng(0)
    windows, documents = torch.from_numpy(text(400, RECIPE.context, rng)), list(text(64, RECIPE.context, rng))
    probe = Probe(
        documents,
        early_until=EARLY_FRACTION * RECIPE.n_steps,
        batch_size=16,
        tokens_a_step=RECIPE.batch_size * RECIPE.context,
        name="tiny decoder",
    )
    proxies: dict[float, TangentProxies] = {}
    last: list[Capture] = []
    losses: list[tuple[float, float]] = []

    def checkpoint(step: int, model: Any, loss: float) -> None:
        probe.checkpoint(step, model)
        held = capture(model, documents, gradients=(), progress=False, batch_size=16)
        proxies[float(step)] = fit_tangent_proxies([held])
        last[:] = [held]

    with one_thread():
        train_decoder(
            RECIPE,
            windows,
            checkpoints=STEPS,
            on_checkpoint=checkpoint,
            on_step=lambda step, loss: losses.append((float(step), loss)),
        )
        frozen = probe.freeze()
    return Data(probe.frame(), losses, proxies, frozen, last[0])


def planted_types() -> pd.DataFrame:
    """Token types whose distance falls with frequency, by drift alone in one table and beyond it in the other."""
    rng = np.random.default_rng(1)
    counts = np.sort(rng.zipf(1.5, 600))[::-1].clip(max=50_000) - 1
    frames = []
    for table, left in (("W_E", 0.04), ("W_U", 0.0)):
        logs = np.log(np.where(counts > 0, counts, np.nan) / counts.sum())
        rest = 1.0 - left * (np.nan_to_num(logs, nan=-11.0) + 6) + rng.normal(0, 0.06, len(counts))
        raw = rest - 0.09 * (np.nan_to_num(logs, nan=-11.0) + 6)
        frames.append(
            pd.DataFrame(
                {
                    "site": "embed.W_E" if table == "W_E" else "unembed.W_U",
                    "table": table,
                    "token": [f" word{i}" for i in range(len(counts))],
                    "count": counts,
                    "log_frequency": logs,
                    "distance_raw": raw,
                    "distance_drift_removed": rest,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def planted_geometry() -> pd.DataFrame:
    """Curvature that grows with depth above a flat surrogate, and gradients in local planes beside three controls."""
    rng = np.random.default_rng(2)
    common = {"model": "planted model", "family": "", "objective": "causal", "revision": "", "step": 1000.0}
    common |= {"scope": "within", "variant": "", "seed": 0, "notes": ""}
    rows = []
    for layer in range(8):
        at = common | {"layer": float(layer), "site": f"blocks.{layer}.hook_resid_pre"}

        def add(
            measure: str, value: float, reach: float, control: str, other: float, at: Any = at, **more: Any
        ) -> None:
            rows.append(
                at
                | {"measure": measure, "value": value, "ci_low": value - reach, "ci_high": value + reach}
                | {
                    "control": control,
                    "control_value": other,
                    "control_low": other - reach,
                    "control_high": other + reach,
                }
                | {"gradient": "none", "group": "all", "radius": math.nan, **more}
            )

        for group, shift in (("all", 0.0), ("frequent", 0.1), ("rare", -0.15)):
            slope = 1.25 + 0.07 * layer + shift + rng.normal(0, 0.03)
            share = 0.12 + 0.02 * layer + shift / 5
            add("curvature_slope", slope, 0.12, "gaussian_surrogate", 1.02 + rng.normal(0, 0.02), group=group)
            add("visible_share", share, 0.02, "gaussian_surrogate", 0.08 + 0.004 * layer, group=group)
        energy = 0.18 + 0.02 * layer
        for control, other in (("gaussian_surrogate", 0.12), ("other_type", 0.15)):
            add("local_energy_share", energy, 0.02, control, other, gradient="activation")
            ratio = energy / (1 - energy) / (other / (1 - other))
            add("local_excess", ratio, 0.15, control, math.nan, gradient="activation")
        add("local_r", energy / (1 - energy) * 15, 0.4, "normal", math.nan, gradient="activation")
    return pd.DataFrame(rows)


def first_two(data: Data) -> pd.DataFrame:
    """Spectra of two sites of the last checkpoint, in the frozen planes."""
    sites = ("blocks.2.hook_resid_pre", "blocks.0.hook_resid_pre")
    return pd.concat([ablation_spectra(data.last, data.frozen, site) for site in sites], ignore_index=True)


def turning(data: Data) -> pd.DataFrame:
    """Planes of every two checkpoints, at the residual sites."""
    sites = [site for site in data.frozen if site.endswith("hook_resid_pre")]
    return compare_over_steps(data.proxies, sites=sites)


def at_the_end(data: Data) -> pd.DataFrame:
    """The last checkpoint alone."""
    return data.frame[data.frame["step"] == STEPS[-1]]


ENTRIES: dict[str, Entry] = {
    "claims_forest": Entry(
        "Which claims hold as stated (against a normal plane) and which beyond every control. An interval on the "
        "claimed side of its threshold holds; grey strokes are the tests against each control.",
        "claims_forest(judge(frame))",
        lambda data: viz.claims_forest(judge(data.frame)),
    ),
    "energy_trajectories": Entry(
        "When gradient energy gathers in the tangent plane, and whether its band leaves those of the controls: the "
        "exact null of the normal plane, and every other control from its lowest to its highest layer.",
        "energy_trajectories(frame)",
        lambda data: viz.energy_trajectories(data.frame),
    ),
    "energy_by_step": Entry(
        "The same curves without bands, every control beside the true gradient.",
        "energy_by_step(frame)",
        lambda data: viz.energy_by_step(data.frame),
    ),
    "energy_by_layer": Entry(
        "In which layers R is large at one checkpoint, with every site and its interval, beside every control.",
        'energy_by_layer(frame[frame["step"] == 60])',
        lambda data: viz.energy_by_layer(at_the_end(data)),
    ),
    "energy_heat_map": Entry(
        "Where in depth and training R, E or the excess over a control is large; excess turns colour at 1.",
        "energy_heat_map(frame)",
        lambda data: viz.energy_heat_map(data.frame),
    ),
    "isotropy_heat_map": Entry(
        "Where and when taking out the tangent plane raises IsoScore* (delta above 0) more than taking out a normal "
        "plane; a second map has it in standard deviations over the drawn planes.",
        "isotropy_heat_map(frame)",
        lambda data: viz.isotropy_heat_map(data.frame),
    ),
    "isotropy_by_step": Entry(
        "IsoScore* as a model learns: before, without the tangent plane, without normal planes and their band.",
        "isotropy_by_step(frame)",
        lambda data: viz.isotropy_by_step(data.frame),
    ),
    "isotropy_by_layer": Entry(
        "The same by depth, at one checkpoint.",
        'isotropy_by_layer(frame[frame["step"] == 60])',
        lambda data: viz.isotropy_by_layer(at_the_end(data)),
    ),
    "ablation_spectrum": Entry(
        "How many directions carry the variance at a site, and whether the tangent plane held just those: its removal "
        "takes the head of the spectrum away, that of a normal plane does not.",
        'ablation_spectrum(ablation_spectra(captured, proxies, "blocks.2.hook_resid_pre"))',
        lambda data: viz.ablation_spectrum(first_two(data)),
    ),
    "overlap_heat_map": Entry(
        "When planes stop turning: from there on the map is bright off its diagonal. Random planes of the same rank "
        "would overlap by the number in the title.",
        "overlap_heat_map(compare_over_steps({0: proxies_at_0, 500: proxies_at_500, 2000: proxies_at_2000}))",
        lambda data: viz.overlap_heat_map(turning(data)),
    ),
    "angles_by_step": Entry(
        "How far planes have turned from those of a reference step, beside the angle to planes drawn at random.",
        "angles_by_step(compare_over_steps({0: proxies_at_0, 500: proxies_at_500, 2000: proxies_at_2000}))",
        lambda data: viz.angles_by_step(turning(data)),
    ),
    "frequency_scatter": Entry(
        "Whether rare token types lie farther from the centroid, and whether that is left once the drift that all "
        "types share is removed; shuffled frequencies give the correlation named beside it.",
        "frequency_scatter(frame_of_token_types)",
        lambda data: viz.frequency_scatter(planted_types()),
        PLANTED,
    ),
    "curvature_by_layer": Entry(
        "Whether activations bend: a slope nearer to 2 than that of a Gaussian surrogate, and the share of local "
        "energy that stands off the tangent plane.",
        'curvature_by_layer(pd.read_parquet("geometry.parquet"))',
        lambda data: viz.curvature_by_layer(planted_geometry()),
        PLANTED,
    ),
    "local_energy_by_layer": Entry(
        "Whether gradients lie in the tangent plane of their own neighbourhood, and more so than in planes that "
        "controls give.",
        'local_energy_by_layer(pd.read_parquet("geometry.parquet"))',
        lambda data: viz.local_energy_by_layer(planted_geometry()),
        PLANTED,
    ),
    "loss_by_step": Entry(
        "Whether the model had learned by the checkpoints measured.",
        "loss_by_step([(step, loss), ...])",
        lambda data: viz.loss_by_step(data.losses),
    ),
}


def page() -> str:
    """The text of docs/gallery.md."""
    parts = [
        "# Gallery\n",
        "Every public plot of `tl_aniso.viz`: what to read off it, and the code. A plot is a pure function from a tidy "
        "frame to a plotly figure; `frame` is that of `TangentEnergy`, of `AblationIsotropy`, or both concatenated. "
        "`save_static(figure, 'figure.pdf', width_mm=85)` writes SVG, PDF or PNG for papers. The pictures show what a "
        "figure shows at first; lists in it choose other models, sites and controls. This page is made by "
        "`python docs/make_gallery.py`.\n",
    ]
    for name, entry in ENTRIES.items():
        parts.append(f"## {name}\n")
        parts.append(f"{entry.reads}\n")
        parts.append(f"```python\nfrom tl_aniso.viz import {name}\n\nfigure = {entry.code}\n```\n")
        parts.append(f"![{name}](gallery/{name}.svg)\n")
        parts.append(f"*{entry.source}*\n")
    return "\n".join(parts)


def main() -> None:
    """Write pictures and page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=HERE, help="directory of gallery.md and gallery/")
    parser.add_argument("--format", choices=("svg", "png", "pdf"), default="svg")
    parser.add_argument("--theme", choices=("light", "dark"), nargs="+", default=["light"])
    parser.add_argument("--only", nargs="+", choices=tuple(ENTRIES), default=tuple(ENTRIES))
    arguments = parser.parse_args()
    data = made_data()
    figures = {name: ENTRIES[name].draw(data) for name in arguments.only}
    jobs = []
    for name, figure in figures.items():
        for theme in arguments.theme:
            file = f"{name}.{arguments.format}" if theme == "light" else f"{name}-{theme}.{arguments.format}"
            jobs.append((figure, arguments.to / "gallery" / file, Look(theme=theme)))
    save_all_static(jobs)
    (arguments.to / "gallery.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
