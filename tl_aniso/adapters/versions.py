"""Which versions of TransformerLens the adapters are written for, and the error for the others."""

from importlib.metadata import PackageNotFoundError, version

from tl_aniso.errors import ModelError

__all__ = ["SUPPORTED_VERSIONS", "check_version", "moved"]

SUPPORTED_VERSIONS = "4.3 up to, not including, 5 (tested with 4.3.0)"
_OLDEST, _NEWEST_MAJOR = (4, 3), 4


def check_version() -> None:
    """Refuse a TransformerLens that the adapters are not written for.

    Raises:
        ModelError: no TransformerLens, or a version outside `SUPPORTED_VERSIONS`.

    Example:
        >>> check_version()
    """
    found = _found()
    try:
        major, minor = (int(part) for part in found.split(".")[:2])
    except ValueError:
        return  # built from source under a name of its own: the private parts themselves decide
    if (major, minor) < _OLDEST or major > _NEWEST_MAJOR:
        raise ModelError(
            f"the adapters of encoders are written for transformer_lens {SUPPORTED_VERSIONS}, and {found} is "
            "installed; pip install 'transformer_lens>=4.3,<5', or hand over the Hugging Face model itself"
        )


def moved(part: str) -> ModelError:
    """The error for a private part of TransformerLens that is not where the adapters need it.

    Args:
        part: what is missing, such as "SUPPORTED_ARCHITECTURES".

    Example:
        >>> "tested with 4.3.0" in str(moved("SUPPORTED_ARCHITECTURES"))
        True
    """
    return ModelError(
        f"transformer_lens {_found()} has a private part moved that the adapters of encoders need: {part}; they are "
        f"written for transformer_lens {SUPPORTED_VERSIONS}: pip install 'transformer_lens==4.3.0'"
    )


def _found() -> str:
    try:
        return version("transformer_lens")
    except PackageNotFoundError:
        raise ModelError("transformer_lens is not installed; pip install 'transformer_lens>=4.3,<5'") from None
