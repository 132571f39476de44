"""Encoders are known to TransformerLens: from a directory in a fresh process, by entry point, and by its own checks."""

import gc
import subprocess
import sys
import tomllib
import warnings
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.encoder_models import ALL_KINDS, KINDS, WORDS, ragged, rename_class, save_as_on_hub, strip_head, tiny_encoder
from tl_aniso.adapters import ARCHITECTURES, boot, register
from tl_aniso.adapters.versions import SUPPORTED_VERSIONS, check_version
from tl_aniso.errors import ModelError

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TARGETS = PYPROJECT["project"]["entry-points"]["transformer_lens.architectures"]

FRESH = """
import sys
import tl_aniso
room = tl_aniso.adapters
assert not {"torch", "transformer_lens"} & set(sys.modules)
room.register()
import torch
from transformer_lens.model_bridge import TransformerBridge
for directory in sys.argv[1:]:
    bridge = TransformerBridge.boot_transformers(directory, device="cpu")
    ids, mask, logits = torch.load(directory + "/expected.pt", weights_only=True)
    with torch.no_grad():
        found = bridge(ids, attention_mask=mask, return_type="logits")
    print(type(bridge.original_model).__name__, float((found - logits)[mask.bool()].abs().max()) < 1e-5)
"""


def test_boot_from_a_directory_in_a_fresh_process(tmp_path: Path) -> None:
    ids, mask = ragged("right")
    for kind in ALL_KINDS:
        model = tiny_encoder(kind)
        save_as_on_hub(model, tmp_path / kind)
        with torch.no_grad():
            torch.save((ids, mask, model(ids, attention_mask=mask).logits), tmp_path / kind / "expected.pt")
    command = [sys.executable, "-c", FRESH, *(str(tmp_path / kind) for kind in ALL_KINDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout.split("\n")[:-1] == [f"{kind}ForMaskedLM True" for kind in ALL_KINDS], done.stderr
    assert "Warning" not in done.stderr


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_boot_refuses_what_has_no_head(kind: str, tmp_path: Path) -> None:
    """A body alone, named as one; and a body under the name of the whole, whose head would be drawn at random."""
    model = tiny_encoder(kind, tie_word_embeddings=False)
    save_as_on_hub(model, tmp_path)
    boot(str(tmp_path), device="cpu")
    strip_head(tmp_path, model)
    with pytest.raises(ModelError, match=f"is headless: it has the body of {kind}ForMaskedLM and lacks .*load the ch"):
        boot(str(tmp_path), device="cpu")
    rename_class(tmp_path, f"{kind}Model")
    with pytest.raises(
        ModelError, match=f"names the class {kind}Model, an encoder without its .* as {kind}ForMaskedLM"
    ):
        boot(str(tmp_path), device="cpu")
    boot(str(tmp_path), device="cpu", hf_model=model)  # the caller's affair


def test_boot_registers_on_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _forget(monkeypatch)
    save_as_on_hub(tiny_encoder("Camembert"), tmp_path)
    bridge = boot(str(tmp_path), device="cpu")
    assert type(bridge.original_model).__name__ == "CamembertForMaskedLM"
    assert bridge.cfg.n_ctx == 160 - 1  # positions begin behind the padding index, which is 0 here


def _forget(monkeypatch: pytest.MonkeyPatch, *, installed: bool = True) -> Any:
    """TransformerLens as it is in a process where nobody registered anything; returns its factory module."""
    from transformer_lens.factories import architecture_adapter_factory as factory
    from transformer_lens.utilities import architectures

    own = {name: adapter for name, adapter in factory.SUPPORTED_ARCHITECTURES.items() if name not in ARCHITECTURES}
    monkeypatch.setattr(factory, "SUPPORTED_ARCHITECTURES", own)
    monkeypatch.setattr(factory.ArchitectureAdapterFactory, "_adapters", dict(own))
    monkeypatch.setattr(factory.ArchitectureAdapterFactory, "_entry_points_discovered", False)
    masked = architectures.MASKED_LM_ARCHITECTURES - set(ARCHITECTURES)
    monkeypatch.setattr(architectures, "MASKED_LM_ARCHITECTURES", masked)
    points = [EntryPoint(name, value, "transformer_lens.architectures") for name, value in TARGETS.items()]
    monkeypatch.setattr(factory, "entry_points", lambda group: points if installed else [])
    return factory


class TestRegister:
    def test_entry_points_say_what_the_registry_says(self) -> None:
        assert TARGETS == ARCHITECTURES

    def test_entry_points_alone_serve_a_module(self, monkeypatch: pytest.MonkeyPatch) -> None:
        factory = _forget(monkeypatch)
        from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = tiny_encoder("EuroBert")
            bridge = build_bridge_from_module(model, "EuroBertForMaskedLM", hf_config=model.config)
        assert type(bridge.adapter).__name__ == "EuroBertAdapter"
        assert "EuroBertForMaskedLM" not in factory.SUPPORTED_ARCHITECTURES

    @pytest.mark.parametrize("installed", [True, False])
    def test_twice_and_in_silence(self, monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
        factory = _forget(monkeypatch, installed=installed)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert register() == register() == tuple(ARCHITECTURES)
            factory.ArchitectureAdapterFactory.discover_entry_points()  # as TransformerLens does in every boot
        assert set(ARCHITECTURES) <= set(factory.SUPPORTED_ARCHITECTURES)
        assert set(ARCHITECTURES) <= set(factory.ArchitectureAdapterFactory._adapters)

    def test_an_adapter_of_transformer_lens_itself_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        factory = _forget(monkeypatch, installed=False)
        native = type("NativeAdapter", (), {})
        factory.SUPPORTED_ARCHITECTURES["ModernBertForMaskedLM"] = native
        assert "ModernBertForMaskedLM" not in register()
        assert factory.SUPPORTED_ARCHITECTURES["ModernBertForMaskedLM"] is native


class TestGuard:
    @pytest.mark.parametrize("found", ["3.9.0", "4.2.1", "5.0.0"])
    def test_versions(self, monkeypatch: pytest.MonkeyPatch, found: str) -> None:
        monkeypatch.setattr("tl_aniso.adapters.versions.version", lambda _: found)
        monkeypatch.delitem(sys.modules, "tl_aniso.adapters.parts")
        with pytest.raises(ModelError, match=rf"transformer_lens 4\.3 up to.*4\.3\.0.*{found} is installed; pip"):
            import_module("tl_aniso.adapters.parts")

    @pytest.mark.parametrize("found", ["4.3.0", "4.3.1rc1", "4.11.0", "0+unknown.local"])
    def test_versions_that_are_let_through(self, monkeypatch: pytest.MonkeyPatch, found: str) -> None:
        monkeypatch.setattr("tl_aniso.adapters.versions.version", lambda _: found)
        check_version()

    def test_a_module_that_moved(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gone = "transformer_lens.model_bridge.supported_architectures.roberta"
        monkeypatch.setitem(sys.modules, gone, None)
        monkeypatch.delitem(sys.modules, "tl_aniso.adapters.parts")
        with pytest.raises(ModelError, match=rf"moved.*{gone}.*transformer_lens 4\.3.*pip install"):
            import_module("tl_aniso.adapters.parts")

    @pytest.mark.parametrize(
        ("module", "name"),
        [
            ("factories.architecture_adapter_factory", "SUPPORTED_ARCHITECTURES"),
            ("factories.architecture_adapter_factory", "ArchitectureAdapterFactory"),
            ("utilities.architectures", "MASKED_LM_ARCHITECTURES"),
        ],
    )
    def test_a_list_that_moved(self, monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
        monkeypatch.delattr(f"transformer_lens.{module}.{name}")
        with pytest.raises(ModelError, match=f"moved.*{name}.*{SUPPORTED_VERSIONS[:3]}"):
            register()


CHECKS = {
    *("all_components", "forward_pass_logits", "logits_equivalence", "loss_equivalence"),
    *("hook_registry", "hook_functionality", "forward_hooks", "critical_forward_hooks", "gated_hooks_fire"),
    *("run_with_cache", "activation_cache"),
    *("gradient_computation", "backward_hooks", "critical_backward_hooks"),
    *("no_nan_inf", "weight_magnitudes", "unembed_centering", "value_bias_folding", "weight_modification"),
}
# Writers are not centred, nor are those of TransformerLens' own Llama and ModernBERT decoder in this suite.
NOT_CENTRED = {(3, "attention_output_centering"), (3, "mlp_output_centering")}
EXPECTED_FAILURES = {
    "EuroBert": NOT_CENTRED,
    "ModernBert": {*NOT_CENTRED, (2, "hook_functionality"), (3, "hook_functionality")},  # edits hook_v; qkv is fused
}


@pytest.mark.parametrize("kind", KINDS)
def test_checks_of_transformer_lens(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its benchmark suite, all but the phase that judges generated text by a published model.

    Two checks need a scalar and take the bridge's shifted loss, so it is allowed for them.
    """
    from transformer_lens.benchmarks.main_benchmark import run_benchmark_suite

    register()
    module, _, name = ARCHITECTURES[f"{kind}ForMaskedLM"].partition(":")
    monkeypatch.setattr(getattr(import_module(module), name), "supports_causal_loss", True)
    save_as_on_hub(tiny_encoder(kind), tmp_path)
    gc.freeze()  # the suite collects garbage a dozen times; what is here already need not be searched each time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = run_benchmark_suite(str(tmp_path), phases=[1, 2, 3], verbose=False, test_text=" ".join(WORDS))
    finally:
        gc.unfreeze()
    assert {result.name for result in found} >= CHECKS
    failed = {(result.phase, result.name) for result in found if not result.passed}
    assert failed == EXPECTED_FAILURES.get(kind, set())
