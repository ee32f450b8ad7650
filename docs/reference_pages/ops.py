"""The ops that a public function adds to a job, and facts from their specs."""

from __future__ import annotations

import copy
import doctest
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_core.api import examples
from flow_core.frontend.session.session import default_session
from flow_core.frontend.trace import emit as emission
from flow_core.observe.op_catalog import OpEntry, device_types, op_entry, sample_types
from flow_core.observe.op_tables import signature_texts
from flow_core.plugins.host import default_registry

NAMES = {
    "flow": flow, "np": np, "rates": examples.rates, "run": examples.run, "tp": tp,
    "weights": examples.weights,
}  # fmt: skip
"""What the examples of docstrings may use without importing it."""


def is_runnable(docstring: str | None) -> bool:
    """Whether a docstring has an example that a doctest runs."""
    return any(
        not example.options.get(doctest.SKIP)
        for example in doctest.DocTestParser().get_examples(docstring or "")
    )


def emitted(function: Callable[..., Any]) -> list[str]:
    """Run the example of a function; return the types of the ops that the function adds.

    Raises:
        RuntimeError: the example prints something else than the docstring says.
    """
    if not is_runnable(function.__doc__):
        return []
    source = inspect.unwrap(function)
    code = getattr(source, "__code__", None)
    with recorded(code) as found:
        run(function)
    return list(dict.fromkeys(found))


def run(function: Callable[..., Any]) -> None:
    """Run the examples of a docstring in a new session.

    Raises:
        RuntimeError: an example prints something else than the docstring says.
    """
    name = f"{function.__module__}.{function.__qualname__}"
    scope = {**vars(inspect.getmodule(function)), **NAMES, "__name__": "__main__"}
    test = doctest.DocTestParser().get_doctest(function.__doc__ or "", scope, name, None, 0)
    printed: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    flow.clear_default_session()
    resources = copy.deepcopy(default_session().resources)
    try:
        runner.run(test, out=printed.append)
    finally:
        flow.clear_default_session()
        default_session().resources = resources
    if runner.failures:
        raise RuntimeError(f"the example of {name} fails:\n{''.join(printed)}")


@contextmanager
def recorded(code: Any) -> Iterator[list[str]]:
    """Collect the types of the ops that are added below a call of the given code."""
    found: list[str] = []
    original = emission._emit

    def record(job: Any, op_type: str, *rest: Any) -> Any:
        frame = inspect.currentframe()
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        if frame is not None:
            found.append(op_type)
        return original(job, op_type, *rest)

    emission._emit = record
    try:
        yield found
    finally:
        emission._emit = original


def facts(types: list[str]) -> Iterator[str]:
    """Yield Markdown about ops: shapes, element types per device, gradient and SBP signatures.

    It has no headings, which the search would find before the pages of functions.
    """
    registry = default_registry()
    for type_ in types:
        entry = op_entry(registry, type_)
        yield from (f"**Op `{type_}`.** {entry.doc}".rstrip(), "")
        example = sample_types(registry, type_)
        if example:
            yield from (f"For example, `{example}`.", "")
        yield from (*_devices(entry), "")
        yield from ("Gradient: " + ("yes." if entry.gradient else "none."), "")
        yield from (*_signatures(entry), "")


def _devices(entry: OpEntry) -> Iterator[str]:
    if entry.view:
        yield "The op returns a view of its input on every device, for all element types."
        return
    if entry.host:
        yield "The op runs on the CPU in every placement."
        return
    yield from ("| device | element types |", "|---|---|")
    for device, names in device_types(default_registry(), entry.type).items():
        yield f"| `{device}` | {', '.join(f'`{name}`' for name in names) or 'none'} |"


def _signatures(entry: OpEntry) -> Iterator[str]:
    texts = list(signature_texts(entry))
    if not texts:
        yield "SBP signatures: only `B` (a copy on each device) for all inputs and outputs."
        return
    yield "SBP signatures, besides `B` for all inputs and outputs:"
    yield ""
    yield from (f"- {text}" for text in texts)
