"""A finished capture: what it holds, halves of it, merging, and files."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tl_aniso.capturing.kept_rows import SiteRows
from tl_aniso.capturing.read_only import ReadOnly
from tl_aniso.capturing.sums import HALVES, MAIN, Energies, EnergyKey, Kind, Sums
from tl_aniso.checks import as_label, as_path
from tl_aniso.errors import MergeError, SiteError, TlAnisoError
from tl_aniso.moments import Moments
from tl_aniso.sites import layer_of

__all__ = ["Capture", "SiteMoments", "Variant"]


class SiteMoments(Mapping[str, Moments]):
    """Moments by site; residual sites that carry one tensor answer under both names.

    Halves and shards are added up when a site is asked for, so that looking at one does not copy all.
    """

    def __init__(
        self, moments: Mapping[str, list[Moments]], names: tuple[str, ...], aliases: Mapping[str, str], what: str
    ) -> None:
        self._moments = moments
        self._names = tuple(n for n in names if aliases.get(n, n) in moments)
        self._aliases = aliases
        self._what = what

    def __getitem__(self, site: str) -> Moments:
        parts = self._moments.get(self._aliases.get(site, site))
        if not parts:
            near = get_close_matches(str(site), self._names, n=4, cutoff=0.3)
            raise MissingSiteError(
                f"the capture holds no {self._what} of {site!r}; near matches among its {len(self._names)} sites: "
                f"{', '.join(near) or 'none'}"
            )
        found = parts[0].copy()
        for part in parts[1:]:
            found.merge(part)
        return found

    def __contains__(self, site: object) -> bool:
        return isinstance(site, str) and self._aliases.get(site, site) in self._moments

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class MissingSiteError(SiteError, KeyError):
    """A capture was asked for a site that it does not hold."""

    __str__ = Exception.__str__  # KeyError's own shows the repr of the message


class Variant:
    """What one extra pass of a capture summed, over some halves of its documents."""

    def __init__(self, owner: "Capture", name: str, halves: tuple[str, ...]) -> None:
        self._owner = owner
        self._name = name
        self._halves = halves

    @property
    def activations(self) -> SiteMoments:
        """Moments of activations, of a pass over other text (``permuted_tokens``); else empty."""
        return self._owner._site_moments(self._name, "activation", "none", self._halves)

    @property
    def activation_gradients(self) -> SiteMoments:
        """Moments of dL/dh by residual site, one row a token."""
        return self._owner._site_moments(self._name, "activation_gradient", "none", self._halves)

    @property
    def weight_gradients(self) -> SiteMoments:
        """Uncentred moments of G by weight site: count = sequences, ``second_moment()`` = mean of G^T G."""
        return self._owner._site_moments(self._name, "weight_gradient", "none", self._halves)


class Capture:
    """Sums of one pass over a model, with where they came from. Made by `capture`; not changed afterwards.

    Attributes:
        metadata: model, options, text, versions: plain JSON values.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from tl_aniso import capture
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> model = LlamaForCausalLM(config)
        >>> options = {"progress": False, "exclude": ()}
        >>> both = capture(model, [list(range(3, 23)), list(range(9, 39))], **options)
        >>> parts = [capture(model, list(ids), **options) for ids in (range(3, 23), range(9, 39))]
        >>> merged = parts[0].merge(parts[1])
        >>> both.activations["blocks.0.hook_resid_pre"].count, merged.activations["blocks.0.hook_resid_pre"].count
        (50, 50)
    """

    def __init__(
        self,
        sums: Sums,
        metadata: dict[str, Any],
        aliases: Mapping[str, str],
        halves: tuple[str, ...] = HALVES,
    ) -> None:
        self._sums = sums
        self._aliases = dict(aliases)
        self._halves = halves
        self._metadata = metadata

    @property
    def metadata(self) -> dict[str, Any]:
        """Where the sums came from; a copy."""
        return copy.deepcopy(self._metadata)

    @property
    def facts(self) -> ReadOnly:
        """`metadata` to look at: nothing is copied, and nothing can be changed."""
        return ReadOnly(self._metadata)

    @property
    def activations(self) -> SiteMoments:
        """Moments of activations by residual site, and by input and output site where they were asked for."""
        return self._site_moments(MAIN, "activation", "none", self._halves)

    @property
    def rows(self) -> SiteRows:
        """Activation site -> at most ``keep_rows`` of its rows, a uniform sample: float32, on the CPU."""
        return SiteRows(self._sums.rows, self._halves, self.sites, self._aliases)

    @property
    def activation_gradients(self) -> SiteMoments:
        """Moments of dL/dh by residual site, one row a token."""
        return Variant(self, MAIN, self._halves).activation_gradients

    @property
    def weight_gradients(self) -> SiteMoments:
        """Uncentred moments of G by weight site: count = sequences, ``second_moment()`` = mean of G^T G."""
        return Variant(self, MAIN, self._halves).weight_gradients

    @property
    def controls(self) -> dict[str, SiteMoments]:
        """Control -> weight site -> moments, where d x d sums were kept."""
        names = dict.fromkeys(key.control for key in self._sums.moments if key.control != "none")
        return {name: self._site_moments(MAIN, "weight_gradient", name, self._halves) for name in names}

    @property
    def variants(self) -> dict[str, Variant]:
        """The extra passes: name -> gradients, or activations where the text was another."""
        names = {key.variant for key in self._sums.moments} | {key.variant for key in self._sums.energies}
        names -= {MAIN}
        return {name: Variant(self, name, self._halves) for name in sorted(names - {MAIN})}

    @property
    def sites(self) -> tuple[str, ...]:
        """Every site the capture answers to."""
        return tuple(self._metadata["options"]["sites"])

    @property
    def loss(self) -> float:
        """Mean loss per predicted token (under a masked objective, per masked one) over the halves looked at, in nats.

        NaN where no loss was computed.
        """
        targets = self._tallied("targets")
        return self._tallied(f"loss|{MAIN}") / targets if targets else float("nan")

    def canonical(self, site: str) -> str:
        """The name under which a site's sums are kept: a block's output is the next block's input."""
        return self._aliases.get(site, site)

    @property
    def n_units(self) -> int:
        """Number of weight gradients a site over the halves looked at: of sequences, or of batches."""
        return sum(self._metadata["text"]["n_units"][half] for half in self._halves)

    @property
    def keeps_shards(self) -> bool:
        """Whether anything was kept by shard, so that intervals can be had."""
        return bool(self._sums.energies) or any(key.shard >= 0 for key in self._sums.moments)

    # -- halves ------------------------------------------------------------------------------------------------

    def half(self, name: str) -> "Capture":
        """The same capture restricted to the documents of half "A" or "B".

        Raises:
            TlAnisoError: another name.
        """
        if name not in HALVES:
            raise TlAnisoError(f"there is no half {name!r}; halves are 'A' (proxies are fitted) and 'B' (measured)")
        return Capture(self._sums, self._metadata, self._aliases, (name,))

    @property
    def halves(self) -> tuple[str, ...]:
        """The halves looked at that hold documents."""
        held = set(self._metadata["text"]["halves"].values())
        return tuple(half for half in self._halves if half in held)

    @property
    def in_sample(self) -> bool:
        """Whether proxies fitted here would be measured on the documents they were fitted on."""
        return len(self.halves) < len(HALVES)

    def fitting_half(self) -> "Capture":
        """Half A, or everything where only one half holds documents."""
        return self if self.in_sample else self.half("A")

    def measuring_half(self) -> "Capture":
        """Half B, or everything where only one half holds documents."""
        return self if self.in_sample else self.half("B")

    # -- projected energies ------------------------------------------------------------------------------------

    def energies(self, kind: Kind, site: str, *, control: str = "none", variant: str = MAIN) -> Energies | None:
        """Energy per shard along each column of the proxy, and in all (last column), over the halves looked at.

        Args:
            kind: "weight_gradient" or "activation_gradient".
            site: gradient site.
            control: "none" for the effect, else the control's name.
            variant: name of the pass.

        Returns:
            halves x shards x (rank + 1), or None where nothing was projected.
        """
        found = self._sums.energies.get(EnergyKey(variant, kind, control, self.canonical(site)))
        return None if found is None else found[[HALVES.index(half) for half in self._halves]].clone()

    def shard_moments(self, kind: Kind, site: str, *, control: str = "none", variant: str = MAIN) -> dict[int, Moments]:
        """Moments by shard over the halves looked at, for sites named in ``shard_sites``; else empty."""
        found: dict[int, Moments] = {}
        for half in self._halves:
            name = self.canonical(site)
            for shard, moments in self._sums.shards(variant, kind, control, name, half).items():
                found[shard] = found[shard] + moments if shard in found else moments.copy()
        return found

    def with_variant(self, name: str, other: "Capture") -> "Capture":
        """The same capture with the projected energies of another one's effect as a variant: paired by shard.

        Args:
            name: of the variant, such as "untrained".
            other: of the same text and options, projected on proxies of its own.

        Raises:
            MergeError: another text, or other halves.
        """
        if self._halves != other._halves or self._metadata["text"] != other._metadata["text"]:
            raise MergeError(f"the variant {name} was measured on another text, so its shards do not pair")
        sums = Sums()
        # Shared, not copied: what was captured is not changed afterwards, and a file's moments would all be read.
        sums.moments, sums.tallies = self._sums.moments, dict(self._sums.tallies)
        sums.energies = dict(self._sums.energies)
        for key, table in other._sums.energies.items():
            if (key.variant, key.control) == (MAIN, "none"):
                sums.energies[replace(key, variant=name)] = table
        return Capture(sums, self.metadata, self._aliases, self._halves)

    @property
    def judged_sites(self) -> tuple[str, ...]:
        """Residual sites whose rows the filters judged, also where the capture keeps no sums of them."""
        names = {name.split("|")[1] for name in self._sums.tallies if name.startswith("rows|")}
        return tuple(sorted(names, key=lambda site: (layer_of(site) or 0, site)))

    def excluded_share(self, site: str) -> float:
        """Share of rows that the filters left out at a residual site; NaN where none was seen."""
        name = self.canonical(site)
        rows = self._tallied(f"rows|{name}")
        return 1 - self._tallied(f"rows_kept|{name}") / rows if rows else float("nan")

    def excluded_energy_share(self, site: str) -> float:
        """Share of the squared norm of a residual site's rows that the filters left out; NaN where none was seen."""
        name = self.canonical(site)
        energy = self._tallied(f"energy|{name}")
        return 1 - self._tallied(f"energy_kept|{name}") / energy if energy else float("nan")

    def zero_share(self, site: str) -> float:
        """Share of exact zeros in the activation gradients of a residual site: what underflow leaves.

        Counted over the rows that the filters keep and that a gradient can reach; NaN where there is none.
        """
        name = self.canonical(site)
        entries = self._tallied(f"gradient_entries|{name}")
        return self._tallied(f"gradient_zeros|{name}") / entries if entries else float("nan")

    def _tallied(self, name: str) -> float:
        return sum(self._sums.tallies.get(f"{name}|{half}", 0.0) for half in self._halves)

    # -- provenance, merging and files -------------------------------------------------------------------------

    def labelled(self, **fields: Any) -> "Capture":
        """The same sums with fields of ``metadata["model"]`` set, e.g. ``step=512, tokens_seen=1e9, family="pythia"``.

        Raises:
            TlAnisoError: a field that the metadata does not have, or a step or tokens_seen that is no number or None.
        """
        metadata = self.metadata
        unknown = set(fields) - set(metadata["model"])
        if unknown:
            raise TlAnisoError(
                f"no such field: {', '.join(sorted(unknown))}; fields are {', '.join(metadata['model'])}"
            )
        metadata["model"].update({name: as_label(name, value) for name, value in fields.items()})
        return Capture(self._sums, metadata, self._aliases, self._halves)

    def merge(self, other: "Capture") -> "Capture":
        """One capture of the documents of both.

        Raises:
            MergeError: another model or other options, other halves, or a document that both hold.
        """
        if not isinstance(other, Capture):
            raise MergeError(f"can only merge a Capture, got {type(other).__name__}")
        if self._halves != other._halves:
            raise MergeError(
                f"one capture shows half {' and '.join(self._halves)}, the other {' and '.join(other._halves)}; merge "
                "whole captures, then take a half"
            )
        for part in ("format_version", "model", "options"):
            if self._metadata[part] != other._metadata[part]:
                how = _difference(self._metadata[part], other._metadata[part])
                raise MergeError(f"captures of unlike runs: {part} differs: {how}")
        mine, theirs = self._metadata["text"], other._metadata["text"]
        shared = sorted(set(mine["documents"]) & set(theirs["documents"]))
        if shared:
            raise MergeError(
                f"both captures hold document {shared[0][:16]}... ({len(shared)} in all); merge each document once"
            )
        metadata = self.metadata
        metadata["text"] = {
            "documents": sorted((*mine["documents"], *theirs["documents"])),
            "halves": {**mine["halves"], **theirs["halves"]},
            **{name: _added(mine[name], theirs.get(name)) for name in mine if name not in ("documents", "halves")},
        }
        return Capture(self._sums.merge(other._sums), metadata, self._aliases, self._halves)

    def save(self, directory: str | Path) -> Path:
        """Write the capture as a directory of safetensors and JSON, complete or not at all.

        Returns:
            The directory.

        Raises:
            TlAnisoError: the path exists, or cannot be written.
        """
        from tl_aniso.capturing.files import save_capture

        return save_capture(self, as_path("directory", directory))

    @classmethod
    def load(cls, directory: str | Path, *, lazy: bool = False) -> "Capture":
        """Read what `save` wrote.

        Args:
            directory: as `save` was given it.
            lazy: read each site's d x d sums when they are asked for, and again each time, instead of all of them at
                once: many captures of a large model can then be pooled site by site. The files must stay as they are.

        Raises:
            TlAnisoError: nothing there, damaged files, or a format this version does not know.
        """
        from tl_aniso.capturing.files import load_capture

        return load_capture(as_path("directory", directory), lazy=lazy)

    def _site_moments(self, variant: str, kind: Kind, control: str, halves: tuple[str, ...]) -> SiteMoments:
        moments = self._sums.parts(variant, kind, control, halves)
        what = kind.replace("_", " ") + ("" if control == "none" else f" control {control}")
        return SiteMoments(moments, tuple(dict.fromkeys((*self.sites, *moments))), self._aliases, what)

    def __repr__(self) -> str:
        model, text = self._metadata["model"], self._metadata["text"]
        held = f"{len(text['documents'])} documents, {len(self.sites)} sites"
        return f"Capture({model['name']}, {held}, step {model['step']})"


def _added(mine: Any, theirs: Any) -> Any:
    """The sum of counts, whatever they are counted by; unknown where one of them is."""
    if mine is None or theirs is None:
        return None
    if isinstance(mine, dict):
        return {key: _added(mine.get(key, 0), theirs.get(key, 0)) for key in {**mine, **theirs}}
    return mine + theirs


def _difference(mine: Any, theirs: Any) -> str:
    if isinstance(mine, dict):
        names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
        return ", ".join(f"{name}: {mine.get(name)!r} and {theirs.get(name)!r}"[:200] for name in names[:3])
    return f"{mine!r} and {theirs!r}"
