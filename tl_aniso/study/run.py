"""Run a plan, or what is left of it: captures, planes, captures in these planes, rows, one table."""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from tl_aniso.errors import TlAnisoWarning
from tl_aniso.progress import say, track
from tl_aniso.study.checkpoints import Checkpoint
from tl_aniso.study.config import StudyConfig
from tl_aniso.study.corpus import Corpus, freeze, text_source
from tl_aniso.study.differences import Member, write_differences
from tl_aniso.study.executors import Executor, Task
from tl_aniso.study.geometry import GEOMETRY, GeometryMember, geometry_of_model, take_geometry, write_frequency
from tl_aniso.study.outline import Outline
from tl_aniso.study.plan import ModelPlan, PlannedCapture, StudyPlan, plan_of
from tl_aniso.study.prints import compared
from tl_aniso.study.rows import FRAME, answer
from tl_aniso.study.store import Store, write_atomically
from tl_aniso.study.table import as_bytes, geometry_bytes, notes_of, read_table
from tl_aniso.study.tokens import TOKENS, take_tokens
from tl_aniso.study.work import Subject, fit_planes, take_fitting, take_measured, take_untrained

__all__ = ["PLAN", "RESULTS", "freeze_text", "run_plan", "write_plan"]

PLAN, RESULTS = "plan.json", "results.parquet"


def freeze_text(found: Outline, store: Store) -> StudyPlan:
    """Make the text into ids, once for each tokenizer, and complete the plan."""
    source, config = text_source(found.config.text), found.config
    corpora: list[Corpus] = []
    others: list[Corpus] = []
    geometry = config.geometry
    for model in found.models:
        tokenizer = model.source.tokenizer()
        sizes = {"seq_len": config.seq_len, "n_documents": config.n_documents, "n_tokens": config.n_tokens}
        asked: dict[str, Any] = {**sizes, "seed": config.seed}
        corpora.append(freeze(source, tokenizer, store, **asked))
        if geometry is not None and geometry.text is not None:
            more: dict[str, Any] = {**asked, "n_documents": None, "n_tokens": geometry.n_tokens}
            others.append(freeze(text_source(geometry.text), tokenizer, store, **more))
    return plan_of(found, corpora, others)


def write_plan(plan: StudyPlan, store: Store) -> None:
    """Write ``plan.json``."""
    text = json.dumps(plan.as_json(), indent=1, ensure_ascii=False)
    write_atomically(store.root / PLAN, (text + "\n").encode())


def run_plan(plan: StudyPlan, store: Store, executor: Executor, *, progress: bool) -> pd.DataFrame:
    """Make what is not there yet, stage by stage, and write ``results.parquet`` (and ``geometry.parquet``).

    Every entry is checked before it is used, so that one that was altered is made again. Nothing in the table depends
    on what was there before.

    Returns:
        The table, in the order of the plan: model, checkpoint, site.
    """
    config = plan.config
    with executor if isinstance(executor, AbstractContextManager) else nullcontext():
        _make_all(plan, _Run(plan, store, executor, progress))
    frame, notes = _joined(plan, store)
    facts = {
        "early_fraction": config.early_fraction,
        "early_unit": config.early_unit,
        "notes": notes,
    }
    write_atomically(store.root / RESULTS, as_bytes(frame, facts))
    _write_geometry(plan, store)
    return read_table(store.root / RESULTS)


def _write_geometry(plan: StudyPlan, store: Store) -> None:
    if plan.config.geometry is None:
        (store.root / GEOMETRY).unlink(missing_ok=True)  # of another config, and no part of this study
        return
    parts, notes = [], {}
    for model in plan.models:
        frequency = store.path("frames", str(model.frequency_key(plan.config)))
        frame, notes[model.name] = geometry_of_model(_members(model, plan.config, store), frequency, model.name)
        parts.append(frame)
    frame = pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)
    write_atomically(store.root / GEOMETRY, geometry_bytes(frame, {"notes": notes}))


def _members(model: ModelPlan, config: StudyConfig, store: Store) -> list[GeometryMember]:
    return [
        GeometryMember(
            chosen.checkpoint.name,
            chosen.checkpoint.step,
            chosen.checkpoint.tokens_seen,
            chosen.phase,
            geometry=store.path("captures", taken.key),
            measured=store.path("captures", measured.key),
        )
        for chosen, taken, measured in model.geometry_members(config)
    ]


def _make_all(plan: StudyPlan, run: "_Run") -> None:
    fitting = [task for model in plan.models for task in run.captures(model, (*model.early, *model.late))]
    run.make("captures for the planes", fitting)
    run.make("planes", [run.planes(model) for model in plan.models])
    twins = [task for model in plan.models if model.untrained for task in run.captures(model, (model.untrained,))]
    measured = [task for model in plan.models for task in run.captures(model, _beside(model))]
    run.make("measured captures", [*twins, *measured])
    run.make("rows", [run.rows(model, capture) for model in plan.models for capture in model.measured])
    run.make("early less late", [task for model in plan.models for task in run.differences(model)])
    if plan.config.geometry is not None:
        run.make("types and local geometry", [t for model in plan.models for t in run.captures(model, model.geometry)])
        run.make("frequency", [run.frequency(model) for model in plan.models])


def _beside(model: ModelPlan) -> list[PlannedCapture]:
    """Measured captures, each with the pass over single tokens of its checkpoint behind it.

    So that a download which is not kept for long serves both.
    """
    tokens = {taken.checkpoint.key: taken for taken in model.tokens}
    return [
        one for taken in model.measured for one in (taken, tokens.pop(taken.checkpoint.key, None)) if one is not None
    ]


class _Run:
    def __init__(self, plan: StudyPlan, store: Store, executor: Executor, progress: bool) -> None:
        self._config: StudyConfig = plan.config
        self._store = store
        self._executor = executor
        self._progress = progress
        self._recent = _Recent(plan.config.keep_last)
        self._loads = {capture.key: capture.checkpoint for capture in plan.captures()}

    def make(self, what: str, tasks: Iterable[Task]) -> None:
        """Make the entries that are not there, or not whole."""
        wanted = {(task.kind, task.key): task for task in tasks}
        left = [task for task in wanted.values() if self._store.get(task.kind, task.key, task.what) is None]
        if len(left) < len(wanted):
            say(f"{what}: {len(wanted) - len(left)} of {len(wanted)} are there already", enabled=self._progress)
        done: Iterator[str] = self._executor.map(left)
        for key in track(done, what, total=len(left), enabled=self._progress):
            if key in self._loads:
                self._recent.loaded(self._loads[key])

    def captures(self, model: ModelPlan, wanted: Iterable[PlannedCapture]) -> Iterator[Task]:
        for capture in wanted:
            corpus = model.corpus
            if capture.kind == "geometry" and model.geometry_corpus is not None:
                corpus = model.geometry_corpus
            subject = Subject(capture.checkpoint, corpus.tokenizer, corpus.half("A"), corpus.half("B"), self._config)
            write = self._taking(model, capture, subject)
            kind = TOKENS if capture.kind == "tokens" else "captures"
            yield self._task(kind, capture.key, capture.what, write, _memory(model, capture))

    def planes(self, model: ModelPlan) -> Task:
        early, late = ([self._labelled(model, c) for c in part] for part in (model.early, model.late))
        write = partial(fit_planes, early=early, late=late, config=self._config)
        size = model.outline.estimate
        # Captures are pooled site by site; the directions found, d x d a site, stay until they are written.
        memory = None if size is None else size.fit_bytes
        return self._task("proxies", model.proxies, f"planes of {model.name}", write, memory)

    def rows(self, model: ModelPlan, capture: PlannedCapture) -> Task:
        twin = None if model.untrained is None else self._store.path("captures", model.untrained.key)
        write = partial(
            answer,
            measured=self._store.path("captures", capture.key),
            planes=self._store.path("proxies", model.proxies),
            untrained=twin,
            config=self._config,
        )
        key = model.frame_key(capture, self._config)
        return self._task("frames", key, f"rows of {model.name} at {capture.checkpoint.name}", write)

    def differences(self, model: ModelPlan) -> Iterator[Task]:
        key = model.differences_key(self._config)
        if key is None:
            return
        members = [
            Member(c.checkpoint.name, c.checkpoint.step, c.phase, self._store.path("captures", taken.key))
            for c, taken in zip(model.outline.chosen, model.measured, strict=True)
        ]
        planes = self._store.path("proxies", model.proxies)
        write = partial(write_differences, members=members, planes=planes, config=self._config)
        yield self._task("frames", key, f"early less late of {model.name}", write)

    def frequency(self, model: ModelPlan) -> Task:
        write = partial(write_frequency, members=_members(model, self._config, self._store), config=self._config)
        size = model.outline.estimate
        memory = None if size is None else len(model.geometry) * size.geometry_bytes
        key = str(model.frequency_key(self._config))
        return self._task("frames", key, f"frequency of {model.name}", write, memory)

    def _taking(self, model: ModelPlan, capture: PlannedCapture, subject: Subject) -> Callable[[Path], Any]:
        if capture.kind == "fit":
            return partial(take_fitting, subject=subject)
        if capture.kind == "untrained":
            rank = max(self._config.rank) if self._config.rank else None
            return partial(take_untrained, subject=subject, rank=rank)
        if capture.kind == "geometry":
            return partial(take_geometry, subject=subject)
        planes = self._store.path("proxies", model.proxies)
        if capture.kind == "tokens":
            return partial(take_tokens, subject=subject, planes=planes)
        return partial(take_measured, subject=subject, planes=planes)

    def _labelled(self, model: ModelPlan, capture: PlannedCapture) -> tuple[Path, dict[str, Any]]:
        at = capture.checkpoint
        labels = {"name": model.name, "revision": at.name, "step": at.step, "tokens_seen": at.tokens_seen}
        return self._store.path("captures", capture.key), labels

    def _task(self, kind: str, key: str, what: str, write: Callable[[Path], Any], memory: int | None = None) -> Task:
        return Task(kind, key, what, self._store.root, write, memory)


def _memory(model: ModelPlan, capture: PlannedCapture) -> int | None:
    """Bytes of a running model and its sums; of two models and both their captures for an untrained twin."""
    size = model.outline.estimate
    if size is None:
        return None
    if capture.kind == "untrained":
        return 2 * size.running_bytes + size.fit_bytes + size.measure_bytes
    held = {"fit": size.fit_bytes, "geometry": size.geometry_bytes, "tokens": 0}.get(capture.kind, size.measure_bytes)
    return size.running_bytes + held


class _Recent:
    """Keeps the last n downloads and forgets those before."""

    def __init__(self, n: int | None) -> None:
        self._n = n
        self._held: dict[str, Checkpoint] = {}

    def loaded(self, checkpoint: Checkpoint) -> None:
        """Say that a checkpoint was loaded just now."""
        self._held.pop(checkpoint.key, None)
        self._held[checkpoint.key] = checkpoint
        while self._n is not None and len(self._held) > self._n:
            oldest = self._held.pop(next(iter(self._held)))
            if oldest.forget is None:
                continue
            try:
                oldest.forget()
            except OSError as error:
                warnings.warn(f"{oldest.name} stays on disk: {error}", TlAnisoWarning, stacklevel=2)


def _joined(plan: StudyPlan, store: Store) -> tuple[pd.DataFrame, dict[str, list[str]]]:
    """The rows of every checkpoint, labelled, and what a reader must know, by model."""
    parts, notes = [], {}
    for model in plan.models:
        paths = [store.path("frames", model.frame_key(c, plan.config)) / FRAME for c in model.measured]
        facts = [notes_of(path) for path in paths]
        prints, told = compared(
            [store.path("captures", c.key) for c in model.measured],
            [chosen.checkpoint.name for chosen in model.outline.chosen],
        )
        losses = [float("nan") if said["loss"] is None else float(said["loss"]) for said in facts]
        for chosen, path, loss in zip(model.outline.chosen, paths, losses, strict=True):
            frame, at = read_table(path), chosen.checkpoint
            frame["model"], frame["revision"], frame["phase"] = model.name, at.name, chosen.phase
            frame["step"] = float("nan") if at.step is None else float(at.step)
            frame["tokens_seen"] = float("nan") if at.tokens_seen is None else float(at.tokens_seen)
            # Share of the loss's fall so far, by which runs that learn at different speeds are matched.
            frame["loss"], fall = loss, losses[0] - losses[-1]
            frame["progress"] = (losses[0] - loss) / fall if fall > 0 else float("nan")
            frame["duplicate_of"], frame["mixed_with"] = prints.loc[at.name, ["duplicate_of", "mixed_with"]]
            parts.append(frame)
        asked = (note for said in facts for note in said["notes"])
        notes[model.name] = list(dict.fromkeys((*told, *model.outline.notes, *asked)))
    return pd.concat(parts, ignore_index=True), notes
