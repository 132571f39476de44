"""Small pieces of sentences."""

from typing import Any

from tl_aniso.viz.style import step_text

__all__ = ["capital", "joined", "ranges"]


def capital(text: str) -> str:
    """The text with a capital first letter.

    Example:
        >>> capital("readers of W_Q")
        'Readers of W_Q'
    """
    return text[:1].upper() + text[1:]


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
