"""The page of a large study: how large it is, and how long a browser takes until its figures are drawn and answer.

10 models x 20 checkpoints x 24 layers, every reader and writer of a block and three sites of the residual stream, both
kinds of gradients, every control that a study measures by default: 2 million rows of random numbers, which nothing
can compress. The browser is the system's Chromium, without a network.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.table import Line
from tl_aniso.errors import TlAnisoError
from tl_aniso.viz.browser import find_browser
from tl_aniso.viz.report import write_page
from tl_aniso.viz.study_page import ModelPart, study_report

__all__ = ["measure", "synthetic"]

MEGABYTES, SECONDS = 15.0, 3.0
_WEIGHTS = ("attn.W_Q", "attn.W_K", "attn.W_V", "attn.W_O", "mlp.W_in", "mlp.W_gate", "mlp.W_out")
_STREAM = ("hook_resid_pre", "hook_resid_mid", "hook_resid_post")
_PLANES = ("covariance_drawn", "next_k", "late_fitted")
_CONTROLS = {
    "weight": ("shuffled_labels", *_PLANES, "input_energy", "sign_flip", "shuffled_g"),
    "activation": ("shuffled_labels", *_PLANES),
}
_RANK, _D = 16, 1024


def measure(repeats: int, say: Callable[[str], None]) -> list[Line]:
    """Write the page once, open it `repeats` times."""
    began = perf_counter()
    frames = [synthetic(f"model-{number}", seed=number) for number in range(10)]
    n_rows = sum(map(len, frames))
    say(f"report: {n_rows:,} rows made in {perf_counter() - began:.0f} s")
    began = perf_counter()
    late = pd.DataFrame(columns=["model", "gradient", "phase", "E", "E in late planes", "ratio"])
    parts = [ModelPart(frame["model"].iloc[0], frame) for frame in frames]
    page = study_report(parts, "not judged", late=late, rules="none", facts={"rows": n_rows})
    with tempfile.TemporaryDirectory() as place:
        path = write_page(Path(place) / "report.html", page)
        size = path.stat().st_size / 1e6
        say(f"report: page of {size:.1f} MB written in {perf_counter() - began:.0f} s")
        lines = [Line("page of 10 x 20 x 24, MB", [size], MEGABYTES)]
        return lines + _opened(path, repeats, say)


def _opened(path: Path, repeats: int, say: Callable[[str], None]) -> list[Line]:
    try:
        browser = find_browser()
    except TlAnisoError:
        say("report: no Chromium here, so how long the page takes to open was not measured")
        return []
    from playwright.sync_api import sync_playwright

    times = []
    with sync_playwright() as running:
        started = running.chromium.launch(executable_path=browser, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        for i in range(repeats + 1):
            context = started.new_context(offline=True, viewport={"width": 1200, "height": 900})
            tab = context.new_page()
            tab.goto("about:blank")
            session = context.new_cdp_session(tab)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
            began = perf_counter()
            tab.goto(path.as_uri(), wait_until="commit", timeout=120_000)
            # Filters answer from here on: the first figure is drawn, and the others follow one by one.
            tab.wait_for_selector("html[data-interactive]", state="attached", timeout=120_000)
            ready, busy = perf_counter() - began, _busy(session)
            tab.wait_for_selector("html[data-drawn]", state="attached", timeout=120_000)
            whole = perf_counter() - began
            if i:  # the first one warms up
                times.append(ready)
                say(
                    f"report: {i}/{repeats}, answers after {ready:.2f} s ({busy:.2f} s of them at work), all figures "
                    f"drawn after {whole:.2f} s ({_busy(session):.2f} s at work)"
                )
            context.close()
        started.close()
    return [Line("page answers after, s", times, SECONDS)]


def _busy(session: Any) -> float:
    """Seconds of the processor that the page's thread has had: on a loaded machine less than went by."""
    found = session.send("Performance.getMetrics")["metrics"]
    return float(next(entry["value"] for entry in found if entry["name"] == "TaskDuration"))


def synthetic(model: str, *, seed: int = 0, n_points: int = 20, n_layers: int = 24) -> pd.DataFrame:
    """Rows of a study of one model, as the questions make them, of random numbers.

    Args:
        model: its name.
        seed: of the numbers.
        n_points: checkpoints.
        n_layers: blocks.
    """
    random = np.random.default_rng(seed)
    parts: list[pd.DataFrame] = []
    for gradient, names in (("weight", _WEIGHTS), ("activation", _STREAM), ("none", _STREAM)):
        sites = [(f"blocks.{layer}.{name}", float(layer)) for layer in range(n_layers) for name in names]
        n = len(sites) * n_points
        common = {
            "step": np.repeat(np.arange(n_points) * 1000.0, len(sites)),
            "site": [site for site, _ in sites] * n_points,
            "layer": [layer for _, layer in sites] * n_points,
        }
        base = pd.DataFrame(common).assign(gradient=gradient, unit="sequence" if gradient == "weight" else "token")
        if gradient != "none":
            parts += _energies(base, gradient, n, random)
        parts += _isotropies(base, n, random)
    frame = pd.concat(parts, ignore_index=True)
    frame = frame.assign(model=model, rank=_RANK, held_out=True, objective="causal", family="llama")
    frame["revision"] = "step" + frame["step"].astype(int).astype(str)
    return frame.assign(tokens_seen=1000.0 * frame["step"], phase=np.where(frame["step"] < 6000, "early", "late"))


def _energies(base: pd.DataFrame, gradient: str, n: int, random: np.random.Generator) -> list[pd.DataFrame]:
    odds = _RANK / (_D - _RANK)
    r = np.exp(random.normal(1.5, 1, n))
    reach = np.exp(random.gamma(2, 0.1, n))
    e, ends = r * odds / (1 + r * odds), {"ci_low": r / reach, "ci_high": r * reach}
    shares = {name: value * odds / (1 + value * odds) for name, value in ends.items()}
    spread = {"null_mean": _RANK * (1 - e) / (_D - _RANK), "null_std": 0.01 * random.random(n)}
    parts = [
        base.assign(measure="energy_share", control="none", value=e, **shares, **spread),
        base.assign(measure="r_energy", control="normal", value=r, control_value=1.0, **ends),
    ]
    for control in _CONTROLS[gradient]:
        x, reach = np.exp(random.normal(0, 0.3, n)), np.exp(random.gamma(2, 0.05, n))
        c = r / x
        drawn = {"null_mean": c * odds / (1 + c * odds), "null_std": 0.01 * random.random(n)}
        beside = drawn if control == "covariance_drawn" else {}
        rows = base.assign(control=control)
        c_share = c * odds / (1 + c * odds)
        parts += [
            rows.assign(measure="energy_share", value=e, control_value=c_share, **shares, **beside),
            rows.assign(measure="r_energy", value=r, control_value=c, **ends),
            rows.assign(measure="excess", value=x, control_value=1.0, ci_low=x / reach, ci_high=x * reach),
        ]
        if control == "next_k":
            y = np.exp(random.normal(0, 0.3, n))
            given = {"value": y, "control_value": 1.0, "ci_low": y / reach, "ci_high": y * reach}
            parts.append(rows.assign(measure="share_per_variance", **given))
    return parts


def _isotropies(base: pd.DataFrame, n: int, random: np.random.Generator) -> list[pd.DataFrame]:
    parts = [base.assign(measure=name, control="none", value=random.random(n)) for name in _SPECTRUM]
    for measure in ("isoscore", "isoscore_star"):
        after = random.random(n)
        parts.append(base.assign(measure=measure, control="none", value=random.random(n)))
        for control in ("normal", *_PLANES):
            beside = after * random.random(n)
            drawn = {"null_std": 0.01 * random.random(n)} if control in ("normal", "covariance_drawn") else {}
            given = {"value": after, "control_value": beside, "null_mean": beside, **drawn}
            parts.append(base.assign(measure=measure, control=control, **given))
            if measure == "isoscore_star":
                less = {"measure": "delta_isoscore_star", "value": after - beside, "control_value": 0.0}
                parts.append(base.assign(control=control, **less))
    return parts


_SPECTRUM = ("participation_ratio", "effective_rank", "top_share")
