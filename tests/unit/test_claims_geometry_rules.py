"""The rules of C6 to C8 are read strictly, and a study cites the commit that wrote them."""

from pathlib import Path

import pytest

from tests.geometry_frames import correlations
from tl_aniso.claims import judge_geometry, load_geometry_rules, load_rules
from tl_aniso.claims import schema as schema_module
from tl_aniso.errors import TlAnisoError
from tl_aniso.study.claims import citation

SOURCE = Path(__file__).parents[2] / "data" / "claims_geometry.yaml"
TEXT = SOURCE.read_text("utf-8")


def _load(tmp_path, text):
    path = tmp_path / "rules.yaml"
    path.write_text(text, "utf-8")
    return load_geometry_rules(path)


def test_the_library_has_rules_for_three_more_claims():
    rules = load_geometry_rules()
    assert list(rules.claims) == ["C6", "C7", "C8"]
    assert not set(rules.claims) & set(load_rules().claims)
    assert rules.level == load_rules().level
    assert list(rules.claims["C6"].quantities) == [
        "input embedding",
        "output embedding",
        "contextual mean",
        "contextual variance",
    ]
    assert [list(quantity.sites) for quantity in rules.claims["C8"].quantities.values()] == [["activation"], ["weight"]]
    readers = rules.claims["C8"].quantities["local energy of sums"].sites["weight"]
    assert set(readers) < set(load_rules().sites["weight"])
    assert [part.beside for part in rules.claims["C7"].parts.values()] == [2.0, None, None, None]


def test_there_is_one_copy_and_its_commit_is_known():
    assert not (Path(schema_module.__file__).parent / "claims_geometry.yaml").exists()
    assert load_geometry_rules().digest == load_geometry_rules(SOURCE).digest
    assert "claims_geometry" not in citation()
    assert "written before the first study measured" in citation(judge_geometry(correlations()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace("format: 1", "format: 2"), "format must be 1"),
        (lambda t: t + "extra: 1\n", "extra is unknown"),
        (lambda t: t.replace("  types: 30", "  types: 3"), "enough.types must be an integer of at least 4"),
        (lambda t: t.replace("scale: slope", "scale: sloped"), "claims.C7.parts.slope.scale must be one of"),
        (lambda t: t.replace("threshold: 1.0, verdict: as_stated,\n         controls_m", "threshold: 0.0, verdict: "
                             "as_stated,\n         controls_m"), "threshold is a ratio and must be above 0"),
        (lambda t: t.replace("beside: -0.5", "beside: half"), "beside must be a number"),
        (lambda t: t.replace("shuffled_frequencies: [p_value]", "shuffled_frequencies: [p]", 1), "holds 'p'; known"),
        (lambda t: t.replace("shuffled_frequencies: [p_value]", "none: [p_value]", 1), "which the effect itself is in"),
        (lambda t: t.replace("sums: [gaussian_surrogate, other_type]", "sums: [shuffled_labels]"),
         "local energy of sums.parts.sums holds 'shuffled_labels'"),
        (lambda t: t.replace("parts: {raw: [shuffled_frequencies, size_matched], ranks: []}", "parts: {ranks: []}"),
         "contextual variance.parts holds none whose verdict is as_stated"),
        (lambda t: t.replace("sites: {none: [embed.W_E]}", "sites: {}"), "input embedding.sites must name sites"),
        (lambda t: t.replace("scope: within", "scope: inside", 1), "scope must be one of over_checkpoints, within"),
        (lambda t: t.replace("raw: [shuffled_frequencies], drift", "raw: [], dirft"), "parts.dirft_removed is unknown"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path, change, message):
    text = change(TEXT)
    assert text != TEXT
    with pytest.raises(TlAnisoError, match=message.replace(".", r"\.")):
        _load(tmp_path, text)
