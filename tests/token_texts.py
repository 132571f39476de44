"""Token shares with chosen values, and tokens that try to be more than text."""

import numpy as np

from tl_aniso.token_views import ShareSeries, TokenShares

HOSTILE = (
    "</script><script>window.pwned=1</script>",
    '"><img/src="x"/onerror="window.pwned=1">',
    "<svg/onload=window.pwned=1>",
    "'\"`${window.pwned=1}",
    "a\x00b",
    "\u202eabc\u202c",
    "\u200f\u05e9\u05dc\u05d5\u05dd",
    "\u0645\u0631\u062d\u0628\u0627",
    "\U0001f99c",
    "\U0001f469\u200d\U0001f467",
    "\ud800",
    "x" * 10_000,
    "<!--",
    "]]>",
    "\n",
    "{{ 7*7 }}",
    "\u2028",
    "&lt;b&gt;",
    "",
    "\u0301",
)


def planted_shares(
    tokens: tuple[str, ...], *, layers: int = 3, places: tuple[str, ...] = ("attn.W_O",), pieces: int = 1, seed: int = 0
) -> TokenShares:
    """Every value drawn; the last position of each piece carries no gradient, and one of layer 1 has none."""
    generator = np.random.default_rng(seed)
    n = len(tokens)
    sequence = np.minimum(np.arange(n) // (n // pieces), pieces - 1)
    position = np.arange(n) - sequence * (n // pieces)
    carries = np.append(sequence[1:] == sequence[:-1], False)

    def series(quantity: str, place: str) -> ShareSeries:
        share, energy = {}, {}
        for labels in ("true",) if quantity == "activation" else ("true", "shuffled"):
            share[labels] = generator.beta(2, 6, (layers, n)).astype(np.float32)
            energy[labels] = np.exp(generator.normal(0, 1.5, (layers, n))).astype(np.float32)
            for values in (share[labels], energy[labels]):
                if quantity != "activation":
                    values[:, ~carries] = np.nan
                values[1, 2] = np.nan
        sink = np.zeros((layers, n), dtype=bool)
        sink[1:, 0] = True
        sites = tuple(f"blocks.{layer}.{place}" for layer in range(layers))
        return ShareSeries(quantity, place, sites, tuple(range(layers)), (16,) * layers, 128, share, energy, sink)

    ids = generator.integers(3, 50_000, n)
    return TokenShares(
        tokens,
        ids,
        ids,
        sequence,
        position,
        tuple(f"{piece:02x}" * 32 for piece in range(pieces)),
        position == 0,
        carries,
        (series("activation", "hook_resid_pre"), *(series("weight gradient", place) for place in places)),
    )
