"""Names of sites: what they denote, whose proxy belongs to them, and how users ask for them."""

import pytest

from tl_aniso.errors import SiteError, TlAnisoError
from tl_aniso.sites import (
    input_site,
    layer_of,
    output_site,
    proxy_site,
    residual_site,
    role_of,
    select_sites,
    weight_site,
)

ROLES = {
    "blocks.0.hook_resid_pre": "residual",
    "blocks.11.hook_resid_mid": "residual",
    "blocks.3.hook_resid_post": "residual",
    "blocks.3.attn.W_Q": "reader",
    "blocks.3.attn.W_K": "reader",
    "blocks.3.attn.W_V": "reader",
    "blocks.3.mlp.W_in": "reader",
    "blocks.3.mlp.W_gate": "reader",
    "unembed.W_U": "reader",
    "blocks.3.attn.W_O": "writer",
    "blocks.3.attn.W_K.12": "reader",
    "blocks.3.attn.W_O.0": "writer",
    "blocks.3.mlp.W_out": "writer",
    "embed.W_E": "embedding",
    "blocks.3.attn.input": "input",
    "blocks.3.mlp.input": "input",
    "unembed.input": "input",
    "blocks.3.attn.W_O.output": "output",
    "blocks.3.mlp.W_out.output": "output",
}
PROXIES = {
    "blocks.3.attn.W_Q": "blocks.3.attn.input",
    "blocks.3.attn.W_K": "blocks.3.attn.input",
    "blocks.3.attn.W_V": "blocks.3.attn.input",
    "blocks.3.mlp.W_in": "blocks.3.mlp.input",
    "blocks.3.mlp.W_gate": "blocks.3.mlp.input",
    "blocks.3.attn.W_O": "blocks.3.attn.W_O.output",
    "blocks.3.mlp.W_out": "blocks.3.mlp.W_out.output",
    "embed.W_E": "blocks.0.hook_resid_pre",
    "blocks.3.attn.W_K.12": "blocks.3.attn.input",
    "blocks.3.attn.W_O.0": "blocks.3.attn.W_O.output",
    "unembed.W_U": "unembed.input",
}
WRONG = (
    "blocks.0.hook_in",
    "blocks.x.attn.W_Q",
    "blocks.0.attn.W_in",
    "W_Q",
    "embed",
    "blocks.0.mlp.W_in.0",
    "xblocks.0.attn.W_Q",
    "",
)


@pytest.mark.parametrize(("site", "role"), ROLES.items())
def test_roles(site: str, role: str) -> None:
    assert role_of(site) == role
    assert proxy_site(site) == PROXIES.get(site, site)
    assert role_of(proxy_site(site)) in ("residual", "input", "output")


@pytest.mark.parametrize("site", WRONG)
def test_other_names_are_refused(site: str) -> None:
    with pytest.raises(SiteError, match="is not the name of a site"):
        role_of(site)
    with pytest.raises(TlAnisoError):
        proxy_site(site)


def test_names_are_built_as_they_are_read() -> None:
    assert residual_site(2, "mid") == "blocks.2.hook_resid_mid"
    assert weight_site(2, "W_O") == "blocks.2.attn.W_O"
    assert weight_site(2, "W_gate") == "blocks.2.mlp.W_gate"
    assert input_site(2, "mlp") == "blocks.2.mlp.input"
    assert output_site("blocks.2.attn.W_O") == "blocks.2.attn.W_O.output"


def test_layers() -> None:
    assert layer_of("blocks.12.attn.W_Q") == 12
    assert layer_of("embed.W_E") is None


def test_selection_keeps_the_order_of_the_model() -> None:
    names = list(ROLES)
    assert select_sites(None, names) == names
    assert select_sites("embed.W_E", names) == ["embed.W_E"]
    assert select_sites(["unembed.W_U", "blocks.*.attn.W_[QK]"], names) == [
        "blocks.3.attn.W_Q",
        "blocks.3.attn.W_K",
        "unembed.W_U",
    ]


def test_a_miss_lists_what_is_near() -> None:
    with pytest.raises(SiteError, match=r"no site 'blocks\.3\.attn\.WQ'.*near matches: blocks\.3\.attn\.W_Q"):
        select_sites(["embed.W_E", "blocks.3.attn.WQ"], ROLES)
    with pytest.raises(SiteError, match="near matches: none"):
        select_sites(["~"], ROLES)
