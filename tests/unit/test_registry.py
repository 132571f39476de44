"""The registry: ten models and a small one, found by any of their names; and their listing by naming rules."""

import pytest

from tl_aniso.errors import ModelError
from tl_aniso.models import REGISTRY, discover, find, read_listings
from tl_aniso.models.revisions import parse_revision
from tl_aniso.models.rules import RECORDED_RULES, from_naming_rules

TEN = {
    "pythia-160m": ("EleutherAI/pythia-160m", "GPTNeoXForCausalLM", "causal", 2_097_152),
    "pythia-410m": ("EleutherAI/pythia-410m", "GPTNeoXForCausalLM", "causal", 2_097_152),
    "pythia-1b": ("EleutherAI/pythia-1b", "GPTNeoXForCausalLM", "causal", 2_097_152),
    "olmo-1b": ("allenai/OLMo-1B-hf", "OlmoForCausalLM", "causal", None),
    "smollm2-360m": ("HuggingFaceTB/SmolLM2-360M-intermediate-checkpoints", "LlamaForCausalLM", "causal", None),
    "smollm2-1.7b": ("HuggingFaceTB/SmolLM2-1.7B-intermediate-checkpoints", "LlamaForCausalLM", "causal", 2_097_152),
    "gaperon-1.5b": ("almanach/Gaperon-1125-1B", "LlamaForCausalLM", "causal", None),
    "eurobert-210m": ("EuroBERT/EuroBERT-210m", "EuroBertForMaskedLM", "masked", None),
    "eurobert-610m": ("EuroBERT/EuroBERT-610m", "EuroBertForMaskedLM", "masked", None),
    "moderncamembert-base": ("almanach/moderncamembert-base", "ModernBertForMaskedLM", "masked", None),
}


def test_the_registry_holds_the_ten_models_and_a_small_one():
    facts = {e.name: (e.hub_id, e.class_name, e.objective, e.tokens_per_step) for e in REGISTRY.values()}
    small = facts.pop("smollm2-135m")
    assert facts == TEN
    assert small == ("HuggingFaceTB/SmolLM2-135M-intermediate-checkpoints", "LlamaForCausalLM", "causal", 1_048_576)
    assert {e.final_id for e in REGISTRY.values() if e.final_id != e.hub_id} == {
        *("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-360M", "HuggingFaceTB/SmolLM2-1.7B"),
    }


def test_every_class_is_one_that_a_capture_knows():
    from tl_aniso.capturing.bindings.families import FAMILIES

    causal = {entry.class_name for entry in REGISTRY.values() if entry.objective == "causal"}
    assert causal <= set(FAMILIES)


@pytest.mark.parametrize("name", ["smollm2-360m", "SmolLM2-360M", "HuggingFaceTB/SmolLM2-360M"])
def test_found_by_name_by_hub_id_and_by_the_final_one(name):
    assert find(name) is REGISTRY["smollm2-360m"]
    assert find(REGISTRY["smollm2-360m"].hub_id.lower()).known


def test_another_hub_id_or_directory_is_an_entry_of_its_own(tmp_path):
    other = find("EleutherAI/pythia-70m")
    assert (other.name, other.hub_id, other.final_id) == ("EleutherAI/pythia-70m",) * 3
    assert (other.known, other.local, other.objective, other.tokens_seen(5)) == (False, False, None, None)
    assert find("gpt2").hub_id == "gpt2"
    assert find(str(tmp_path)).local


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pythia-70m", "near are pythia-410m, pythia-160m, pythia-1b"),
        ("smollm-360", "near are smollm2-360m"),
        ("./no/such/place", "no directory here; the registry has pythia-160m"),
        ("EleutherAI/../pythia-160m", "near are pythia-160m"),
        ("", "named by a string, got ''"),
        ("a\0b", "named by a string"),
        (5, "named by a string, got 5"),
    ],
)
def test_what_is_no_model_is_refused_with_what_is_near(name, said):
    with pytest.raises(ModelError) as refused:
        find(name)
    assert said in str(refused.value)


def test_tokens_come_from_the_size_of_a_step_or_from_the_name():
    assert find("pythia-1b").tokens_seen(143_000) == 143_000 * 2_097_152  # 300 B
    assert find("olmo-1b").tokens_seen(10_000, 41 * 10**9) == 41 * 10**9
    assert find("smollm2-360m").tokens_seen(160_000) is None
    assert [find(name).tokens for name in ("pythia-1b", "olmo-1b", "gaperon-1.5b")] == [
        *("2,097,152 a step", "in the name", "unknown"),
    ]


def test_the_recorded_rules_list_all_models_and_say_that_no_hub_was_asked():
    recorded = read_listings(RECORDED_RULES)
    assert list(recorded) == list(REGISTRY)
    for name, listing in recorded.items():
        assert listing.checkpoints == from_naming_rules(REGISTRY[name]).checkpoints  # the file follows the rules
        assert listing.source == "naming rules"
        assert "not from the hub" in listing.note
        assert listing.final.repo == REGISTRY[name].final_id
        assert all(one.commit is None and one.n_bytes is None for one in listing)
    assert len(recorded["pythia-160m"]) == 154 + 1
    assert [one.step for one in recorded["pythia-1b"]][:13] == [0, *(2**i for i in range(10)), 1000, 2000]
    assert recorded["olmo-1b"]["step10000-tokens41B"].tokens_seen == 41 * 10**9
    assert recorded["smollm2-1.7b"]["step-125000"].tokens_seen == 125_000 * 2_097_152
    assert [len(recorded[name]) for name in ("gaperon-1.5b", "eurobert-210m", "moderncamembert-base")] == [1, 1, 1]


def test_names_alone_are_not_loaded():
    listing = discover("pythia-160m", recorded=RECORDED_RULES)
    with pytest.raises(ModelError, match="commit of EleutherAI/pythia-160m step1 is not known"):
        listing["step1"].load()


def test_every_rule_is_a_name_that_is_read():
    assert all(parse_revision(one.name) for entry in REGISTRY.values() for one in from_naming_rules(entry))
