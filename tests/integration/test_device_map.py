"""Models that accelerate has taken in hand, as `device_map` does: its wrapped modules give the same sums."""

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module

from tests.models import tiny_model
from tl_aniso import capture
from tl_aniso.study.work import _moved

pytestmark = pytest.mark.usefixtures("one_thread")


def test_modules_that_move_their_inputs_change_nothing():
    """On one device, the only kind there is here; on several, each module's inputs come from elsewhere."""
    ids = torch.randint(3, 40, (6, 12), generator=torch.Generator().manual_seed(0)).tolist()
    plain, mapped = (tiny_model("llama", vocab_size=40, seed=1) for _ in range(2))
    for module in [*mapped.modules()][1:]:
        add_hook_to_module(module, AlignDevicesHook("cpu"))
    assert hasattr(mapped.model.layers[1].self_attn.q_proj, "_hf_hook")
    expected, found = (capture(model, ids, progress=False)._sums for model in (plain, mapped))
    assert expected.moments.keys() == found.moments.keys()
    for key, moments in expected.moments.items():
        assert torch.equal(moments.second_moment(), found.moments[key].second_moment())


def test_a_model_on_several_devices_is_not_moved():
    spread = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta"))
    assert _moved(spread, "cpu") is spread
    assert {p.device.type for p in spread.parameters()} == {"cpu", "meta"}
    assert {p.device.type for p in _moved(torch.nn.Linear(2, 2), "meta").parameters()} == {"meta"}
    assert {p.device.type for p in _moved(torch.nn.Linear(2, 2), None).parameters()} == {"cpu"}
