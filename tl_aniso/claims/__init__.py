"""Claims of arXiv:2604.08764 and what measurements say about them: frames in, verdicts out, no model.

The rules are data (``data/claims.yaml``, ``data/claims_geometry.yaml``), written before studies run; ``docs/claims.md``
says what each means and why.
"""

from tl_aniso.claims.geometry import judge_geometry
from tl_aniso.claims.geometry_rules import GeometryRules, load_geometry_rules
from tl_aniso.claims.judge import judge
from tl_aniso.claims.paired import Paired
from tl_aniso.claims.rules import ClaimRule, Rules, load_rules
from tl_aniso.claims.table import ClaimsTable

__all__ = [
    "ClaimRule",
    "ClaimsTable",
    "GeometryRules",
    "Paired",
    "Rules",
    "judge",
    "judge_geometry",
    "load_geometry_rules",
    "load_rules",
]
