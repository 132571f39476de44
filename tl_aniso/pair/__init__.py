"""A decoder and an encoder that differ in objective and attention mask alone, trained and set side by side."""

from tl_aniso.pair.compare import compare
from tl_aniso.pair.progress import Match, match_progress, match_steps, progress_of, unigram_entropy
from tl_aniso.pair.run import PairResult, PairText, Run, pair_text, run_pair, save_pair

__all__ = [
    "Match",
    "PairResult",
    "PairText",
    "Run",
    "compare",
    "match_progress",
    "match_steps",
    "pair_text",
    "progress_of",
    "run_pair",
    "save_pair",
    "unigram_entropy",
]
