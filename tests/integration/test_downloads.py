"""Downloads: only what is needed, by commit, the last few kept, and nothing deleted that was there before."""

import json
import shutil

import pytest

from tests.hub_cache import add_revision, hub_cache, move_branch, tiny_tokenizer, write_hub_cache
from tests.hub_server import serve_hub
from tests.models import tiny_model
from tl_aniso.errors import ModelError, TlAnisoError, TlAnisoWarning
from tl_aniso.models import Downloads, Entry, discover, with_sizes
from tl_aniso.models import hub as hub_module
from tl_aniso.models.hub import Unreachable
from tl_aniso.models.weights import needed_files

PYTHIA = "EleutherAI/pythia-160m"
STEPS = ("step0", "step1", "step2", "step4")
FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    """Four checkpoints, each also with what a measurement does not need; step1's weights are step0's."""
    place = tmp_path_factory.mktemp("hub")
    tokenizer = tiny_tokenizer()
    for step, seed in zip((*STEPS, "main"), (0, 0, 2, 3, 4), strict=True):
        directory = place / step
        tiny_model("neox-parallel", seed=seed, vocab_size=300, bos_token_id=0, eos_token_id=0).save_pretrained(
            directory
        )
        tokenizer.save_pretrained(directory)
        for name in ("pytorch_model.bin", "optimizer.pt", "training_args.json"):
            (directory / name).write_bytes(step.encode() * 1000)
    write_hub_cache(place / "remote", PYTHIA, {step: place / step for step in (*STEPS, "main")})
    return place / "remote"


@pytest.fixture
def hub(remote, tmp_path):
    with serve_hub(remote) as found, hub_cache(tmp_path / "cache", endpoint=found.endpoint):
        yield found


def repository(cache):
    return cache / f"models--{PYTHIA.replace('/', '--')}"


def snapshots(cache):
    place = repository(cache) / "snapshots"
    return {path.name: {file.name for file in path.iterdir()} for path in place.iterdir()} if place.is_dir() else {}


def blobs(cache):
    return {path.name for path in (repository(cache) / "blobs").iterdir()}


def copied(remote, cache, commit, files):
    """A snapshot that the user had before, with its blobs."""
    source, target = repository(remote) / "snapshots" / commit, repository(cache) / "snapshots" / commit
    target.mkdir(parents=True)
    (repository(cache) / "blobs").mkdir(exist_ok=True)
    for name in files:
        blob = (source / name).resolve()
        shutil.copy2(blob, repository(cache) / "blobs" / blob.name)
        (target / name).symlink_to(f"../../blobs/{blob.name}")


def test_only_what_is_measured_is_downloaded_and_only_once(hub, tmp_path):
    listing = discover("pythia-160m")
    downloads = Downloads()
    place = downloads.fetch(listing["step2"])
    assert {path.name for path in place.iterdir()} == FILES
    assert place.name == listing["step2"].commit
    asked = " ".join(hub.asked)
    assert "optimizer.pt" not in asked
    assert "pytorch_model.bin" not in asked
    assert not (repository(tmp_path / "cache") / "refs").exists()  # by commit: no branch was asked for
    hub.asked.clear()
    assert downloads.fetch(listing["step2"]) == place
    loaded = downloads.load(listing["step2"])
    assert hub.asked == []
    assert (loaded.name, loaded.revision) == (PYTHIA, listing["step2"].commit)


def test_the_last_n_stay_on_the_disk(hub, tmp_path):
    listing = with_sizes(discover("pythia-160m"), progress=False)
    downloads = Downloads(keep=2)
    for step in STEPS:
        downloads.fetch(listing[step])
    assert snapshots(tmp_path / "cache") == {listing[step].commit: FILES for step in ("step2", "step4")}
    # Config and tokenizer are the same in all of them, so their blobs are shared and stay.
    assert len(blobs(tmp_path / "cache")) == len(FILES) + 1
    assert downloads.load(listing["step2"]).revision == listing["step2"].commit
    downloads.fetch(listing["step0"])  # step2 was used last, so step4 goes
    assert set(snapshots(tmp_path / "cache")) == {listing["step2"].commit, listing["step0"].commit}


def test_what_was_there_before_stays(hub, remote, tmp_path):
    cache = tmp_path / "cache"
    listing = discover("pythia-160m")
    copied(remote, cache, listing["step1"].commit, FILES)  # a complete one
    copied(remote, cache, listing["step2"].commit, ["config.json"])  # a part of one
    orphan = repository(cache) / "blobs" / ("ab" * 32)
    orphan.write_bytes(b"of an older revision")
    before = blobs(cache)
    downloads = Downloads(keep=1)
    for step in (*STEPS, "main"):
        downloads.fetch(listing[step])
    found = snapshots(cache)
    assert found.pop(listing["step1"].commit) == FILES
    assert found.pop(listing["step2"].commit) == {"config.json"}
    assert found == {listing["main"].commit: FILES}
    assert before <= blobs(cache)
    assert (repository(cache) / "snapshots" / listing["step1"].commit / "model.safetensors").stat().st_size > 1000


def test_a_blob_that_was_there_before_stays_without_a_snapshot(hub, remote, tmp_path):
    cache = tmp_path / "cache"
    listing = discover("pythia-160m")
    weights = (repository(remote) / "snapshots" / listing["step2"].commit / "model.safetensors").resolve()
    (repository(cache) / "blobs").mkdir(parents=True)
    shutil.copy2(weights, repository(cache) / "blobs" / weights.name)
    downloads = Downloads(keep=1)
    downloads.fetch(listing["step2"])
    downloads.fetch(listing["step4"])
    assert set(snapshots(cache)) == {listing["step4"].commit}
    assert weights.name in blobs(cache)


@pytest.mark.parametrize("existed", [False, True])
def test_a_repository_goes_as_a_whole_only_if_it_came_here_as_a_whole(hub, remote, tmp_path, existed):
    cache, final = tmp_path / "cache", "HuggingFaceTB/SmolLM2-360M"
    if not (remote / "models--HuggingFaceTB--SmolLM2-360M").exists():
        llama = tiny_model("llama", vocab_size=300, bos_token_id=0, eos_token_id=0)
        write_hub_cache(remote, final, {"main": llama})
    if existed:
        (repository(cache) / "blobs").mkdir(parents=True)
        (repository(cache) / "blobs" / ("ab" * 32)).write_bytes(b"of an older revision")
    downloads = Downloads(keep=1)
    downloads.fetch(discover("pythia-160m")["step0"])
    downloads.fetch(discover(Entry(final, final, final))["main"])
    assert snapshots(cache) == {}
    assert repository(cache).exists() == existed
    if existed:
        assert blobs(cache) == {"ab" * 32}


def test_a_snapshot_that_someone_named_meanwhile_stays(hub, tmp_path):
    listing = discover("pythia-160m")
    downloads = Downloads(keep=1)
    downloads.fetch(listing["step0"])
    move_branch(tmp_path / "cache", PYTHIA, "step0", listing["step0"].commit)
    downloads.fetch(listing["step2"])
    downloads.fetch(listing["step4"])
    assert set(snapshots(tmp_path / "cache")) == {listing[step].commit for step in ("step0", "step4")}


def test_another_repository_with_the_same_commit_is_left_alone(hub, tmp_path):
    cache = tmp_path / "cache"
    listing = discover("pythia-160m")
    downloads = Downloads(keep=1)
    downloads.fetch(listing["step0"])
    copies = [cache / f"models--someone{i}--copy" for i in range(8)]
    for copy in copies:
        shutil.copytree(repository(cache), copy, symlinks=True)
    downloads.fetch(listing["step2"])
    assert set(snapshots(cache)) == {listing["step2"].commit}
    for copy in copies:
        assert [path.name for path in (copy / "snapshots").iterdir()] == [listing["step0"].commit]


def test_a_later_run_of_the_study_goes_on_with_the_ledger(hub, tmp_path):
    listing, ledger = discover("pythia-160m"), tmp_path / "ledger.json"
    Downloads(keep=2, ledger=ledger).fetch(listing["step0"])
    again = Downloads(keep=1, ledger=ledger)
    again.fetch(listing["step2"])
    assert set(snapshots(tmp_path / "cache")) == {listing["step2"].commit}
    Downloads(keep=1).fetch(listing["step4"])  # another study: step2 is none of its own
    assert set(snapshots(tmp_path / "cache")) == {listing["step2"].commit, listing["step4"].commit}
    ledger.write_text("{}", encoding="utf-8")
    with pytest.raises(ModelError, match=r"ledger\.json does not say what was downloaded"):
        Downloads(ledger=ledger)


def test_a_run_killed_while_downloading_knows_its_remains(hub, tmp_path, monkeypatch):
    listing, ledger = discover("pythia-160m"), tmp_path / "ledger.json"
    with monkeypatch.context() as patch:
        patch.setattr("tl_aniso.models.download.patiently", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr("tl_aniso.models.download.files_of", lambda *_: dict.fromkeys(FILES, 1))
        with pytest.raises(KeyboardInterrupt):
            Downloads(keep=1, ledger=ledger).fetch(listing["step0"])
    assert [one["commit"] for one in json.loads(ledger.read_text())["fetched"]] == [listing["step0"].commit]
    Downloads(keep=1, ledger=ledger).fetch(listing["step2"])
    assert set(snapshots(tmp_path / "cache")) == {listing["step2"].commit}


def test_a_rate_limit_in_the_middle_is_waited_for(hub, tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(hub_module.time, "sleep", waits.append)
    listing = with_sizes(discover("pythia-160m"), ["step0"], progress=False)
    hub.busy += [(429, {"Retry-After": "7"})] * 6
    assert Downloads().fetch(listing["step0"]).is_dir()
    assert waits == [8.0] * 5 + [7.0]  # the client's own patience, a second longer each time, then ours
    assert set(snapshots(tmp_path / "cache")) == {listing["step0"].commit}


def test_a_cache_at_fault_is_left_as_it_is_with_a_warning(hub, tmp_path):
    listing = discover("pythia-160m")
    downloads = Downloads(keep=1)
    downloads.fetch(listing["step0"])
    move_branch(tmp_path / "cache", PYTHIA, "gone", "0" * 40)  # the hub's tools refuse such a repository
    with pytest.warns(TlAnisoWarning, match=r"stays on the disk: .* refer to missing commit"):
        downloads.fetch(listing["step2"])
    assert set(snapshots(tmp_path / "cache")) == {listing[step].commit for step in ("step0", "step2")}


def test_without_a_connection_only_the_cache_serves(remote, tmp_path):
    with serve_hub(remote) as hub, hub_cache(tmp_path / "cache", endpoint=hub.endpoint):
        listing = discover("pythia-160m")
        Downloads().fetch(listing["step0"])
    with hub_cache(tmp_path / "cache"):
        assert Downloads().load(listing["step0"]).revision == listing["step0"].commit
        with pytest.raises(Unreachable, match="offline"):
            Downloads().fetch(listing["step1"])


def test_a_branch_without_weights_is_not_downloaded(hub, remote):
    commit = add_revision(remote, PYTHIA, "step8", None, None)
    listing = discover("pythia-160m")
    assert listing["step8"].commit == commit
    with pytest.raises(ModelError, match=r"step8 .* cannot be measured: no weights"):
        Downloads().fetch(listing["step8"])


def test_a_full_disk_is_one_clear_error(hub, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    checkpoint = discover("pythia-160m")["step0"]
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.snapshot_download", full)
        with pytest.raises(TlAnisoError, match=r"cannot download EleutherAI/pythia-160m step0 .*: .* No space left"):
            Downloads().fetch(checkpoint)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(TlAnisoError, match=r"cannot write the ledger .*ledger\.json"):
        Downloads(ledger=tmp_path / "file" / "ledger.json").fetch(checkpoint)


@pytest.mark.parametrize(("keep", "said"), [(0, "at least 1"), ("2", "must be an integer")])
def test_at_least_one_is_kept(keep, said):
    with pytest.raises(TlAnisoError, match=said):
        Downloads(keep=keep)


SHARDS = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("held", "needed", "wrong"),
    [
        (["model.safetensors", "pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"], ["model.safetensors"], None),
        ([*SHARDS, INDEX, "pytorch_model.bin"], [*SHARDS, INDEX], None),
        (["pytorch_model.bin", "adapter_model.safetensors", "rust_model.ot"], ["pytorch_model.bin"], None),
        ([*SHARDS[:2], INDEX, "pytorch_model.bin"], ["pytorch_model.bin"], None),
        ([*SHARDS[:2], INDEX], [], "shards are missing: 2 of 3 are there"),
        (SHARDS, [], f"no {INDEX}, which says what each shard holds"),
        ([INDEX], [], "shards are missing: 0 of an index are there"),
        (["original/model.safetensors", "optimizer.pt"], [], "no weights"),
        ([], [], "no weights"),
    ],
)
def test_one_format_of_weights_is_needed_and_all_of_it(held, needed, wrong):
    beside = ["config.json", "merges.txt", "tokenizer.json", "vocab.json"]
    found, said = needed_files([*held, *beside, "README.md", "onnx/config.json", "training_args.bin"])
    assert (list(found), said) == (sorted([*needed, *beside]), wrong)


def test_weights_without_a_config_are_none():
    assert needed_files(["model.safetensors"])[1] == "no config.json"
