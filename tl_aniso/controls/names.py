"""Names of the controls, by how each is come by; ``docs/method.md``, section "Controls and excess", has the meaning."""

from tl_aniso.weight_moments import CONTROL_NAMES

__all__ = [
    "ALL",
    "CLOSED_FORMS",
    "CONTROLS",
    "COVARIANCE_DRAWN",
    "GIVEN_PLANES",
    "LABEL_PASSES",
    "LATE_FITTED",
    "NEXT_K",
    "OTHER_LAYER",
    "PERMUTED_TOKENS",
    "PLANE_CONTROLS",
    "UNTRAINED",
]

ALL = "all"  # stands for every control

PERMUTED_TOKENS = "permuted_tokens"
OTHER_LAYER = "other_layer"
UNTRAINED = "untrained"
COVARIANCE_DRAWN = "covariance_drawn"
NEXT_K = "next_k"
LATE_FITTED = "late_fitted"

# A second moment of their own, of weight gradients only.
CLOSED_FORMS = CONTROL_NAMES
# A second gradient of the same batch.
LABEL_PASSES = ("shuffled_labels",)
# The same gradient, in another plane.
PLANE_CONTROLS = (PERMUTED_TOKENS, OTHER_LAYER, COVARIANCE_DRAWN, NEXT_K)

# The same gradient, in planes that come from elsewhere and are handed over: of late checkpoints, in a study.
GIVEN_PLANES = (LATE_FITTED,)

# In the order in which tables show them.
CONTROLS = (*CLOSED_FORMS, *LABEL_PASSES, PERMUTED_TOKENS, OTHER_LAYER, UNTRAINED, COVARIANCE_DRAWN, NEXT_K)
