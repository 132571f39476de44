"""Synthetic texts whose weight gradients have known shares: heavy-tailed documents, dependent rows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tl_aniso.text import document_hash, shard_of

__all__ = ["TAILS", "TextModel", "Trials"]

D, K = 16, 4
# Rows per document: 10 ... 29.
_ROWS = np.arange(10, 30)


def _lognormal(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.exp(1.5 * generator.standard_normal(shape) - 1.5**2 / 2)


def _pareto(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (generator.pareto(2.5, shape) + 1) * 1.5 / 2.5


# Documents' energies, each with mean 1. Of the log-normal ones the largest tenth holds 59%, of the Pareto ones 25%.
TAILS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "log-normal": _lognormal,
    "Pareto": _pareto,
}


@dataclass
class Trials:
    """Energies by trial and shard: (selected, total) of the effect and of the control, each trials x shards."""

    effect: tuple[np.ndarray, np.ndarray]
    control: tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class TextModel:
    """One reader of one model: rows x_t = s (m + e_t) of a document, output gradients g_t, G = sum of g_t x_t.

    m (one a document) and e_t are Gaussian with `common` and `own` variance in K of the D directions and 1 in the
    others; s^2 is the document's energy; g_t = bias + noise. So rows depend on each other, and documents differ in
    energy, in length and in their share. The control is `sign_flip`, the sum of g_t^2 x_t x_t^T.
    """

    common: float
    own: float
    bias: float = 0.5

    def effect_share(self) -> float:
        """E[selected] / E[total] of G: the common part adds up over coherent gradients, the own part does not."""
        coherent = float(np.mean(_ROWS**2 * self.bias**2 + _ROWS))
        lone = float(np.mean(_ROWS) * (self.bias**2 + 1))
        return self._share(coherent, lone)

    def control_share(self) -> float:
        """E[selected] / E[total] of the control, in which both parts count once a row."""
        return self._share(1.0, 1.0)

    def _share(self, common: float, own: float) -> float:
        selected = K * (common * self.common + own * self.own)
        return selected / (selected + (D - K) * (common + own))


def draw(
    models: list[TextModel], tail: str, documents: int, trials: int, *, n_shards: int = 8, seed: int = 0
) -> list[Trials]:
    """Energies of several models on the same texts: same documents, lengths, latent m, e_t and noise of g."""
    generator = np.random.default_rng(seed)
    names = [
        [document_hash(ids) for ids in trial] for trial in generator.integers(0, 2**15, (trials, documents, 4)).tolist()
    ]
    shards = np.array([[shard_of(name, n_shards) for name in trial] for trial in names])
    shape = (trials, documents)
    energy = TAILS[tail](generator, shape)
    length = generator.choice(_ROWS, shape)
    inside = np.arange(_ROWS[-1]) < length[..., None]
    noise = generator.standard_normal((*shape, _ROWS[-1]), dtype=np.float32) * inside
    m = generator.standard_normal((*shape, D), dtype=np.float32)
    e = generator.standard_normal((*shape, _ROWS[-1], D), dtype=np.float32)
    found = []
    for model in models:
        common, own = (
            np.sqrt(np.where(np.arange(D) < K, v, 1.0)).astype(np.float32) for v in (model.common, model.own)
        )
        g = (noise + model.bias) * inside
        x = m[:, :, None, :] * common + e * own
        gradient = np.einsum("ntl,ntld->ntd", g, x) ** 2 * energy[..., None]
        flipped = np.einsum("ntl,ntld->ntd", g**2, x**2) * energy[..., None]
        found.append(Trials(*(_by_shard(part, shards, n_shards) for part in (gradient, flipped))))
    return found


def _by_shard(energies: np.ndarray, shards: np.ndarray, n_shards: int) -> tuple[np.ndarray, np.ndarray]:
    member = shards[..., None] == np.arange(n_shards)
    selected = np.einsum("nt,nts->ns", energies[..., :K].sum(-1), member)
    return selected, np.einsum("nt,nts->ns", energies.sum(-1), member)
