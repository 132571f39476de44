"""A study as one object: plan it, run it, read it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from tl_aniso.checks import as_integer, as_path
from tl_aniso.claims import ClaimsTable
from tl_aniso.errors import ConfigError, TlAnisoError
from tl_aniso.models import Downloads
from tl_aniso.study.checkpoints import CheckpointSource
from tl_aniso.study.config import StudyConfig, read_config
from tl_aniso.study.executors import Executor, LocalExecutor
from tl_aniso.study.outline import Outline, outline
from tl_aniso.study.pages import judged, write_pages
from tl_aniso.study.plan import StudyPlan
from tl_aniso.study.run import PLAN, RESULTS, freeze_text, run_plan, write_plan
from tl_aniso.study.store import Store
from tl_aniso.study.table import read_table
from tl_aniso.study.trainings import refuse_unlike_trainings

__all__ = ["Study"]

# What a study may find in its directory without having been there before.
_IGNORED = (".DS_Store", "Thumbs.db")


class Study:
    """Many checkpoints of one or several models, measured in planes that were frozen early in training.

    After arXiv:2604.08764: proxies are fitted on half A of the documents at the checkpoints of the first 30% of the
    training, frozen, and half B is measured in them at every checkpoint. Beside them, as the control ``late_fitted``,
    stand planes fitted alike on the late checkpoints.

    What is finished is kept in `out`: a run that was stopped goes on where it was, and ends with the same bytes.

    Args:
        config: a YAML file, a mapping with its keys (``docs/study.md``), or a `StudyConfig`.
        out: directory of the study.
        sources: model's name -> its checkpoints, for models that are not directories.
        executor: where captures are made; in this process by default, elsewhere with a `RayExecutor`.
        progress: show how far it has come.

    Raises:
        ConfigError: a config that cannot be used.

    Example:
        >>> import tempfile, torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from tl_aniso import Study
        >>> from tl_aniso.study import MemoryCheckpoints
        >>> config = LlamaConfig(vocab_size=40, hidden_size=8, intermediate_size=16, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> models = {step: LlamaForCausalLM(config) for step in (0, 100)}
        >>> ids = torch.randint(3, 40, (24, 16), generator=torch.Generator().manual_seed(0)).tolist()
        >>> place = Path(tempfile.mkdtemp())
        >>> _ = (place / "text.jsonl").write_text("\\n".join(map(str, ids)))
        >>> asked = {"models": ["tiny"], "text": str(place / "text.jsonl"), "n_controls": 9, "sites": "*.W_Q"}
        >>> study = Study(asked, place / "out", sources={"tiny": MemoryCheckpoints(models)}, progress=False)
        >>> found = study.run()
        >>> found[["step", "phase"]].drop_duplicates().values.tolist()
        [[0.0, 'early'], [100.0, 'late']]
    """

    def __init__(
        self,
        config: Any,
        out: str | Path,
        *,
        sources: Mapping[str, CheckpointSource] | None = None,
        executor: Executor | None = None,
        progress: bool = True,
    ) -> None:
        self.config: StudyConfig = read_config(config)
        self.out = as_path("out", out)
        self._sources = dict(sources or {})
        self._executor = LocalExecutor() if executor is None else executor
        place = getattr(self._executor, "device_for", None)
        if place is not None:
            self.config = self.config.with_device(place(self.config.device))
        self._progress = progress

    def outline(self) -> Outline:
        """The checkpoints, their phases and what they take; nothing is loaded or written.

        Raises:
            ConfigError: models or checkpoints that there are not; trainings of different architectures.
        """
        # The ledger lets a later run of the study forget what an earlier one downloaded.
        downloads = Downloads(keep=self.config.keep_last, ledger=self.out / "downloads.json")
        found = outline(self.config, self._sources, downloads)
        refuse_unlike_trainings(found.models, self.config)
        return found

    def plan(self) -> StudyPlan:
        """Freeze the text and write ``plan.json``: every capture with its key.

        Raises:
            TlAnisoError: as `run`.
        """
        found = self.outline()
        store = self._store()
        with store.lock():
            store.tidy()
            plan = freeze_text(found, store)
            write_plan(plan, store)
        return plan

    def run(self) -> pd.DataFrame:
        """Make what is not there yet; returns the table that ``results.parquet`` holds.

        Raises:
            ConfigError: as `outline`.
            TlAnisoError: a directory with other files in it, or one in which another run is at work; a checkpoint that
                cannot be loaded or measured. What was finished before is kept.
        """
        found = self.outline()
        store = self._store()
        with store.lock():
            store.tidy()
            plan = freeze_text(found, store)
            write_plan(plan, store)
            return run_plan(plan, store, self._executor, progress=self._progress)

    @property
    def results(self) -> pd.DataFrame:
        """The table of a finished run.

        Raises:
            TlAnisoError: there is none.
        """
        path = self.out / RESULTS
        if not path.is_file():
            raise TlAnisoError(f"{self.out} holds no {RESULTS}; run the study first")
        return read_table(path)

    @property
    def claims(self) -> ClaimsTable:
        """Verdicts on the paper's claims, as stated and beyond every control that was measured (``docs/claims.md``).

        Of several ranks the smallest is judged, and a note says so; `claims_at` judges another.

        Raises:
            TlAnisoError: there are no results.
        """
        return judged(self.out)

    def claims_at(self, rank: int) -> ClaimsTable:
        """The same at one of several ranks.

        Raises:
            TlAnisoError: there are no results, or none of this rank.
        """
        return judged(self.out, as_integer("rank", rank, least=1))

    def report(self, rank: int | None = None) -> Path:
        """Write ``report.html``: claims, figures, a reading of each model, methods, in one file; returns its path.

        Args:
            rank: of several, the one at which claims are judged.

        Raises:
            TlAnisoError: there are no results, or none of this rank.
        """
        return write_pages(self.out, None if rank is None else as_integer("rank", rank, least=1))

    def _store(self) -> Store:
        if self.out.exists():
            if not self.out.is_dir():
                raise ConfigError(f"{self.out} is a file; give a directory for the study")
            held = sorted(path.name for path in self.out.iterdir() if path.name not in _IGNORED)
            if held and not {PLAN, "study.lock"} & set(held):
                raise ConfigError(
                    f"{self.out} holds {', '.join(held[:3])} and no study; choose a directory of its own for the study"
                )
        return Store(self.out)
