"""The package as a whole: its public names, its import, its types."""

import subprocess
import sys
from importlib.resources import files

import pytest

import tl_aniso
from tl_aniso import models


def test_every_public_name_is_there():
    for name in tl_aniso.__all__:
        assert getattr(tl_aniso, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'tangent_enrgy'"):
        _ = tl_aniso.tangent_enrgy


def test_capture_is_the_function_whatever_was_imported_before():
    code = "import tl_aniso.capturing.store; from tl_aniso import capture; assert callable(capture)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_importing_is_light():
    code = (
        "import sys, tl_aniso; "
        "heavy = {'torch', 'transformers', 'transformer_lens', 'pandas', 'plotly'} & set(sys.modules); "
        "assert not heavy, heavy; tl_aniso.Moments; tl_aniso.energy_share; "
        "assert not {'transformers', 'transformer_lens'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_looking_up_a_model_is_light():
    code = (
        "import sys, tl_aniso.models as models; models.find('pythia-160m'), models.parse_revision('step1000')\n"
        "heavy = {'torch', 'transformers', 'huggingface_hub', 'pandas', 'numpy', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_of_models_is_there():
    assert set(models.__all__) == set(models._HOMES) <= set(dir(models))
    for name in models.__all__:
        assert getattr(models, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'lode_model'"):
        _ = models.lode_model


def test_types_are_shipped():
    assert files("tl_aniso").joinpath("py.typed").is_file()


def test_numerics_know_no_model():
    """Dependencies point one way: numerics import neither models nor results."""
    code = (
        "import sys; import tl_aniso.moments, tl_aniso.subspace, tl_aniso.energy, tl_aniso.isotropy\n"
        "import tl_aniso.statistics, tl_aniso.weight_moments, tl_aniso.projection\n"
        "rooms = ('tl_aniso.capturing', 'tl_aniso.questions', 'tl_aniso.results', 'tl_aniso.viz', 'tl_aniso.text')\n"
        "bad = [m for m in sys.modules if m.startswith((*rooms, 'transformers', 'transformer_lens'))]\n"
        "assert not bad, bad"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
