"""What of a config only the text or a model can rule out, asked before anything is captured: its config is enough."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.objectives import check_objective
from tl_aniso.capturing.plan import available_sites
from tl_aniso.errors import ConfigError, TlAnisoError
from tl_aniso.pca import check_rank
from tl_aniso.sites import select_sites
from tl_aniso.study.config import StudyConfig
from tl_aniso.study.corpus import text_source
from tl_aniso.study.geometry_sites import geometry_sites
from tl_aniso.text import iter_documents

__all__ = ["check_texts", "check_with_layout"]


def check_texts(config: StudyConfig) -> None:
    """Refuse texts that are not there, or hold no document.

    Raises:
        ConfigError: neither a file nor a recipe, or a file that cannot be read or is empty; the message has the key.
    """
    texts = {"text": config.text}
    if config.geometry is not None and config.geometry.text is not None:
        texts["geometry: text"] = config.geometry.text
    for key, text in texts.items():
        try:
            text_source(text)
            path = Path(text)
            if path.is_file() and path.suffix.lower() not in (".yaml", ".yml"):
                next(iter_documents(path))
        except (TlAnisoError, OSError) as error:
            raise ConfigError(f"{key}: {str(error).removeprefix('text: ')}") from error


def check_with_layout(layout: Layout, config: StudyConfig, model: str, *, context: bool = True) -> None:
    """Refuse values that a model cannot be measured with.

    Args:
        layout: of the model, whose weights may be on the meta device.
        config: of the study.
        model: what results call it.
        context: whether the layout's context is the model's own, and not a default.

    Raises:
        ConfigError: a rank above d/2, a `seq_len` beyond the context, next-token loss of an encoder or masked tokens of
            a decoder, or sites that match nothing; the message has key and model.
    """

    def fits() -> None:
        if context and config.seq_len > layout.context:
            raise TlAnisoError(f"{config.seq_len} is beyond the model's context of {layout.context} tokens")

    checks: dict[str, Callable[[], Any]] = {
        "rank": lambda: [check_rank(rank, layout.d_model) for rank in config.rank or ()],
        "seq_len": fits,
        "objective": lambda: check_objective(config.objective, layout),
        "sites": lambda: select_sites(config.sites, available_sites(layout, heads=False)),
        "geometry: sites": lambda: config.geometry and geometry_sites(layout, config),
    }
    for key, check in checks.items():
        try:
            check()
        except TlAnisoError as error:
            text = str(error).removeprefix(f"{key} ").removeprefix(f"{key}: ")
            raise ConfigError(f"{key}: {model}: {text}") from error
