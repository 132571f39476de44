"""Where a study asks about frequency and local geometry, and what that takes."""

from collections.abc import Sequence

from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.plan import available_sites
from tl_aniso.errors import ConfigError
from tl_aniso.sites import role_of, select_sites
from tl_aniso.study.config import StudyConfig
from tl_aniso.study.phases import Chosen

__all__ = ["geometry_places", "geometry_sites", "geometry_sizes"]

# Rows of a token type are alike before the first block has mixed them, so nothing bends there.
_BLOCKS = ("hook_resid_pre", "attn.W_Q", "mlp.W_in")
_DEPTHS = (0.25, 0.5, 1.0)
_FLOAT32, _FLOAT64 = 4, 8


def geometry_places(chosen: Sequence[Chosen], config: StudyConfig) -> list[int]:
    """Which of the measured checkpoints are asked about, by place.

    All, or as many as the config has, evenly spread over those after step 0, the first and the last among them.
    """
    if config.geometry is None:
        return []
    n = config.geometry.checkpoints
    if n is None or n >= len(chosen):
        return list(range(len(chosen)))
    free = [i for i, one in enumerate(chosen) if one.checkpoint.step != 0] or [0]
    n = min(n, len(free))
    return sorted({free[round(i * (len(free) - 1) / (n - 1)) if n > 1 else -1] for i in range(n)})


def geometry_sites(layout: Layout, config: StudyConfig) -> tuple[list[str], list[str]]:
    """Residual sites and weight sites, by the config or those of blocks at a quarter, half and the end of the model.

    Of a masked model the last block's weights are left out: their gradients, behind which no other token is read, are
    of hidden tokens alone, whose rows are of the mask token.

    Raises:
        ConfigError: names that match neither kind.
    """
    known = [
        site
        for site in available_sites(layout, heads=False)
        if role_of(site) == "residual" or (role_of(site) in ("reader", "writer") and site.startswith("blocks."))
    ]
    asked = None if config.geometry is None else config.geometry.sites
    if asked is not None:
        chosen = select_sites(asked, known)
    else:
        last = len(layout.blocks) - 1
        blocks = sorted({min(max(1, round(share * last)), last) for share in _DEPTHS})
        silent = last if layout.attends == "both" else None
        names = [(block, name) for block in blocks for name in _BLOCKS if block != silent or name == _BLOCKS[0]]
        wanted = [f"blocks.{block}.{name}" for block, name in names]
        chosen = [site for site in known if site in wanted]
    residual = [site for site in chosen if role_of(site) == "residual"]
    if not residual:
        raise ConfigError(
            f"geometry: sites: {', '.join(asked or ())} names no residual site, which planes are fitted at; add one, "
            "such as blocks.*.hook_resid_pre"
        )
    weights = [site for site in chosen if role_of(site) != "residual"]
    return residual, weights if "weight" in config.gradients else []


def geometry_sizes(layout: Layout, config: StudyConfig) -> tuple[int, float]:
    """Bytes that are held by token type, and passes over the text: a forward one counts 1, one with gradients 3."""
    if config.geometry is None:
        return 0, 0.0
    residual, _ = geometry_sites(layout, config)
    # Means and squares of every occurrence and of equally many; the two tables.
    each = (2 * len(residual) * _FLOAT64 + 2 * _FLOAT32) * layout.d_model
    return layout.vocab_size * each, 4.0
