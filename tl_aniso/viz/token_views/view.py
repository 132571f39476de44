"""A token view as an object: shown in a notebook, or saved as a page that fetches nothing."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from tl_aniso.checks import as_path
from tl_aniso.errors import TlAnisoError
from tl_aniso.token_views.shares import TokenShares
from tl_aniso.viz.html import environment
from tl_aniso.viz.report import write_page
from tl_aniso.viz.style import number
from tl_aniso.viz.token_views.parts import token_view_parts

__all__ = ["TokenView"]

_COLUMNS = ("site", "quantity", "labels", "k/d", "mean share", "weighted", "tokens", "without a value")


@dataclass(frozen=True, eq=False, repr=False)
class TokenView:
    """A text coloured by tangent shares; a notebook shows it, `save` writes it as one page.

    Attributes:
        shares: what is shown.
    """

    shares: TokenShares

    @property
    def frame(self) -> pd.DataFrame:
        """One row per token, site, quantity and labels; as `TokenShares.frame`."""
        return self.shares.frame

    def save(self, path: str | Path, *, title: str = "Tokens and tangent planes") -> Path:
        """Write one self-contained HTML page, whole or not at all, and return its path.

        Args:
            path: of the file; missing folders above it are made.
            title: heading of the page; any text.

        Raises:
            TlAnisoError: `path` is no path, or a directory.
            OSError: the file cannot be written.
        """
        if not isinstance(title, str):
            raise TlAnisoError(f"title must be a string, got {title!r}")
        page = (
            environment()
            .get_template("tokens.html")
            .render(
                title=title.replace("\0", "\u2400"),
                parts=token_view_parts(self.shares, label=title.replace("\0", "\u2400"), name="tokens"),
                n_tokens=f"{len(self.shares):,}",
                objective=self.shares.objective,
                columns=_COLUMNS,
                rows=self._rows(),
            )
        )
        return write_page(as_path("path", path), page)

    def _rows(self) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = []
        for series in self.shares.series:
            for row, site in enumerate(series.sites):
                for labels, values in series.share.items():
                    share, weight = values[row].astype(np.float64), series.energy[labels][row].astype(np.float64)
                    there = ~np.isnan(share)
                    means = ("–", "–")
                    if there.any():
                        weighted = np.average(share[there], weights=weight[there])
                        means = (number(float(share[there].mean())), number(float(weighted)))
                    found.append(
                        (
                            site,
                            series.quantity,
                            "–" if series.quantity == "activation" else labels,
                            number(series.rank[row] / series.d),
                            *means,
                            f"{len(share):,}",
                            f"{int((~there).sum()):,}",
                        )
                    )
        return found

    def __repr__(self) -> str:
        names = ", ".join(dict.fromkeys(f"{s.quantity} at {s.place}" for s in self.shares.series))
        return f"TokenView({len(self.shares)} tokens; {names})"

    def _repr_html_(self) -> str:
        parts = token_view_parts(self.shares)
        # A later copy of the script finds nothing left to draw, so that cells may be shown in any order.
        return f"<style>{parts.css}</style>{parts.fragment}<script>{parts.script}</script>"
