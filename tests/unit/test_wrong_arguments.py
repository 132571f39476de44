"""Arguments of the wrong kind are a `TlAnisoError` that names them, never a raw error and never accepted."""

from functools import cache
from typing import Any

import pytest
import torch

from tests.models import random_documents, tiny_model
from tl_aniso import Capture, TlAnisoError, ablation_isotropy, capture, fit_tangent_proxies, tangent_energy
from tl_aniso.controls import fit_control_planes
from tl_aniso.energy import energy_share
from tl_aniso.moments import Moments
from tl_aniso.planes import normal_controls
from tl_aniso.subspace import TangentProxies, compare_proxies

SCALAR = torch.tensor(3)
NAMES = ("gradients", "controls", "sites", "exclude", "weight_exclude", "extra_passes", "shard_sites")


@cache
def held() -> Capture:
    return capture(tiny_model("llama", layers=1), random_documents()[:4], gradients=(), progress=False)


def taken(**options: Any) -> Capture:
    return capture(tiny_model("llama", layers=1), [[5, 6, 7, 8]], **{"progress": False, **options})


@pytest.mark.parametrize("ask", [tangent_energy, ablation_isotropy])
@pytest.mark.parametrize("proxies", [3.5, "x", [], True, {}])
def test_proxies_that_are_none(ask: Any, proxies: Any) -> None:
    with pytest.raises(TlAnisoError, match="proxies must be TangentProxies"):
        ask(held(), proxies=proxies)


@pytest.mark.parametrize("value", [SCALAR, 3])
@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_none(name: str, value: Any) -> None:
    with pytest.raises(TlAnisoError, match=f"{name} must be a name or a list of names"):
        taken(**{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": 10**30}, "unknown device"),
        ({"pooled": 0}, "pooled must be one of"),
        ({"pooled": []}, "pooled must be one of"),
        ({"pooled": {}}, "pooled must be one of"),
        ({"pooled": ""}, "pooled must be one of"),
        ({"sites": []}, "sites is empty"),
        ({"progress": "x"}, "progress must be True or False"),
    ],
)
def test_options_of_a_capture(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TlAnisoError, match=message):
        taken(**options)


Q = torch.eye(8)[:, :2]
CALLS = {
    "energy of a tensor": lambda: tangent_energy(tiny_model("llama", layers=1), SCALAR),
    "rank of a tensor with a fraction": lambda: tangent_energy(held(), rank=torch.tensor(3.5)),
    "fit on a tensor": lambda: fit_tangent_proxies(SCALAR),
    "merge None": lambda: held().merge(None),
    "merge 3": lambda: held().merge(3),
    "merge a list": lambda: held().merge([held()]),
    **{f"TangentProxies({x!r:.9})": lambda x=x: TangentProxies(x) for x in (None, 3, "x", SCALAR)},
    "TangentProxies of captures": lambda: TangentProxies([held()]),
    "controls of a number": lambda: normal_controls(3),
    "half a control": lambda: normal_controls(Q, 1.5),
    "compare with 3": lambda: compare_proxies(fit_tangent_proxies(held(), 2), 3),
    "compare at 3": lambda: compare_proxies(*2 * (fit_tangent_proxies(held(), 2),), sites=3),
    "planes of 3": lambda: fit_control_planes(3, 4),
    "planes beside None": lambda: fit_control_planes(held(), None),
    "planes of controls 3": lambda: fit_control_planes(held(), fit_tangent_proxies(held(), 2), 3),
    "centred no": lambda: fit_tangent_proxies(held(), centred="no"),
    "centred 3.5": lambda: fit_tangent_proxies(held(), centred=3.5),
    "width True": lambda: Moments(True),
    "negative energy": lambda: energy_share(torch.diag(torch.tensor([-1.0, 2, 3, 4])), torch.eye(4)[:, :1]),
}


# The start of each call's name -> what its error must say.
SAID = {
    "energy of a tensor": "a single number, 3",
    "rank": r"rank must be an integer, got tensor\(3.5",
    "fit": "fitted on captures, got Tensor",
    "merge": "can only merge a Capture, got (NoneType|int|list)",
    "TangentProxies": "proxies must be a list of TangentProxy, got",
    "controls of": "Q must be d x k",
    "half": "the number of planes n must be an integer, got 1.5",
    "compare with": "b must be TangentProxies",
    "compare at": "sites must be a name or a list of names, got 3",
    "planes of 3": "control planes are fitted on captures",
    "planes beside": "proxies must be TangentProxies",
    "planes of controls": "controls must be a name or a list of names, got 3",
    "centred": "centred must be True or False, got",
    "width": "must be an integer, got bool",
    "negative": "S has -1 on its diagonal",
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    (said,) = [message for start, message in SAID.items() if name.startswith(start)]
    with pytest.raises(TlAnisoError, match=said):
        CALLS[name]()
