"""Errors and warnings of the library.

Everything a user can cause derives from `TlAnisoError`; its message names the culprit (site, document, value) and
the remedy.
"""

__all__ = [
    "ConfigError",
    "MergeError",
    "ModelError",
    "ShortTextError",
    "SiteError",
    "TextError",
    "TlAnisoError",
    "TlAnisoWarning",
    "UndefinedMeasureError",
]


class TlAnisoError(Exception):
    """Base of every error a user of the library can cause.

    Example:
        >>> from tl_aniso import TlAnisoError, energy_share
        >>> import torch
        >>> try:
        ...     energy_share(torch.eye(4), torch.ones(4, 2))
        ... except TlAnisoError as error:
        ...     print("orthonormal" in str(error))
        True
    """


class UndefinedMeasureError(TlAnisoError):
    """A measure has no value on this input: constant rows, a single row, no energy, or non-finite numbers."""


class TextError(TlAnisoError):
    """The text holds nothing to measure, or token ids that the model does not know."""


class ShortTextError(TextError, UndefinedMeasureError):
    """Too few tokens for a measure to have a value; the message says how many there are."""


class SiteError(TlAnisoError):
    """A site that the model does not have, or that delivered nothing, or twice."""


class ModelError(TlAnisoError):
    """A model that cannot be measured as it is: unknown architecture, quantised or non-finite weights."""


class MergeError(TlAnisoError):
    """Two captures that are not parts of one run, or that hold the same document."""


class ConfigError(TlAnisoError):
    """A file that describes a study and cannot be used as it stands; the message has the place in the file."""


class TlAnisoWarning(UserWarning):
    """Something the numbers depend on that a user should know before reading them."""
