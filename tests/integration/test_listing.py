"""Discovery of checkpoints: from a hub that answers here, its cache without a connection, directories, and files."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from tests.encoder_models import tiny_encoder
from tests.hub_cache import add_revision, hub_cache, move_branch, tiny_tokenizer, write_hub_cache
from tests.hub_server import serve_hub
from tests.models import tiny_model
from tl_aniso.errors import ModelError
from tl_aniso.models import discover, find, load_model, read_listings, save_listings, with_sizes
from tl_aniso.models import hub as hub_module
from tl_aniso.models.recorded import store_listing

PYTHIA, SMOL, SMOL_FINAL = (
    *("EleutherAI/pythia-160m", "HuggingFaceTB/SmolLM2-360M-intermediate-checkpoints", "HuggingFaceTB/SmolLM2-360M"),
)


def neox(seed):
    return tiny_model("neox-parallel", seed=seed, vocab_size=300, bos_token_id=0, eos_token_id=0)


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    """What the hub holds: Pythia with a branch without weights and foreign ones, and SmolLM2 in two repositories."""
    place = tmp_path_factory.mktemp("hub") / "remote"
    pythia = {"step0": neox(0), "step1000": neox(1), "step2000": None, "main": neox(2), "my-experiment": neox(3)}
    llama = tiny_model("llama", vocab_size=300, bos_token_id=0, eos_token_id=0)
    return place, {
        PYTHIA: write_hub_cache(place, PYTHIA, pythia),
        SMOL: write_hub_cache(place, SMOL, {"step-160000": llama, "step-320000": llama, "main": None}),
        SMOL_FINAL: write_hub_cache(place, SMOL_FINAL, {"main": llama}),
    }


@pytest.fixture
def online(remote, tmp_path):
    with serve_hub(remote[0]) as hub, hub_cache(tmp_path / "cache", endpoint=hub.endpoint):
        yield hub


@pytest.fixture
def waits(monkeypatch):
    found = []
    monkeypatch.setattr(hub_module.time, "sleep", found.append)
    return found


def names(listing):
    return [one.name for one in listing]


def test_the_hub_is_asked_once_and_branches_become_commits(remote, online):
    listing = discover("pythia-160m")
    assert online.asked == [f"/api/models/{PYTHIA}/refs"]
    assert names(listing) == ["step0", "step1000", "step2000", "main"]
    assert {one.name: one.commit for one in listing}.items() <= remote[1][PYTHIA].items()
    assert (listing.source, listing.unread) == ("hub", ("my-experiment",))
    assert [one.tokens_seen for one in listing] == [0, 1000 * 2_097_152, 2000 * 2_097_152, None]
    assert listing.final.name == "main"
    assert not any(one.cached for one in listing)
    assert (listing.nearest(1400).found.name, listing.nearest(1400).gap) == ("step1000", -400)


def test_sizes_are_asked_for_what_is_planned_and_branches_without_weights_are_missing(remote, online):
    listing = discover("pythia-160m")
    online.asked.clear()
    listing = with_sizes(listing, ["step1000", "step2000"], progress=False)
    assert online.asked == [f"/api/models/{PYTHIA}/revision/{remote[1][PYTHIA][n]}" for n in ("step1000", "step2000")]
    assert [(one.name, one.reason) for one in listing.missing] == [("step2000", "no weights")]
    assert names(listing) == ["step0", "step1000", "main"]
    snapshot = remote[0] / f"models--{PYTHIA.replace('/', '--')}" / "snapshots" / listing["step1000"].commit
    assert listing["step1000"].n_bytes == sum(path.stat().st_size for path in snapshot.iterdir())
    assert listing["step0"].n_bytes is None
    with pytest.raises(ModelError, match="step2000 cannot be measured: no weights"):
        listing["step2000"]
    with pytest.raises(ModelError, match="no checkpoint 'step3000'; it has step0, step1000, main"):
        listing["step3000"]


def test_the_finished_model_may_lie_in_another_repository(remote, online):
    listing = discover("smollm2-360m")
    assert [(one.repo, one.name) for one in listing] == [
        *((SMOL, "step-160000"), (SMOL, "step-320000"), (SMOL_FINAL, "main")),
    ]
    assert listing.final.commit == remote[1][SMOL_FINAL]["main"]


def test_what_the_hub_does_not_have_is_an_error(online):
    with pytest.raises(ModelError, match="no such thing: the branches of nobody/nothing"):
        discover("nobody/nothing")


@pytest.mark.parametrize(
    ("status", "headers", "waited"),
    [
        (429, {"Retry-After": "37"}, 37.0),
        (429, {"RateLimit": '"api";r=0;t=55'}, 56.0),
        (503, {"Retry-After": "5"}, 5.0),
        (503, {}, 2.0),
        (429, {"Retry-After": "soon"}, 2.0),
    ],
)
def test_a_busy_hub_is_waited_for_as_it_tells(online, waits, capsys, status, headers, waited):
    online.busy.append((status, headers))
    assert names(discover("pythia-160m")) == ["step0", "step1000", "step2000", "main"]
    assert waits == [waited]
    assert f"the hub answers {status}" in capsys.readouterr().err


def test_a_date_to_wait_for_is_understood(online, waits):
    online.busy.append((429, {"Retry-After": format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)}))
    discover("pythia-160m")
    assert waits == pytest.approx([90], abs=3)


def test_waiting_is_bounded(online, waits):
    online.busy += [(429, {"Retry-After": "1"})] * 100
    with pytest.raises(ModelError, match=r"still answers 429 .* after 6 tries"):
        discover("pythia-160m")
    assert waits == [1.0] * 5
    online.busy[:] = [(429, {"Retry-After": "86400"})]
    with pytest.raises(ModelError, match="asks to wait 86400 s; try later"):
        discover("pythia-160m")
    assert waits == [1.0] * 5


def test_a_refusal_is_not_repeated(online, waits):
    online.busy.append((403, {}))
    with pytest.raises(ModelError, match="log in"):
        discover("pythia-160m")
    assert waits == []


def test_without_a_connection_the_cache_is_listed_and_says_so(remote):
    with hub_cache(remote[0]):
        listing = discover("pythia-160m")
        smol = discover("smollm2-360m")
    assert (listing.source, names(listing)) == ("cache", ["step0", "step1000", "main"])
    assert "offline (HF_HUB_OFFLINE is set)" in listing.note
    assert "listed is the cache alone" in listing.note
    assert [(one.name, one.reason) for one in listing.missing] == [("step2000", "no weights in the cache")]
    assert listing.unread == ("my-experiment",)
    assert all(one.cached and one.n_bytes for one in listing)
    assert {one.name: one.commit for one in listing}.items() <= remote[1][PYTHIA].items()
    assert [one.repo for one in smol] == [SMOL, SMOL, SMOL_FINAL]


def test_a_hub_that_does_not_answer_is_as_good_as_none(remote):
    with hub_cache(remote[0], endpoint="http://127.0.0.1:9"):
        listing = discover("pythia-160m")
    assert (listing.source, len(listing)) == ("cache", 3)
    assert "the hub cannot be reached" in listing.note


def test_neither_connection_nor_cache_is_an_error(tmp_path):
    with hub_cache(tmp_path), pytest.raises(ModelError, match="the cache holds no checkpoint of olmo-1b"):
        discover("olmo-1b")


def test_a_branch_moved_after_listing_is_not_followed(tmp_path):
    tokenizer = tiny_tokenizer()
    first, second = neox(0), neox(1)
    with hub_cache(tmp_path):
        commit = write_hub_cache(tmp_path, PYTHIA, {"step0": first}, tokenizer)["step0"]
        planned = discover("pythia-160m")["step0"]
        moved = add_revision(tmp_path, PYTHIA, "step0", second, tokenizer)
        assert moved != commit
        assert discover("pythia-160m")["step0"].commit == moved
        loaded = planned.load()
        by_name = load_model(PYTHIA, revision="step0")
    assert (planned.commit, loaded.revision, loaded.name) == (commit, commit, PYTHIA)
    assert (loaded.model.get_input_embeddings().weight == first.get_input_embeddings().weight).all()
    assert (by_name.model.get_input_embeddings().weight == second.get_input_embeddings().weight).all()


def test_loading_what_is_cached_asks_nobody(remote):
    """A sweep with a warm cache must not run into rate limits; by its name, a model costs requests at every load."""
    with serve_hub(remote[0]) as hub, hub_cache(remote[0], endpoint=hub.endpoint):
        checkpoint = discover("pythia-160m")["step1000"]
        hub.asked.clear()
        loaded = checkpoint.load()
    assert hub.asked == []
    assert (loaded.name, loaded.revision) == (PYTHIA, checkpoint.commit)
    assert (loaded.model.config._name_or_path, loaded.tokenizer.name_or_path) == (PYTHIA, PYTHIA)
    assert (loaded.model.get_input_embeddings().weight == neox(1).get_input_embeddings().weight).all()


def test_an_offline_load_does_not_need_main(tmp_path):
    with hub_cache(tmp_path):
        commits = write_hub_cache(tmp_path, PYTHIA, {"step5": neox(0)}, refs=False)
        assert load_model(PYTHIA, revision=commits["step5"]).revision == commits["step5"]


def test_downloads_by_commit_get_their_names_from_the_listing_that_was_kept(remote, tmp_path):
    with serve_hub(remote[0]) as hub, hub_cache(tmp_path / "cache", endpoint=hub.endpoint):
        listing = discover("pythia-160m")
        store_listing(listing)
    with hub_cache(tmp_path / "cache"):
        write_hub_cache(tmp_path / "cache", PYTHIA, {"step1000": neox(1), "step7": neox(7)}, refs=False)
        found = discover("pythia-160m")
    assert names(found) == ["step1000"]
    assert found["step1000"].commit == listing["step1000"].commit
    assert len(found.unread) == 1  # step7's commit has a name nowhere


def test_a_directory_of_saved_models_is_a_listing(tmp_path):
    tokenizer = tiny_tokenizer()
    for seed, name in enumerate(("step10", "step2", "step-300-tokens1M")):
        neox(seed).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    (tmp_path / "step5").mkdir()
    (tmp_path / "logs").mkdir()
    listing = discover(str(tmp_path))
    assert names(listing) == ["step2", "step10", "step-300-tokens1M"]
    assert (listing.source, listing.unread) == ("directory", ("logs",))
    assert [(one.name, one.reason) for one in listing.missing] == [("step5", "no weights")]
    assert listing["step-300-tokens1M"].tokens_seen == 10**6
    assert listing["step10"].load().model.config.vocab_size == 300
    alone = discover(str(tmp_path / "step2"))
    assert names(alone) == ["main"]
    assert alone.final.load().revision == "local"
    with pytest.raises(ModelError, match="holds no saved model"):
        discover(str(tmp_path / "logs"))
    (tmp_path / "logs" / "model.gguf").write_bytes(b"GGUF")
    assert discover(str(tmp_path / "logs")).final.files == {"model.gguf": 4}
    neox(9).save_pretrained(tmp_path)  # as training leaves it: checkpoints beside the finished model
    assert names(discover(str(tmp_path))) == ["step2", "step10", "step-300-tokens1M", "main"]


def test_encoders_lie_in_the_cache_as_decoders_do(tmp_path):
    tokenizer = tiny_tokenizer(mask=True)
    model = tiny_encoder("EuroBert", vocab_size=300)
    with hub_cache(tmp_path):
        write_hub_cache(tmp_path, "EuroBERT/EuroBERT-210m", {"step1": model, "main": model}, tokenizer)
        listing = discover("eurobert-210m")
        loaded = listing["step1"].load()
    assert names(listing) == ["step1", "main"]
    assert (loaded.objective, type(loaded.model).__name__) == ("masked", find("eurobert-210m").class_name)
    assert loaded.revision == listing["step1"].commit
    assert tokenizer.mask_token_id is not None
    assert len(tokenizer) == 300


def test_a_recorded_listing_says_the_same_without_asking(remote, online, tmp_path):
    listed = [with_sizes(discover(name), progress=False) for name in ("pythia-160m", "smollm2-360m")]
    save_listings(tmp_path / "listing.json", listed)
    online.asked.clear()
    for before in listed:
        after = discover(before.entry.name, recorded=tmp_path / "listing.json")
        assert after.recorded
        assert after.checkpoints == before.checkpoints
        assert [one.files for one in after] == [one.files for one in before]
        assert (after.missing, after.unread, after.note) == (before.missing, before.unread, before.note)
        assert (after.source, after.listed, after.entry) == (before.source, before.listed, before.entry)
    assert online.asked == []
    assert len(listed[0].missing) == 1
    with pytest.raises(ModelError, match="does not list olmo-1b; it lists pythia-160m, smollm2-360m"):
        discover("olmo-1b", recorded=tmp_path / "listing.json")
    assert [path.name for path in tmp_path.iterdir() if "listing" in path.name] == ["listing.json"]


def test_what_is_here_shows_in_a_recorded_listing(remote, tmp_path):
    with serve_hub(remote[0]) as hub, hub_cache(tmp_path / "cache", endpoint=hub.endpoint):
        save_listings(tmp_path / "listing.json", [discover("pythia-160m")])
    with hub_cache(remote[0]):
        here = discover("pythia-160m", recorded=tmp_path / "listing.json")
    assert [one.cached for one in here] == [True, True, False, True]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda content: "{", "is no JSON"),
        (lambda content: "[]", "holds no listings"),
        (lambda content: json.dumps({**content, "format": 99}), "has format 99, this version reads 1"),
        (lambda content: json.dumps({**content, "listings": [{}]}), "is damaged: KeyError 'source'"),
        (
            lambda content: json.dumps(content).replace('"naming rules"', '"hearsay"'),
            "damaged: ValueError source 'hearsay'",
        ),
        (
            lambda content: json.dumps(content).replace('{"name": "step1"', '{"commit": "../..", "name": "step1"'),
            "no commit",
        ),
        (lambda content: json.dumps(content).replace('{"name": "step1"', '{"name": 1'), "1 is no text"),
    ],
)
def test_a_damaged_record_is_refused_by_name(tmp_path, damage, said):
    from tl_aniso.models.rules import RECORDED_RULES

    path = tmp_path / "listing.json"
    path.write_text(damage(json.loads(RECORDED_RULES.read_text(encoding="utf-8"))), encoding="utf-8")
    with pytest.raises(ModelError, match=r"listing\.json") as refused:
        read_listings(path)
    assert said in str(refused.value)


def test_an_older_record_stays_where_a_new_one_cannot_be_written(tmp_path, monkeypatch, remote):
    with hub_cache(remote[0]):
        listing = discover("pythia-160m")
    save_listings(tmp_path / "listing.json", [listing])
    before = (tmp_path / "listing.json").read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(Exception, match="No space left"):
        save_listings(tmp_path / "listing.json", [])
    assert (tmp_path / "listing.json").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_branch_of_the_cache_that_points_to_nothing_is_missing(tmp_path):
    with hub_cache(tmp_path):
        write_hub_cache(tmp_path, PYTHIA, {"step0": neox(0)})
        move_branch(tmp_path, PYTHIA, "step9", "0" * 40)
        move_branch(tmp_path, PYTHIA, "step8", "../../../etc")
        listing = discover("pythia-160m")
    assert names(listing) == ["step0"]
    assert [(one.name, one.reason) for one in listing.missing] == [("step9", "no weights in the cache")]
