"""Single tokens: their tangent shares, the tokens that a tangent direction singles out, and what it writes."""

from tl_aniso.token_views.lens import Lens, lens
from tl_aniso.token_views.measure import token_shares
from tl_aniso.token_views.shares import ShareSeries, TokenShares
from tl_aniso.token_views.top import TopTokens, top_tokens

__all__ = ["Lens", "ShareSeries", "TokenShares", "TopTokens", "lens", "token_shares", "top_tokens"]
