"""Small pieces of sentences, and what each control is in plain language."""

from typing import Any

from tl_aniso.viz.style import step_text

__all__ = ["MEASURES", "capital", "control_words", "joined", "ranges"]

_CONTROLS = {
    "normal": "planes of the same rank beside the tangent plane, drawn uniformly; the exact mean over all of them",
    "input_energy": "keeps what a matrix is given and drops the gradients: would the inputs alone lie there?",
    "sign_flip": "keeps both and flips the sign of each token's gradient at random: does it take gradients that agree?",
    "shuffled_g": "keeps both and deals the gradients out to other tokens: does it matter which goes with which?",
    "shuffled_labels": "the gradients of targets permuted within each document: does it take the content of the text?",
    "permuted_tokens": "the plane of the same documents with their tokens in random order: does it take their order?",
    "other_layer": "the plane of the same kind of site half the depth away: does it take this very layer?",
    "untrained": "the same model with new random weights and planes of its own: does it take training?",
    "covariance_drawn": "planes spanned by random draws from the activations' covariance: any plane where the data lie",
    "late_fitted": "the planes of the late checkpoints, fitted on the same documents: is it the early ones that count?",
    "next_k": "the principal components that follow the plane's own: does it take the leading ones?",
    "shuffled_frequencies": "the same tokens with frequencies dealt out anew: does it take how often a token occurs?",
    "size_matched": "as many occurrences of each token: is it only that the few of rare tokens scatter more?",
    "gaussian_surrogate": "Gaussian rows with the same covariance: does it take any shape beyond it?",
    "other_type": "the local plane of another token: does it take this very neighbourhood?",
}
# Measures of the tables as a page calls them, in the order in which it lists them.
MEASURES = {
    "r_energy": "R",
    "energy_share": "E",
    "excess": "excess",
    "isoscore_star": "IsoScore*",
    "delta_isoscore_star": "delta IsoScore*",
    "isoscore": "IsoScore",
    "share_per_variance": "E per share of variance",
    "participation_ratio": "participation ratio",
    "effective_rank": "effective rank",
    "top_share": "share of the first component",
    "frequency_pearson": "correlation with log frequency (Pearson)",
    "frequency_spearman": "correlation with log frequency (Spearman)",
    "curvature_slope": "slope of log normal on log tangent",
    "visible_share": "visible normal share",
    "curvature_energy": "curvature energy",
    "local_dimension": "local dimension",
    "local_energy_share": "gradient energy in the local plane",
    "local_r": "local R",
    "local_excess": "local excess",
}


def capital(text: str) -> str:
    """The text with a capital first letter.

    Example:
        >>> capital("readers of W_Q")
        'Readers of W_Q'
    """
    return text[:1].upper() + text[1:]


def control_words(control: str) -> str:
    """What a control keeps and what it breaks, for a reader who does not know its name; empty if unknown.

    Example:
        >>> control_words("untrained")
        'the same model with new random weights and planes of its own: does it take training?'
    """
    return _CONTROLS.get(control, "")


def joined(parts: list[str]) -> str:
    """A list as English has it.

    Example:
        >>> joined(["a", "b", "c"])
        'a, b and c'
    """
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def ranges(chosen: Any) -> str:
    """The chosen steps, neighbours among all measured steps as ranges.

    Args:
        chosen: a series of booleans by step, at least one of them true.

    Example:
        >>> import pandas as pd
        >>> ranges(pd.Series([True, True, True, False, True], index=[0.0, 50.0, 100.0, 250.0, 500.0]))
        'at steps 0 to 100 and 500'
    """
    runs: list[list[float]] = []
    before = False
    for step, is_chosen in chosen.items():
        if is_chosen and before:
            runs[-1].append(float(step))
        elif is_chosen:
            runs.append([float(step)])
        before = bool(is_chosen)
    named = [step_text(run[0]) if len(run) == 1 else f"{step_text(run[0])} to {step_text(run[-1])}" for run in runs]
    return f"at step{'s' if sum(map(len, runs)) > 1 else ''} {joined(named)}"
