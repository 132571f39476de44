"""Every check in turn: a check that cannot run is a finding too, and the others go on."""

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import torch

from tl_aniso.capturing.bind import bind
from tl_aniso.capturing.layout import Attends, Layout
from tl_aniso.capturing.prepare import find_tokenizer
from tl_aniso.doctor.bos import check_bos
from tl_aniso.doctor.check import Check, Diagnosis
from tl_aniso.doctor.cost import check_cost
from tl_aniso.doctor.delivery import check_delivery
from tl_aniso.doctor.gradients import check_gradients
from tl_aniso.doctor.norms import check_norms
from tl_aniso.doctor.padding import check_left_padding, check_library, check_right_padding
from tl_aniso.doctor.sides import check_mask_token, check_masked_padding, check_sides
from tl_aniso.doctor.state import check_mode, check_numbers, check_precision
from tl_aniso.doctor.streams import check_sinks, check_zeros
from tl_aniso.doctor.subject import Subject, read_text
from tl_aniso.errors import ModelError, TextError
from tl_aniso.progress import track

__all__ = ["diagnose", "failed_to_load"]


class _Step(NamedTuple):
    """A check, the checks whose failure leaves it nothing to say, and whether it is only of decoders or encoders."""

    name: str
    run: Callable[[Subject], Check]
    needs: tuple[str, ...] = ()
    only: Attends | None = None


_NUMBERS, _DELIVERY = "weights and logits are finite", "every site delivers exactly once"
_STEPS = (
    _Step(_NUMBERS, check_numbers),
    _Step("precision", check_precision),
    _Step("evaluation mode, nothing drawn at random", check_mode, (_NUMBERS,)),
    _Step("BOS zero or one", check_bos),
    _Step("a token to mask with", check_mask_token, (), "both"),
    _Step(_DELIVERY, check_delivery),
    _Step("norms apply their gain", check_norms, (_NUMBERS,)),
    _Step("no token sees what comes after it", check_right_padding, (_NUMBERS,), "causal"),
    _Step("every block sees both sides of a token", check_sides, (_NUMBERS, _DELIVERY), "both"),
    _Step("no token sees padding", check_masked_padding, (_NUMBERS,), "both"),
    _Step("the model's own left padding", check_left_padding, (_NUMBERS,)),
    _Step("a document's numbers do not depend on its batch", check_library, (_NUMBERS, _DELIVERY)),
    _Step("gradients equal autograd", check_gradients, (_NUMBERS, _DELIVERY)),
    _Step("activation gradients are not exactly zero", check_zeros, (_NUMBERS, _DELIVERY)),
    _Step("attention sinks", check_sinks, (_NUMBERS, _DELIVERY)),
    _Step("cost of measuring", check_cost, (_NUMBERS, _DELIVERY)),
)


def diagnose(
    model: Any, tokenizer: Any = None, texts: Any = None, *, name: str | None = None, progress: bool = True
) -> Diagnosis:
    """Check on a user's own model what the library promises, in about a minute for a small one.

    Batches and padding, BOS, hooks, norms, gradients against autograd, exact zeros, sinks, and what a measurement
    would cost (``docs/method.md``, section "Checks on your own model"). The model is left as it was.

    Args:
        model: as `capture` takes it.
        tokenizer: the model's; found by itself where the model was loaded from a path or id. Without one, ids are
            drawn at random.
        texts: as `capture` takes it; the first few documents are read, 96 tokens of each. The library's own English
            paragraphs by default.
        name: what to call the model.
        progress: show which check is running.

    Returns:
        A `Diagnosis`: ``.checks``, ``.passed``, ``.summary()``, ``.to_html()``. Checks that raise are failed checks
        with the error in them.

    Raises:
        TextError: `texts` that hold nothing to read.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from tl_aniso.doctor import diagnose
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> found = diagnose(LlamaForCausalLM(config).eval(), progress=False)
        >>> found.passed, found.checks[1].found
        (True, 'weights in float32 on cpu')
        >>> diagnose(LlamaForCausalLM(config).half(), progress=False).failures[0].name
        'the model can be measured'
    """
    called = name or type(model).__name__
    try:
        layout = bind(model)
    except Exception as error:  # of a model that is patched, or of no known kind
        return Diagnosis(called, (_crashed("the model can be measured", error),), _facts(None))
    called = _named(layout, name)
    try:
        tokenizer = find_tokenizer(model) if tokenizer is None else tokenizer
        read, documents = read_text(layout, tokenizer, texts)
    except Exception as error:  # of a tokenizer
        if isinstance(error, TextError) and texts is not None:
            raise
        return Diagnosis(called, (_crashed("the model reads what its tokenizer writes", error),), _facts(layout))
    subject = Subject(model, layout, tokenizer, read, documents)
    checks = tuple(_run(subject, progress))
    own = "ids drawn at random" if tokenizer is None else "the library's own English paragraphs"
    lengths = sorted(map(len, documents))
    source = own if texts is None else "the text given"
    text = f"{source}: {len(lengths)} documents of {lengths[0]} to {lengths[-1]} tokens"
    return Diagnosis(called, checks, {"text": text, **_facts(layout)})


def failed_to_load(name: str, error: Exception) -> Diagnosis:
    """The diagnosis of a model that could not even be loaded."""
    return Diagnosis(name, (Check("the model loads", "fail", str(error)),), _facts(None))


def _run(subject: Subject, progress: bool) -> Iterator[Check]:
    failed: set[str] = set()
    steps = [step for step in _STEPS if step.only in (None, subject.layout.attends)]
    for step in track(steps, "doctor", total=len(steps), enabled=progress):
        missing = [needed for needed in step.needs if needed in failed]
        if missing:
            yield Check(step.name, "skip", f"the check before it failed: {missing[0]}")
            continue
        began = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what a check finds, it says
                check = step.run(subject)
        except Exception as error:  # whatever a broken model raises is what its user has to know
            check = _crashed(step.name, error)
        if check.status == "fail":
            failed.add(step.name)
        yield replace(check, seconds=time.perf_counter() - began)


def _crashed(name: str, error: Exception) -> Check:
    """A failed check with the error in it; errors of this library say what is wrong by themselves."""
    if isinstance(error, ModelError | TextError):
        return Check(name, "fail", str(error))
    return Check(name, "fail", f"could not be checked: {type(error).__name__}: {error}")


def _named(layout: Layout, name: str | None) -> str:
    config = getattr(layout.root, "config", None)
    known = name or str(getattr(config, "_name_or_path", "") or "")
    what = f"{layout.class_name}, {len(layout.blocks)} layers, d_model {layout.d_model}"
    return f"{known} ({what})" if known else what


def _facts(layout: Layout | None) -> dict[str, str]:
    facts = {} if layout is None else {"family": layout.family, "handed over as": layout.wrapper.replace("_", " ")}
    for package in ("tl_aniso", "torch", "transformers", "transformer_lens"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "not installed"
    return {**facts, "threads": str(torch.get_num_threads())}
