"""The script that draws runs the code of no kind of trace that a page does not use, and is whole where in doubt."""

import re

import pytest
from plotly.offline import get_plotlyjs

from tl_aniso.viz.plotly_script import kept_kinds, plotly_script

CALL = re.compile(r"\.register\(\[((?:[\w$]+\(\),?)+)\]\)")


def registered(script):
    (found,) = CALL.findall(script)
    return found.split(",")


def test_of_many_kinds_one_is_registered_and_nothing_else_is_changed():
    whole, small = get_plotlyjs(), plotly_script("heatmap")
    every, (only,) = registered(whole), registered(small)
    assert len(every) > 20
    assert only in every
    assert CALL.sub("", small) == CALL.sub("", whole)
    # What is registered is the module that calls itself so.
    handed = re.search(rf"[,;\s]{re.escape(only[:-2])}=[^;]*;[\w$]+\.exports=([\w$]+)\(\)", whole)[1]
    body = re.search(rf"[,;\s]{re.escape(handed)}=[\w$]+\(\(", whole).end()
    assert re.search(r'moduleType:"trace",name:"(\w+)"', whole[body:])[1] == "heatmap"
    assert plotly_script() == whole


@pytest.mark.parametrize("kinds", [("no such kind",), ("heatmap", "no such kind")])
def test_a_script_in_which_a_kind_is_not_found_stays_whole(kinds):
    assert kept_kinds(get_plotlyjs(), kinds) == get_plotlyjs()


def test_a_script_of_another_make_stays_whole():
    assert kept_kinds("Plotly.register(everything);", ["heatmap"]) == "Plotly.register(everything);"
    twice = get_plotlyjs() + ".register([a(),b()]);"
    assert kept_kinds(twice, ["heatmap"]) == twice
