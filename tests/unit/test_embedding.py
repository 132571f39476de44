"""What a page holds of a table is the table: every value comes back, to 32 bits, and what is missing is missing."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from tests.study_pages import HOSTILE, study_frame
from tl_aniso.errors import TlAnisoError
from tl_aniso.viz.embedding import FIELDS, TOLERANCE, embed
from tl_aniso.viz.packing import Packer, unpack
from tl_aniso.viz.style import visible


def values_of(embedded, block, rule, arrays):
    """A field as the page's script computes it."""
    if isinstance(rule, int):
        return arrays[rule].astype(np.float64)
    kind, *parts = rule
    a, *b = (values_of(embedded, block, part, arrays) for part in parts)
    with np.errstate(invalid="ignore", divide="ignore"):
        if kind == "div":
            return a / b[0]
        if kind == "mirror":
            return a * a / b[0]
        n = len(a) // len(block["odds"])
        scaled = a * np.repeat([math.nan if c is None else c for c in block["odds"]], n)
        return scaled / (1 + scaled)


def read_back(embedded):
    """(model, gradient, revision, site, rank, measure, control, field) -> value, of all cells that are known."""
    header = json.loads(json.dumps(embedded.header, allow_nan=False))
    arrays_of = [unpack(m["arrays"], t) for m, t in zip(header["models"], embedded.texts, strict=True)]
    found = {}
    for block in header["blocks"]:
        model, arrays = header["models"][block["model"]], arrays_of[block["model"]]
        for measure, controls in block["series"].items():
            for control, fields in controls.items():
                for field, rule in fields.items():
                    if field == "groups":
                        continue
                    table = values_of(embedded, block, rule, arrays).reshape(len(block["sites"]), -1)
                    for row, point in np.argwhere(~np.isnan(table)):
                        at = model["checkpoints"][point]["revision"], block["sites"][row], block["ranks"][row]
                        found[model["name"], block["gradient"], *at, measure, control, field] = table[row, point]
    return found


def test_every_value_comes_back_and_nothing_else():
    frame = study_frame()
    found = read_back(embed(frame))
    wanted = {}
    for row in frame.to_dict("records"):
        for column, field in FIELDS.items():
            if not math.isnan(row[column]):
                key = (
                    row["gradient"],
                    row["revision"],
                    row["site"],
                    row["rank"],
                    row["measure"],
                    row["control"],
                    field,
                )
                wanted[visible(row["model"]), *key] = row[column]
    assert found.keys() == wanted.keys()
    assert len(found) > 5000
    np.testing.assert_allclose([found[key] for key in wanted], list(wanted.values()), rtol=TOLERANCE)


def test_what_follows_from_others_is_a_rule():
    header = embed(study_frame()).header
    series = next(block for block in header["blocks"] if block["gradient"] == "weight")["series"]
    assert series["excess"]["shuffled_g"]["value"][0] == "div"
    assert series["excess"]["shuffled_g"]["low"][0] == "mirror"
    assert series["energy_share"]["none"]["value"][0] == "share"
    assert isinstance(series["r_energy"]["normal"]["value"], int)


def test_a_rule_that_misses_one_cell_is_not_used():
    frame = study_frame().copy()
    at = frame.index[(frame["measure"] == "excess") & (frame["control"] == "shuffled_g") & frame["value"].notna()][7]
    frame.loc[at, "value"] *= 1 + 1e-5
    header = embed(frame).header
    blocks = [block["series"]["excess"] for block in header["blocks"] if "excess" in block["series"]]
    kinds = [controls["shuffled_g"]["value"] for controls in blocks if "shuffled_g" in controls]
    assert sum(isinstance(kind, int) for kind in kinds) == 1
    assert len(read_back(embed(frame))) == len(read_back(embed(study_frame())))


def test_several_ranks_stand_apart():
    frame = study_frame()
    frame = pd.concat([frame, frame.assign(rank=4, value=frame["value"] / 2)], ignore_index=True)
    for block in embed(frame).header["blocks"]:
        assert set(zip(block["ranks"], block["slots"], strict=True)) == {(16, 0), (4, 1)}
        assert len(block["sites"]) == 2 * len(set(block["sites"]))


def test_names_are_harmless_in_the_header():
    text = json.dumps(embed(study_frame()).header, ensure_ascii=False)
    assert "\\u0000" not in text
    assert "\x00" not in text
    assert "\u202e" not in text
    assert visible(HOSTILE) in json.loads(text)["models"][1]["name"]


def test_checkpoints_without_a_step_keep_their_revisions():
    frame = study_frame().assign(step=math.nan)
    (first, _) = embed(frame).header["models"]
    assert [(point["step"], point["revision"]) for point in first["checkpoints"]][:2] == [
        (None, "step0"),
        (None, "step10"),
    ]


def test_numbers_that_json_lacks(tmp_path):
    packer = Packer()
    given = [np.full(3, np.inf), np.array([1e300, -np.inf, 0.0]), np.full(2, np.nan), np.array([])]
    for values in given:
        packer.add(values)
    index = json.loads(json.dumps(packer.index, allow_nan=False))
    found = unpack(index, packer.text())
    assert [array.tolist() for array in found[:2]] == [[math.inf] * 3, [math.inf, -math.inf, 0.0]]
    assert np.isnan(found[2]).all()
    assert found[3].size == 0


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda frame: frame.drop(columns="rank"), "lacks the columns rank"),
        (lambda frame: pd.concat([frame, frame.iloc[[5]]]), "come twice"),
        (lambda frame: frame.iloc[:0], "no rows"),
    ],
)
def test_what_cannot_be_shown_is_an_error(spoil, words):
    with pytest.raises(TlAnisoError, match=words):
        embed(spoil(study_frame()))
