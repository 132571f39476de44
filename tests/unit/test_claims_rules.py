"""The rules are read strictly: nothing unknown, nothing missing, nothing that could run."""

import re
from pathlib import Path

import pytest

from tl_aniso.claims import load_rules
from tl_aniso.claims import rules as rules_module
from tl_aniso.controls.names import CONTROLS
from tl_aniso.errors import TlAnisoError

SOURCE = Path(__file__).parents[2] / "data" / "claims.yaml"
TEXT = SOURCE.read_text("utf-8")


def _load(tmp_path, text):
    path = tmp_path / "rules.yaml"
    path.write_text(text, "utf-8")
    return load_rules(path)


def test_the_library_has_rules_for_five_claims():
    rules = load_rules()
    assert list(rules.claims) == ["C1", "C2", "C3", "C4", "C5"]
    assert rules.level == 0.95
    assert rules.claims["C1"].often.ratio == 10.0
    assert rules.claims["C3"].threshold == {"energy": 1.0, "isotropy": 0.0}
    assert rules.claims["C5"].alignments == ("tokens", "progress")


def test_every_control_of_the_library_is_judged_and_no_other():
    rules = load_rules()
    assert set(rules.controls["energy"]) == set(CONTROLS)
    assert set(rules.controls["isotropy"]) < set(CONTROLS)


def test_there_is_one_copy(tmp_path):
    """A checkout has the file in data/ alone; the wheel's copy is made when it is built."""
    assert not (Path(rules_module.__file__).parent / "claims.yaml").exists()
    assert load_rules().digest == load_rules(SOURCE).digest
    assert _load(tmp_path, TEXT + "\n").digest != load_rules().digest


def _without(text, line):
    return re.sub(rf"^ *{line}.*\n", "", text, count=1, flags=re.M)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace("format: 1", "format: 2"), "format must be 1"),
        (lambda t: t + "extra: 1\n", "extra is unknown"),
        (lambda t: t.replace("  runs: 2 ", "  run: 2 "), "enough.runs is missing"),
        (lambda t: t.replace("  runs: 2 ", "  runs: 1 "), "enough.runs must be an integer of at least 2"),
        (lambda t: t.replace("  runs: 2 ", "  runs: true "), "enough.runs must be an integer"),
        (lambda t: t.replace("level: 0.95", "level: 1.0"), "level must lie between"),
        (lambda t: t.replace("level: 0.95", "level: .nan"), "level must be a number"),
        (lambda t: t.replace("level: 0.95", "level: 0.95\nlevel: 0.5"), "the key level is repeated"),
        (lambda t: t.replace("side: above", "side: over", 1), "claims.C1.side must be one of above, below"),
        (lambda t: t.replace("test: level", "test: levels", 1), "claims.C1.test must be one of"),
        (lambda t: t.replace("{isotropy: [none, activation, weight]}", "{isotropy: [all]}", 1), "holds 'all'"),
        (lambda t: _without(t, "statement: Early"), "claims.C1.statement is missing"),
        (lambda t: t.replace("    activation: [shuffled_labels]\n", "", 1), "needs.energy says nothing of activation"),
        (lambda t: t.replace("weight: [input_energy,", "weight: [imput_energy,", 1), "holds 'imput_energy'"),
        (lambda t: t.replace("    stays: true", "    exists: true"), "claims.C3.exists goes with"),
        (lambda t: t.replace("    stays: true", "    phase: early"), "claims.C3.phase has no meaning"),
        (lambda t: t.replace("energy: 1.0, isotropy: 0.0", "energy: 0.0, isotropy: 0.0"), "must be above 0"),
        (lambda t: _without(t, "alignments:"), "claims.C5.alignments goes with test: contrast"),
        (lambda t: "- 1\n", "must be a mapping"),
        (lambda t: "a: [", "cannot be read as YAML"),
        (lambda t: "? [a, b]\n: 1\n", "cannot be read|must be a mapping"),
        (lambda t: "format: !!python/object/apply:os.getcwd []\n", "cannot be read as YAML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, change, message):
    changed = change(TEXT)
    assert changed != TEXT
    with pytest.raises(TlAnisoError, match=message):
        _load(tmp_path, changed)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(TlAnisoError, match="cannot be read"):
        load_rules(tmp_path / "none.yaml")
    with pytest.raises(TlAnisoError, match="path must be a path"):
        load_rules(3)
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(TlAnisoError, match="cannot be read"):
        load_rules(tmp_path / "latin.yaml")
