"""Small things a user meets: a rank that is no number, a text that is a pipe, sizes that can be read."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tl_aniso.capturing import plan
from tl_aniso.errors import TextError, TlAnisoError
from tl_aniso.moments import Moments
from tl_aniso.subspace import TangentProxies, TangentProxy, fit_pca
from tl_aniso.text import iter_documents


def proxies() -> TangentProxies:
    rows = torch.randn(64, 12, generator=torch.Generator().manual_seed(0))
    pca = fit_pca(Moments(12).update(rows), 6)
    return TangentProxies([TangentProxy.from_pca("blocks.0.attn.input", pca, centred=True, requested_rank=6)])


@pytest.mark.parametrize("rank", ["4", 4.0, None, True, [4], 0, 7])
def test_a_rank_that_is_none_is_one_clear_error(rank: Any) -> None:
    for cut in (proxies().at_rank, proxies()["blocks.0.attn.W_Q"].at_rank):
        with pytest.raises(TlAnisoError, match=r"rank|holds 6 directions"):
            cut(rank)


def test_integers_of_any_kind_are_ranks() -> None:
    assert proxies().at_rank(np.int64(4))["blocks.0.attn.W_Q"].rank == 4


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe_is_refused_before_it_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "text.txt"
    os.mkfifo(pipe)
    with pytest.raises(TextError, match=r"text\.txt is no regular file \(a pipe or a device\); save the text as \.txt"):
        list(iter_documents(pipe))


def test_standard_input_and_directories_are_named_for_what_they_are(tmp_path: Path) -> None:
    if Path("/dev/null").exists():
        with pytest.raises(TextError, match="/dev/null is no regular file"):
            list(iter_documents(Path("/dev/null")))
    with pytest.raises(TextError, match="it is a directory"):
        list(iter_documents(tmp_path))


def test_small_limits_are_not_called_zero() -> None:
    wanted: Any = None
    small = plan.Plan(wanted, (), frozenset(), n_sums=3, n_bytes=24_576)
    with pytest.raises(TlAnisoError, match=r"3 d x d sums, 24\.6 kB, above the limit of 999 bytes"):
        plan.check_size(small, 999)
    plan.check_size(small, 24_576)
