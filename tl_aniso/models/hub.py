"""Questions to the Hugging Face hub, asked patiently: as long as it tells to wait, a bounded number of times."""

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from tl_aniso.errors import ModelError
from tl_aniso.progress import say

__all__ = ["Unreachable", "files_of", "patiently", "refs_of"]

T = TypeVar("T")

_TRIES = 6
_MOST_SECONDS = 900.0  # one window of the hub's limits is 300 s; what is told to take longer is better begun anew
_BUSY = frozenset({429, 500, 502, 503, 504})
_RESET = re.compile(r";\s*t\s*=\s*([0-9]{1,9})", re.ASCII)


class Unreachable(ModelError):
    """The hub cannot be asked: no connection, or `HF_HUB_OFFLINE`."""


def patiently(ask: Callable[[], T], what: str, *, sleep: Callable[[float], object] | None = None) -> T:
    """What `ask` returns, asked again after the time the hub says while it is busy or limits the rate.

    Args:
        ask: one request, or a few, that can be repeated.
        what: named in messages.
        sleep: in place of `time.sleep`.

    Raises:
        Unreachable: no connection, or offline.
        ModelError: no such repository or revision, or no right to read it; or the hub is still busy after some tries.
    """
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    transport: Any = HfHubHTTPError.__bases__[0]  # of httpx or its successor, whichever this version builds upon
    sleep = sleep or time.sleep
    attempt = 0
    while True:
        attempt += 1
        try:
            return ask()
        except OfflineModeIsEnabled as error:
            raise Unreachable(f"offline (HF_HUB_OFFLINE is set), so the hub was not asked for {what}") from error
        except (transport, LocalEntryNotFoundError, ConnectionError) as error:
            answer = _answer(error)
            if answer is None:
                raise Unreachable(f"the hub cannot be reached for {what}: {_shortened(error)}") from error
            status, headers = answer
            if status not in _BUSY:
                raise ModelError(_refusal(status, what, error)) from error
            wait = _told_to_wait(headers)
            wait = min(2.0**attempt, 60.0) if wait is None else wait
            if attempt >= _TRIES:
                raise ModelError(
                    f"the hub still answers {status} for {what} after {_TRIES} tries; try later"
                ) from error
            if wait > _MOST_SECONDS:
                raise ModelError(
                    f"the hub answers {status} for {what} and asks to wait {wait:.0f} s; try later"
                ) from error
            say(f"the hub answers {status} for {what}: waiting {wait:.0f} s (try {attempt} of {_TRIES})")
            sleep(wait)


def refs_of(repo: str) -> dict[str, str]:
    """Branches and tags of a repository with the commits they point to; of two of one name, the branch.

    Raises:
        Unreachable: see `patiently`.
        ModelError: see `patiently`.
    """
    from huggingface_hub import HfApi

    refs = patiently(lambda: HfApi().list_repo_refs(repo), f"the branches of {repo}")
    return {ref.name: ref.target_commit for ref in (*refs.tags, *refs.branches)}


def files_of(repo: str, commit: str) -> dict[str, int]:
    """Every file of a commit, with its size in bytes.

    Raises:
        Unreachable: see `patiently`.
        ModelError: see `patiently`.
    """
    from huggingface_hub import HfApi

    found = patiently(
        lambda: HfApi().model_info(repo, revision=commit, files_metadata=True), f"the files of {repo} at {commit[:8]}"
    )
    return {file.rfilename: int(file.size or 0) for file in found.siblings or ()}


def _answer(error: BaseException | None) -> tuple[int, Mapping[str, str]] | None:
    """Status and headers of the answer behind an error; the library may have wrapped it."""
    seen = 0
    while error is not None and seen < 8:
        response = getattr(error, "response", None)
        if response is not None:
            return int(response.status_code), response.headers
        error, seen = error.__cause__ or error.__context__, seen + 1
    return None


def _told_to_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds by `Retry-After` (a number or a date), else by the rate limit's reset; None where nothing is told."""
    told = {key.lower(): value for key, value in headers.items()}
    after = told.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", after, re.ASCII):
        return float(after)
    if after:
        try:
            date = parsedate_to_datetime(after)
        except ValueError:
            date = None
        if date is not None:
            date = date if date.tzinfo else date.replace(tzinfo=UTC)
            return max(0.0, (date - datetime.now(UTC)).total_seconds())
    reset = _RESET.search(told.get("ratelimit", ""))
    return float(reset[1]) + 1 if reset else None


def _refusal(status: int, what: str, error: BaseException) -> str:
    if status == 404:
        return f"the hub has no such thing: {what}. Is the name spelled right?"
    if status in (401, 403):
        return (
            f"the hub does not show {what}: no such repository, or one that asks for an account. Accept its terms and "
            "log in (hf auth login)"
        )
    return f"the hub answers {status} for {what}: {_shortened(error)}"


def _shortened(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return (text[:200] + " ...") if len(text) > 200 else text or type(error).__name__
