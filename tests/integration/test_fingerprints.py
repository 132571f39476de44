"""Fingerprints: equal checkpoints and mixed shards are found by the names of their tensors."""

import hashlib
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.hub_cache import hub_cache, write_hub_cache
from tests.models import tiny_model
from tl_aniso.errors import ModelError
from tl_aniso.models import compare, discover, fingerprint, tensor_hashes
from tl_aniso.models.fingerprints import Fingerprint


def neox(seed):
    return tiny_model("neox-parallel", seed=seed, vocab_size=300, bos_token_id=0, eos_token_id=0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Four different models, each in two shards or more."""
    place = tmp_path_factory.mktemp("models")
    for seed in range(4):
        neox(seed).save_pretrained(place / str(seed), max_shard_size="60KB")
    assert len(list((place / "0").glob("model-*.safetensors"))) > 1
    return place


def prints(saved, **seeds):
    return [fingerprint(saved / str(seed), name=name) for name, seed in seeds.items()]


def rows(comparison):
    return {row.checkpoint: (row.duplicate_of, row.mixed_with) for row in comparison.frame.itertuples()}


def notes(comparison):
    return dict(zip(comparison.frame["checkpoint"], comparison.frame["note"], strict=True))


def test_a_hash_is_that_of_type_shape_and_bytes(tmp_path):
    weight = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    save_file({"w": weight, "b": torch.zeros(3)}, tmp_path / "model.safetensors")
    found = fingerprint(tmp_path).tensors
    assert found["w"].sha256 == hashlib.sha256(b"F32[3, 4]" + weight.numpy().tobytes()).hexdigest()
    assert (found["w"].telling, found["b"].telling) == (True, False)
    save_file({"w": weight.reshape(4, 3), "b": torch.zeros(3)}, tmp_path / "model.safetensors")
    assert fingerprint(tmp_path).tensors["w"].sha256 != found["w"].sha256


def test_files_and_formats_do_not_matter_but_a_single_bit_does(saved, tmp_path, monkeypatch):
    model = neox(0)
    model.save_pretrained(tmp_path / "whole")
    (tmp_path / "bin").mkdir()
    torch.save(load_file(tmp_path / "whole" / "model.safetensors"), tmp_path / "bin" / "pytorch_model.bin")
    digest = fingerprint(saved / "0").digest
    assert fingerprint(tmp_path / "whole").digest == digest
    assert fingerprint(tmp_path / "bin").digest == digest
    monkeypatch.setattr(tensor_hashes, "_PIECE", 64)  # read in pieces
    assert fingerprint(tmp_path / "whole").digest == digest
    content = bytearray((tmp_path / "whole" / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "whole" / "model.safetensors").write_bytes(content)
    changed = fingerprint(tmp_path / "whole")
    different = [name for name, one in fingerprint(saved / "0").tensors.items() if one != changed.tensors[name]]
    assert len(different) == 1


def test_half_precision_has_the_same_hash_in_both_formats(tmp_path):
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        held = {"w": torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).to(dtype), "s": torch.tensor(1.5)}
        for name in ("a", "b"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            (tmp_path / name).mkdir()
        save_file(held, tmp_path / "a" / "model.safetensors")
        torch.save(held, tmp_path / "b" / "pytorch_model.bin")
        first, second = fingerprint(tmp_path / "a"), fingerprint(tmp_path / "b")
        assert first.tensors == second.tensors
        assert first.tensors["w"].telling


def test_different_checkpoints_have_nothing_in_common(saved):
    found = compare(prints(saved, step0=0, step1000=1, step2000=2, main=3))
    assert (found.equal, found.mixtures, found.unchanging) == ((), (), ())
    assert set(rows(found).values()) == {("", "")}
    assert set(notes(found).values()) == {""}


def test_step_1_equal_to_step_0_is_expected_and_labelled(saved):
    found = compare(prints(saved, step0=0, step1=0, step2=1))
    assert rows(found) == {"step0": ("", ""), "step1": ("step0", ""), "step2": ("", "")}
    assert notes(found)["step1"] == "equal to step 0, as where the first rate is 0"
    assert found.equal[0].expected


def test_two_equal_steps_are_a_fault_of_the_later(saved):
    found = compare(prints(saved, step2000=1, step1000=1, step0=0, step3000=2))
    assert rows(found)["step2000"] == ("step1000", "")
    assert rows(found)["step1000"] == ("", "")
    assert notes(found)["step2000"] == "the same weights as step1000"
    assert not found.equal[0].expected


def test_final_weights_under_an_early_step_are_that_steps_fault(saved):
    found = compare(prints(saved, step0=0, step1000=3, step2000=1, step3000=2, step143000=3))
    assert rows(found)["step1000"] == ("step143000", "")
    assert rows(found)["step143000"] == ("", "")
    assert notes(found)["step1000"] == "holds the final weights"


@pytest.mark.parametrize("steps", [{"step10": 1, "step100": 1}, {"step0": 0, "step10": 1, "step100": 1}])
def test_final_weights_under_the_step_before_are_that_steps_fault_too(saved, steps):
    found = compare(prints(saved, **steps))
    assert rows(found)["step10"] == ("step100", "")
    assert rows(found)["step100"] == ("", "")
    assert notes(found)["step10"] == "holds the final weights"


@pytest.mark.parametrize("names", [("step1",), ("step10",), ("step1", "step2", "step10"), ("step1", "main")])
def test_where_nothing_was_trained_all_are_step_0(saved, names):
    found = compare(prints(saved, step0=0, **dict.fromkeys(names, 0)))
    assert rows(found)["step0"] == ("", "")
    assert all(rows(found)[name][0] for name in names)


def test_vectors_that_differ_under_equal_matrices_are_named(saved, tmp_path):
    model = neox(0)
    with torch.no_grad():
        model.gpt_neox.final_layer_norm.bias.add_(1)
    model.save_pretrained(tmp_path / "step1")
    found = compare([*prints(saved, step0=0, step2=1), fingerprint(tmp_path / "step1")])
    assert rows(found)["step1"] == ("step0", "")
    assert notes(found)["step1"].endswith("apart from 1 vectors: gpt_neox.final_layer_norm.bias")
    assert not found.equal[0].expected


def test_weights_without_a_matrix_are_compared_whole(tmp_path):
    for step, value in (("step0", 1.0), ("step5", 1.0), ("step9", 2.0), ("main", 3.0)):
        (tmp_path / step).mkdir()
        save_file({"w": torch.full((3, 4), value)}, tmp_path / step / "model.safetensors")
    found = compare(fingerprint(tmp_path / step) for step in ("step0", "step5", "step9", "main"))
    assert rows(found) == {"step0": ("", ""), "step5": ("step0", ""), "step9": ("", ""), "main": ("", "")}


def test_main_is_the_last_step_again(saved):
    found = compare(prints(saved, main=3, step0=0, step1000=3, step2000=1, step3000=3))
    assert rows(found)["main"] == ("step3000", "")
    assert notes(found)["main"] == "the last step, published as main too"
    assert rows(found)["step1000"] == ("step3000", "")
    assert [pair.duplicate for pair in found.equal if not pair.expected] == ["step1000"]


def test_a_shard_of_another_step_is_named_tensor_by_tensor(saved, tmp_path):
    mixed = tmp_path / "mixed"
    shutil.copytree(saved / "2", mixed)
    shard = sorted(path.name for path in mixed.glob("model-*.safetensors"))[0]
    shutil.copy(saved / "0" / shard, mixed / shard)
    matrices = {name for name, held in load_file(mixed / shard).items() if held.ndim == 2}
    assert matrices
    found = compare([*prints(saved, step1000=0, step2000=1, step4000=3), fingerprint(mixed, name="step3000")])
    assert rows(found) == {
        "step1000": ("", "step3000"),
        "step2000": ("", ""),
        "step3000": ("", "step1000"),
        "step4000": ("", ""),
    }
    (mixture,) = found.mixtures
    assert (mixture.first, mixture.second, set(mixture.tensors)) == ("step1000", "step3000", matrices)
    assert f"{len(matrices)} of {mixture.of} tensors are those of step1000" in notes(found)["step3000"]
    assert sorted(matrices)[0] in notes(found)["step3000"]


def test_constant_gains_and_frozen_tables_are_no_mixture():
    """Gains of 1 and zero biases are alike in young models; a table that never changes is alike in all."""

    def young(seed):
        model = neox(seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if seed < 2 and "layers.0.mlp.dense_4h_to_h.weight" in name:
                    parameter.zero_()  # as some initialise what writes to the residual stream
                elif parameter.ndim == 1:
                    parameter.fill_(float("norm" in name and name.endswith("weight")))
                elif "embed_in" in name:
                    parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape) / 1e4)
        return model

    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as place:
        for seed in range(3):
            young(seed).save_pretrained(Path(place) / f"step{seed}")
        found = compare([fingerprint(Path(place) / f"step{seed}") for seed in range(3)])
    assert found.mixtures == ()
    assert found.unchanging == ("gpt_neox.embed_in.weight",)


def test_listed_checkpoints_have_fingerprints_and_these_survive_json(tmp_path):
    import json

    with hub_cache(tmp_path):
        write_hub_cache(tmp_path, "EleutherAI/pythia-160m", {"step0": neox(0), "step1": neox(0), "main": neox(1)})
        found = [fingerprint(one) for one in discover("pythia-160m")]
    again = [Fingerprint.from_plain(json.loads(json.dumps(one.to_plain()))) for one in found]
    assert again == found
    assert rows(compare(again))["step1"] == ("step0", "")
    with pytest.raises(ModelError, match="no fingerprint"):
        Fingerprint.from_plain({"name": "step0"})
    with pytest.raises(ModelError, match="two checkpoints are called step0"):
        compare([found[0], found[0]])


def test_damaged_weights_are_refused_by_name(saved, tmp_path):
    shutil.copytree(saved / "0", tmp_path / "cut")
    shard = sorted((tmp_path / "cut").glob("model-*.safetensors"))[-1]
    shard.write_bytes(shard.read_bytes()[:-8])
    with pytest.raises(ModelError, match=f"{shard.name} is no readable safetensors file: it ends before"):
        fingerprint(tmp_path / "cut")
    shard.write_bytes(b"\xff" * 100)
    with pytest.raises(ModelError, match="is no readable safetensors file: a header of"):
        fingerprint(tmp_path / "cut")
    shard.unlink()
    with pytest.raises(ModelError, match="cannot be fingerprinted: shards are missing"):
        fingerprint(tmp_path / "cut")
    with pytest.raises(ModelError, match="is no directory that holds weights"):
        fingerprint(tmp_path / "nowhere")


def test_a_file_that_would_run_code_is_refused(tmp_path):
    class Bad:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"w": Bad()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is no readable file of weights"):
        fingerprint(tmp_path)
    assert not (tmp_path / "ran").exists()
