"""The colour scale of token views: one that colour-blind readers tell apart, with text that can be read on it."""

from plotly.colors import sample_colorscale

__all__ = ["N_COLOURS", "contrast", "palette"]

# Enough that steps are not seen, few enough that each is one rule of a style sheet.
N_COLOURS = 64


def palette() -> list[tuple[str, str]]:
    """Background and text colour of each step, from low to high: cividis, whose lightness alone orders it.

    Example:
        >>> min(contrast(*pair) for pair in palette()) >= 4.5
        True
    """
    places = [step / (N_COLOURS - 1) for step in range(N_COLOURS)]
    found = []
    for colour in sample_colorscale("Cividis", places, colortype="tuple"):
        background = "#" + "".join(f"{round(255 * channel):02x}" for channel in colour)
        found.append((background, max(("#000000", "#ffffff"), key=lambda ink: contrast(background, ink))))
    return found


def contrast(first: str, second: str) -> float:
    """Contrast of two colours as WCAG 2 has it, 1 to 21.

    Example:
        >>> contrast("#000000", "#ffffff")
        21.0
    """
    lower, upper = sorted((_luminance(first), _luminance(second)))
    return (upper + 0.05) / (lower + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
