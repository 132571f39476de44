"""Local geometry of a masked model: rows of the mask token are no rows of the token that it hides."""

import torch

from tests.masked_models import encoder
from tl_aniso import local_geometry


def test_types_are_chosen_by_the_occurrences_that_are_read():
    """Of types that just have enough occurrences, a third hidden would leave too few: others must be chosen."""
    model = encoder()
    vocabulary = min(12, model.config.vocab_size - 6)
    draw = torch.Generator().manual_seed(0)
    # Types of all frequencies: many just above what is asked for.
    odds = torch.arange(1, vocabulary + 1, dtype=torch.float64)
    text = [(5 + torch.multinomial(odds, 20, replacement=True, generator=draw)).tolist() for _ in range(60)]
    asked = {"n_types": 3, "n_min": 24, "k": 1, "n_surrogates": 1, "n_permutations": 19, "gradients": ()}
    found = local_geometry(model, text, sites="blocks.1.hook_resid_pre", progress=False, **asked)
    assert not [note for note in found.notes if "keep fewer" in note]
    both = local_geometry(model, text, sites="blocks.1.hook_resid_pre", progress=False, exclude="special", **asked)
    slopes = [f.frame.query("measure == 'visible_share' and control == 'none'")["value"] for f in (found, both)]
    assert (slopes[0] != slopes[1]).all()  # a cloud with rows of the mask token is another
