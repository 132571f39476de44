"""Names of checkpoints: every pattern that families publish, and nothing else."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tl_aniso.errors import TlAnisoError
from tl_aniso.models.revisions import Revision, nearest, parse_revision

PATTERNS = {
    "step0": (None, None, 0, None),
    "step512": (None, None, 512, None),
    "step143000": (None, None, 143_000, None),
    "step1000-tokens4B": (None, None, 1000, 4 * 10**9),
    "step10000-tokens41B": (None, None, 10_000, 41 * 10**9),
    "step-160000": (None, None, 160_000, None),
    "step-125000": (None, None, 125_000, None),
    "step-240000": (None, None, 240_000, None),
    "stage1-step140000-tokens294B": (1, None, 140_000, 294 * 10**9),
    "stage2-ingredient2-step23852-tokens50B": (2, 2, 23_852, 50 * 10**9),
    "checkpoint-500": (None, None, 500, None),
    "main": (None, None, None, None),
    # Units and case.
    "step7-tokens900K": (None, None, 7, 900_000),
    "step7-tokens900m": (None, None, 7, 900 * 10**6),
    "step7-tokens3T": (None, None, 7, 3 * 10**12),
    "step7-tokens4096": (None, None, 7, 4096),
    "step7-tokens1.5b": (None, None, 7, 15 * 10**8),
    "STEP7-Tokens0B": (None, None, 7, 0),
    "Stage1-Step0-tokens0B": (1, None, 0, 0),
}
JUNK = (
    *(
        "",
        "master",
        "Main",
        "refs/pr/1",
        "refs/heads/step512",
        "step",
        "step-",
        "step--5",
        "step-tokens4B",
        "checkpoint",
        "checkpoint500",
        "checkpoint--5",
        "512",
        "v1.0",
    ),
    *("step512 ", " step512", "step512\n", "step512\0", "step5 12", "step1e3", "step1_000", "step+5", "step1.5", "0x5"),
    *(
        "step512-tokens",
        "step512-tokensB",
        "step512-tokens4G",
        "step512-tokens4BB",
        "step512-tokens-4B",
        "step5-tokens.5B",
    ),
    *("step5-tokens0.5", "step5-tokens1.0001K", "tokens4B-step5", "stage-step5", "stage1-ingredient-step5", "stage1"),
    *("ingredient2-stage2-step5", "step5-step6", "mainstep5", "step5/../step6", "../step5", "step5;rm -rf", "step%35"),
    # Letters and digits of other scripts that compare or count like ours.
    *("ſtep512", "step٥١٢", "step५१२", "step512-to\u212aens4B", "step512-tokens4\u212a", "step²", "ｓｔｅｐ512"),
    "step" + "9" * 5000,
    "step5-tokens" + "9" * 5000 + "T",
    "stage" + "1-stage" * 2000,
)


@pytest.mark.parametrize(("name", "facts"), PATTERNS.items())
def test_every_published_pattern_is_read(name, facts):
    found = parse_revision(name)
    assert (found.stage, found.ingredient, found.step, found.tokens) == facts
    assert found.name == name


@pytest.mark.parametrize("name", JUNK)
def test_junk_is_no_checkpoint(name):
    assert parse_revision(name) is None


@pytest.mark.parametrize("thing", [None, 512, b"step512", ["step512"], object()])
def test_what_is_no_string_is_no_checkpoint(thing):
    assert parse_revision(thing) is None


numbers = st.integers(0, 10**15 - 1)
revisions = st.builds(
    lambda step, stage, ingredient, tokens: Revision("", step, stage, ingredient, tokens),
    numbers,
    st.none() | st.integers(0, 9999),
    st.none() | st.integers(0, 9999),
    st.none() | numbers | st.builds(lambda n, unit: n * unit, st.integers(0, 999), st.sampled_from([10**9, 10**12])),
)


@given(revisions, st.randoms())
def test_facts_survive_being_spelled_and_read_in_any_case(revision, random):
    spelled = "".join(random.choice((letter.lower(), letter.upper())) for letter in revision.canonical)
    found = parse_revision(spelled)
    facts = ("stage", "ingredient", "step", "tokens")
    assert [getattr(found, fact) for fact in facts] == [getattr(revision, fact) for fact in facts]
    assert found.canonical == revision.canonical


@given(st.text(alphabet=string.ascii_letters + string.digits + "-./ \n\0ſ\u212a٣", max_size=40) | st.text(max_size=40))
def test_whatever_is_read_is_spelled_again(name):
    found = parse_revision(name)
    if found is not None:
        assert name.isascii()
        assert parse_revision(found.canonical).canonical == found.canonical


def test_order_is_of_training_not_of_letters():
    names = [
        *("step0", "step2", "step10", "step100", "step1000-tokens4B"),
        *("stage1-step5-tokens1B", "stage1-step140000-tokens294B"),
        *("stage2-ingredient1-step900-tokens2B", "stage2-ingredient2-step23-tokens1B"),
        *("stage2-ingredient2-step23852-tokens50B", "stage10-step1", "main"),
    ]
    shuffled = sorted(names, key=lambda name: name[::-1])
    assert [one.name for one in sorted(map(parse_revision, shuffled))] == names


def parsed(*names):
    return [parse_revision(name) for name in names]


@pytest.mark.parametrize(
    ("asked", "found", "gap"),
    [
        (0, "step0", 0),
        (700, "step512", -188),
        (800, "step1000", 200),
        (756, "step512", -244),
        (10**9, "step2000", 2000 - 10**9),
    ],
)
def test_nearest_published_step_and_its_gap(asked, found, gap):
    # 756 is as far from 512 as from 1000: the earlier one.
    closest = nearest(parsed("main", "step2000", "step512", "step1000", "step0"), asked)
    assert (closest.found.name, closest.gap) == (found, gap)


def test_steps_of_another_stage_are_not_near():
    names = parsed(
        "stage1-step1000", "stage1-step9000", "stage2-ingredient1-step1500", "stage2-ingredient2-step1400", "main"
    )
    assert nearest(names, 1500).found.name == "stage1-step1000"
    assert nearest(names, 1500, stage=2).found.name == "stage2-ingredient1-step1500"
    closest = nearest(names, 1500, stage=2, ingredient=2)
    assert (closest.found.name, closest.gap) == ("stage2-ingredient2-step1400", -100)
    with pytest.raises(TlAnisoError, match="no checkpoint of stage 3 is published; there is 1, 2"):
        nearest(names, 1500, stage=3)
    with pytest.raises(TlAnisoError, match="no checkpoint of ingredient 1 is published"):
        nearest(names, 1500, stage=1, ingredient=1)


def test_nothing_is_near_where_nothing_has_a_step():
    with pytest.raises(TlAnisoError, match="no checkpoint with a step"):
        nearest(parsed("main"), 5)
    with pytest.raises(TlAnisoError, match="step must be at least 0"):
        nearest(parsed("step5"), -1)
    with pytest.raises(TlAnisoError, match="step must be an integer"):
        nearest(parsed("step5"), "5")
