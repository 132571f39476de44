"""Fingerprints of weights, tensor by tensor: which checkpoints are equal, and which hold tensors of another.

Published branches have held end-of-training weights under early steps, a shard of another step, and the same weights
under two steps. All of it looks like a result. Hashes of every tensor show it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from tl_aniso.errors import ModelError
from tl_aniso.models.cache import sizes_in, snapshot
from tl_aniso.models.listed import ListedCheckpoint
from tl_aniso.models.revisions import MAIN, parse_revision
from tl_aniso.models.tensor_hashes import TensorHash, hashes_of_bin, hashes_of_safetensors
from tl_aniso.models.weights import weight_files

__all__ = ["Comparison", "Equal", "Fingerprint", "Mixture", "compare", "fingerprint"]

FIRST_RATE = "equal to step 0, as where the first rate is 0"
PUBLISHED_TWICE = "the last step, published as main too"
FINAL_UNDER_EARLY = "holds the final weights"


@dataclass(frozen=True)
class Fingerprint:
    """Hashes of every tensor of a checkpoint.

    Attributes:
        name: of the checkpoint.
        tensors: name of a tensor -> its hash.
    """

    name: str
    tensors: Mapping[str, TensorHash]

    @property
    def digest(self) -> str:
        """One hash of all of them, 64 hexadecimal digits: equal for equal weights, however they are cut into files."""
        content = json.dumps({name: one.sha256 for name, one in self.tensors.items()}, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def telling(self) -> dict[str, str]:
        """Hashes of tensors that two checkpoints do not share by chance.

        Matrices that are not constant: gains of 1 and biases of 0 are alike early in training, and masks and tables of
        positions always.
        """
        return {name: one.sha256 for name, one in self.tensors.items() if one.telling}

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"name": self.name, "tensors": {name: [one.sha256, one.telling] for name, one in self.tensors.items()}}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Fingerprint":
        """What `to_plain` gave.

        Raises:
            ModelError: it is nothing of the kind.
        """
        try:
            tensors = {str(name): TensorHash(str(one[0]), bool(one[1])) for name, one in plain["tensors"].items()}
            return cls(str(plain["name"]), tensors)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ModelError(f"this is no fingerprint: {type(error).__name__} {error}") from error


def fingerprint(checkpoint: str | Path | ListedCheckpoint, *, name: str | None = None) -> Fingerprint:
    """Hash every tensor of a checkpoint on this machine; reads all of its weights once, and needs memory for a piece.

    Args:
        checkpoint: a directory that holds weights, as safetensors or `.bin`; or a listed checkpoint that is here.
        name: of the checkpoint; by default as listed, or the directory's.

    Raises:
        ModelError: no weights there, incomplete or damaged ones.
    """
    if isinstance(checkpoint, ListedCheckpoint):
        name = name or checkpoint.name
        place = Path(checkpoint.repo) if checkpoint.local else snapshot(checkpoint.repo, checkpoint.pinned())
    else:
        place = Path(checkpoint)
    if not place.is_dir():
        raise ModelError(f"{place} is no directory that holds weights; download the checkpoint first")
    files, wrong = weight_files(sizes_in(place))
    if wrong is not None:
        raise ModelError(f"{place} cannot be fingerprinted: {wrong}")
    tensors: dict[str, TensorHash] = {}
    for file in files:
        if file.endswith(".safetensors"):
            tensors.update(hashes_of_safetensors(place / file))
        elif file.endswith(".bin"):
            tensors.update(hashes_of_bin(place / file))
    return Fingerprint(name or place.name, tensors)


@dataclass(frozen=True)
class Equal:
    """Two checkpoints with the same weights: the one not to be shown as a point of its own, the other, and why."""

    duplicate: str
    of: str
    note: str
    expected: bool


@dataclass(frozen=True)
class Mixture:
    """Two checkpoints that share some tensors and not others: a shard of one stands among the other's."""

    first: str
    second: str
    tensors: tuple[str, ...]
    of: int


@dataclass(frozen=True)
class Comparison:
    """What a set of checkpoints has in common that it should not.

    Attributes:
        names: of the checkpoints, in the order of training.
        equal: pairs with the same weights.
        mixtures: pairs that share some of their tensors.
        unchanging: tensors that are the same in all of them, where there are three or more.
    """

    names: tuple[str, ...]
    equal: tuple[Equal, ...]
    mixtures: tuple[Mixture, ...]
    unchanging: tuple[str, ...]

    @property
    def frame(self) -> pd.DataFrame:
        """One row a checkpoint: `checkpoint`, `duplicate_of`, `mixed_with`, `note`; empty strings where all is well.

        A mixture is shown in the rows of both: hashes alone do not tell which of the two holds the other's tensors.
        """
        rows = []
        for name in self.names:
            own = [pair for pair in self.equal if pair.duplicate == name]
            mixed = [pair for pair in self.mixtures if name in (pair.first, pair.second)]
            others = [pair.second if pair.first == name else pair.first for pair in mixed]
            notes = [pair.note for pair in own]
            for pair, other in zip(mixed, others, strict=True):
                some = ", ".join(pair.tensors[:3]) + (" ..." if len(pair.tensors) > 3 else "")
                notes.append(f"{len(pair.tensors)} of {pair.of} tensors are those of {other}: {some}")
            rows.append((name, ", ".join(pair.of for pair in own), ", ".join(others), "; ".join(notes)))
        return pd.DataFrame(rows, columns=["checkpoint", "duplicate_of", "mixed_with", "note"], dtype=str)


def compare(checkpoints: Iterable[Fingerprint]) -> Comparison:
    """Which checkpoints of one model are equal, and which hold tensors of another.

    Of two equal ones the later is the duplicate, except that weights of the end of training under an earlier step are
    the early step's fault. Step 1 equal to step 0 is expected where the learning rate warms up from 0, and `main` equal
    to the last step always; both are labelled.

    Args:
        checkpoints: of one model, in any order.

    Raises:
        ModelError: two of one name.

    Example:
        >>> steps = {"step0": "weights", "step1": "weights", "step2": "others"}
        >>> found = compare(Fingerprint(name, {"W": TensorHash(held, True)}) for name, held in steps.items())
        >>> found.frame.loc[1].tolist()
        ['step1', 'step0', '', 'equal to step 0, as where the first rate is 0']
    """
    ordered = sorted(checkpoints, key=lambda one: _order(one.name))
    names = tuple(one.name for one in ordered)
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ModelError(f"two checkpoints are called {', '.join(twice)}; compare the checkpoints of one model")
    telling = [one.telling for one in ordered]
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for i, one in enumerate(telling):
        # Without a matrix that varies, as where all weights are constant, every tensor has to be the same.
        key = one or {name: held.sha256 for name, held in ordered[i].tensors.items()}
        groups.setdefault(tuple(sorted(key.items())), []).append(i)
    equal = [pair for members in groups.values() if len(members) > 1 for pair in _equal(members, names)]
    equal = [
        _with_differences(pair, *(ordered[names.index(name)] for name in (pair.duplicate, pair.of))) for pair in equal
    ]
    distinct = [members[0] for members in groups.values()]
    shared = set.intersection(*(set(telling[i].items()) for i in distinct)) if len(distinct) > 2 else set()
    mixtures = _mixtures(distinct, names, telling, {name for name, _ in shared})
    return Comparison(names, tuple(equal), tuple(mixtures), tuple(sorted(name for name, _ in shared)))


def _equal(members: Sequence[int], names: Sequence[str]) -> list[Equal]:
    """Pairs of one group of equal checkpoints, each with one that stands for the group."""
    last = len(names) - 1
    steps = [parse_revision(name) for name in names]
    # Training ends with `main`, and with the last step before it.
    ends = {last, last - 1} if names[last] == MAIN and last > 0 else {last}
    early = [i for i in members if i not in ends]
    final = [i for i in members if i in ends]
    pairs = []
    if len(final) == 2:
        pairs.append(Equal(names[final[1]], names[final[0]], PUBLISHED_TWICE, expected=True))
    # Equal from step 0 on up to the last, training has moved nothing that was compared (step 1 of a first rate of 0,
    # say): then it is step 0 that they hold, and not the final weights that stand under step 0.
    first = steps[members[0]]
    unmoved = bool(final) and early == list(range(final[0])) and first is not None and first.step == 0
    if final and early and not unmoved:
        return pairs + [Equal(names[i], names[final[0]], FINAL_UNDER_EARLY, expected=False) for i in early]
    kept, *others = early + final[:1]
    for i in others:
        first, second = steps[kept], steps[i]
        warm = first is not None and second is not None and (first.step, second.step) == (0, 1)
        note = FIRST_RATE if warm else f"the same weights as {names[kept]}"
        pairs.append(Equal(names[i], names[kept], note, expected=warm))
    return pairs


def _with_differences(pair: Equal, first: Fingerprint, second: Fingerprint) -> Equal:
    """Matrices make checkpoints equal; vectors that differ all the same are named. Only one format may hold buffers."""
    common = sorted(first.tensors.keys() & second.tensors.keys())
    differ = [name for name in common if first.tensors[name].sha256 != second.tensors[name].sha256]
    if not differ:
        return pair
    some = ", ".join(differ[:3]) + (" ..." if len(differ) > 3 else "")
    return replace(pair, note=f"{pair.note}, apart from {len(differ)} vectors: {some}", expected=False)


def _mixtures(
    distinct: Sequence[int], names: Sequence[str], telling: Sequence[Mapping[str, str]], shared: set[str]
) -> list[Mixture]:
    """Pairs that share tensors, of which each is looked up once, whatever the number of checkpoints."""
    holders: dict[tuple[str, str], list[int]] = {}
    for i in distinct:
        for item in telling[i].items():
            if item[0] not in shared:
                holders.setdefault(item, []).append(i)
    pairs: dict[tuple[int, int], list[str]] = {}
    for (tensor, _), members in holders.items():
        for later in members[1:]:
            pairs.setdefault((members[0], later), []).append(tensor)
    return [
        Mixture(names[i], names[j], tuple(sorted(tensors)), len(telling[j]))
        for (i, j), tensors in sorted(pairs.items())
    ]


def _order(name: str) -> tuple[bool, Any]:
    revision = parse_revision(name)
    return (True, name) if revision is None else (False, revision)
