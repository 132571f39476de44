"""Whether a device that a study names is there."""

import torch

from tl_aniso.errors import ConfigError

__all__ = ["check_device"]


def check_device(device: str | None, *, elsewhere: bool = False) -> None:
    """Refuse a device that models cannot be moved to, before any is loaded.

    Args:
        device: of a config or an option; None for where models are loaded.
        elsewhere: captures are made by workers of an executor, whose devices are not known here; the name alone is
            looked at then.

    Raises:
        ConfigError: no name of a device, one without memory, or one that this machine or this torch does not have.

    Example:
        >>> check_device("cpu")
        >>> check_device("cpuu")
        Traceback (most recent call last):
        tl_aniso.errors.ConfigError: device: 'cpuu' is no device of torch; there is cpu...
    """
    if device is None:
        return
    there = ", ".join(_there())
    try:
        named = torch.device(device)
    except (RuntimeError, ValueError):
        raise ConfigError(f"device: {device!r} is no device of torch; there is {there}") from None
    if named.type == "meta":
        raise ConfigError(f"device: {device!r} holds no numbers; there is {there}")
    if elsewhere:
        return
    try:
        torch.empty(1, device=named)
    except Exception as error:  # torch raises AssertionError, RuntimeError, NotImplementedError, by build and device
        why = (str(error).split("\n")[0] or type(error).__name__)[:120]
        raise ConfigError(f"device: there is no {device!r} here, there is {there} ({why})") from error


def _there() -> list[str]:
    found = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    return [*found, "mps"] if torch.backends.mps.is_available() else found
