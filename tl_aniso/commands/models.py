"""``tl-aniso models``: the registry, and the checkpoints of one model."""

import argparse

import pandas as pd

from tl_aniso.commands.output import print_table, print_text
from tl_aniso.commands.usage import UsageError
from tl_aniso.errors import ModelError
from tl_aniso.models import REGISTRY, Entry, Listing, discover, find, with_sizes
from tl_aniso.models.recorded import store_listing, stored_listing
from tl_aniso.progress import say

__all__ = ["models_command"]


def models_command(options: argparse.Namespace) -> None:
    """Print the registry, or one model's checkpoints: of a file, as listed before, of the hub, or of the cache.

    Raises:
        UsageError: no such model, a file that does not list it, or `--refresh` and a file together.
        ModelError: neither a connection nor anything in the cache; `--refresh` without a connection.
    """
    if options.name is None:
        if options.refresh or options.recorded is not None:
            raise UsageError("--refresh and --recorded are of one model: name it")
        print_table(_registry(), "Models of the registry; any other goes by its hub id or path")
        print_text(
            "tl-aniso models NAME lists the checkpoints of one. Numbers of parameters are rounded. Tokens are those of "
            "an optimiser step; where they are unknown, so are tokens seen."
        )
        return
    if options.refresh and options.recorded is not None:
        raise UsageError("--refresh asks the hub, --recorded a file: choose one")
    try:
        entry = find(options.name)
    except ModelError as error:
        raise UsageError(str(error)) from error
    _print(_listing(entry, options))


def _listing(entry: Entry, options: argparse.Namespace) -> Listing:
    if options.recorded is not None:
        try:
            return discover(entry, recorded=options.recorded)
        except ModelError as error:
            raise UsageError(str(error)) from error
    earlier = None if entry.local or options.refresh else stored_listing(entry)
    if earlier is not None:
        return discover(entry, recorded=earlier)
    say(f"asking for the checkpoints of {entry.hub_id} ...", enabled=not entry.local)
    listing = discover(entry)
    if listing.source == "cache" and options.refresh:
        raise ModelError(listing.note.replace("; listed is the cache alone", "") + "; so --refresh has nothing new")
    if listing.source == "hub":
        listing = with_sizes(listing)
        store_listing(listing)
    return listing


def _registry() -> pd.DataFrame:
    rows = [
        {
            "name": entry.name,
            "parameters": _short(entry.parameters),
            "objective": entry.objective,
            "hub id": entry.hub_id,
            "checkpoints": entry.published or "unknown: the hub tells",
            "tokens": entry.tokens,
        }
        for entry in REGISTRY.values()
    ]
    return pd.DataFrame(rows)


def _print(listing: Listing) -> None:
    rows = [
        {
            "checkpoint": one.name,
            "stage": "-" if one.stage is None else str(one.stage),
            "step": "-" if one.step is None else f"{one.step:,}",
            "tokens seen": _short(one.tokens_seen),
            "commit": "-" if one.commit is None else one.commit[:8],
            "download": _size(one.n_bytes),
            "here": "yes" if one.cached else "no",
        }
        for one in listing
    ]
    if rows:
        table = pd.DataFrame(rows)
        if (table["stage"] == "-").all():
            table = table.drop(columns="stage")
        print_table(table, f"Checkpoints of {listing.entry.name}")
    sizes = [one.n_bytes for one in listing]
    known = [size for size in sizes if size is not None]
    lines = [
        f"{len(listing)} checkpoints; {sum(one.cached for one in listing)} are on this machine. Source: {listing.note}"
        + (f" (listed {listing.listed})." if listing.recorded else ".")
    ]
    if known:
        unknown = f", of {len(known)} of them" if len(known) < len(sizes) else ""
        lines.append(f"Files to measure all of them: {_size(sum(known))}{unknown}.")
    lines += [f"* missing: {one.name}: {one.reason}" for one in listing.missing]
    if listing.unread:
        lines.append(f"Names that say no step, left aside: {', '.join(listing.unread)}")
    print_text("\n".join(lines))


def _short(number: int | None) -> str:
    """A number to three digits, with K, M, B or T.

    Example:
        >>> _short(2097152000), _short(512), _short(None)
        ('2.1B', '512', '-')
    """
    if number is None:
        return "-"
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def _size(n_bytes: int | None) -> str:
    """Bytes for people.

    Example:
        >>> _size(149328), _size(None)
        ('149 kB', '-')
    """
    if n_bytes is None:
        return "-"
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{n_bytes} B"
