"""What tells one callable objective from another of the same name: a digest of its code and of what it holds.

Two scripts may both pass a ``lambda`` or a `functools.partial`, whose names say nothing. The digest is of the byte
code, constants, defaults, closure and the globals that the code reads, so it is the same in every run of one version
of Python. It does not follow what a library function does.
"""

import functools
import hashlib
import types
from typing import Any

import numpy as np
import torch

__all__ = ["objective_id"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), torch.dtype, torch.device, np.generic)
_SAMPLED = 4096  # numbers of each tensor of a module, as for the fingerprint of a model


def objective_id(objective: object) -> tuple[str, tuple[str, ...]]:
    """Sixteen hex digits of a callable, and the types of what it holds that could not be taken into them.

    Example:
        >>> make = lambda token: lambda logits, ids, mask: logits[..., token]
        >>> objective_id(make(3)) == objective_id(make(3)), objective_id(make(3)) == objective_id(make(4))
        (True, False)
    """
    reader = _Reader()
    digest = hashlib.sha256(reader.text(objective).encode()).hexdigest()[:16]
    return digest, tuple(sorted(reader.untold))


class _Reader:
    def __init__(self) -> None:
        self.untold: set[str] = set()
        self._told: dict[int, tuple[Any, str]] = {}  # with the objects, whose ids would else be used again

    def text(self, value: Any) -> str:
        """A text that is equal for equal values; an object inside itself stands as "itself", so cycles end."""
        if isinstance(value, _PLAIN):
            return f"{type(value).__name__}:{value!r}"
        if id(value) not in self._told:
            self._told[id(value)] = (value, "itself")
            try:
                parts = self._parts(value)
            except (RuntimeError, TypeError):  # a tensor without plain storage, say
                self.untold.add(type(value).__qualname__)
                parts = "?"
            digest = hashlib.sha256(f"{type(value).__qualname__}({parts})".encode()).hexdigest()
            self._told[id(value)] = (value, digest)
        return self._told[id(value)][1]

    def _parts(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return self._array(value.detach().to("cpu").contiguous().flatten(), tuple(value.shape))
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            return self._array(torch.from_numpy(np.ascontiguousarray(value)).flatten(), value.shape)
        if isinstance(value, list | tuple):
            return ",".join(map(self.text, value))
        if isinstance(value, set | frozenset):
            return ",".join(sorted(map(self.text, value)))
        if isinstance(value, dict):
            return ",".join(f"{self.text(key)}={self.text(item)}" for key, item in value.items())
        if isinstance(value, functools.partial):
            return self.text((value.func, value.args, sorted(value.keywords.items())))
        if isinstance(value, types.MethodType):
            return self.text((value.__func__, value.__self__))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.ModuleType):
            return value.__name__
        if isinstance(value, type | types.BuiltinFunctionType):
            return f"{value.__module__}.{value.__qualname__}"
        if isinstance(value, torch.nn.Module):
            state = ((name, self._sample(item)) for name, item in value.state_dict().items())
            return f"{type(value).__module__} {value.training} " + ",".join(f"{n}={s}" for n, s in state)
        call = getattr(type(value), "__call__", None)  # noqa: B004 - the method itself is wanted
        if isinstance(call, types.FunctionType) and hasattr(value, "__dict__"):
            return self.text((call, sorted(vars(value).items())))
        self.untold.add(type(value).__qualname__)
        return "?"

    def _function(self, function: types.FunctionType) -> str:
        package = (function.__module__ or "").partition(".")[0]
        if package in ("torch", "numpy", "transformers", "math"):
            return f"{function.__module__}.{function.__qualname__}"
        cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        names = sorted(_names(function.__code__) & function.__globals__.keys())
        held = [(name, function.__globals__[name]) for name in names]
        return _code(function.__code__) + self.text((function.__defaults__, function.__kwdefaults__, cells, held))

    @staticmethod
    def _array(flat: torch.Tensor, shape: tuple[int, ...]) -> str:
        digest = hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()
        return f"{flat.dtype}{tuple(shape)}{digest}"

    def _sample(self, value: Any) -> str:
        if not isinstance(value, torch.Tensor):
            return self.text(value)
        flat = value.detach().reshape(-1)
        return self._array(flat[:: max(1, flat.numel() // _SAMPLED)].to("cpu").contiguous(), tuple(value.shape))


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _names(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _code(code: types.CodeType) -> str:
    """Byte code, names and constants, without file and line numbers."""
    constants = [_code(c) if isinstance(c, types.CodeType) else _constant(c) for c in code.co_consts]
    return f"{code.co_code.hex()}{code.co_names}{code.co_varnames}{code.co_freevars}{constants}"


def _constant(value: object) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
