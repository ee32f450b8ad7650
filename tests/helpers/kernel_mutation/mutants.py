"""Mutants of the numpy kernels: each wraps a real kernel and changes what it does.

`KernelKit` must kill every mutant.  Run by ``nox -s kernel-mutants``; `test_kernel_mutants.py` runs
a sample.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16
from suite.representative import place_of, subset_of

from flow_core.base.errors import FlowError
from flow_core.device import Launch
from flow_core.ir.graph import Attrs
from flow_core.passes.rewriting.bodies import WITH_BODIES
from flow_core.plugins.specs import REQUIRED, BindContext, InferContext, KernelSpec, OpSpec, load
from flow_core.testing import KernelKit
from flow_core.testing.checks import overwritten, reference_results
from flow_core.testing.kernel_cases import Case
from flow_core.testing.special import Trial, placed, trials
from kernel_mutation.deviations import DEVIATIONS, SUMMARIES

WITHOUT_SAMPLES = ("python_kernel", *SUMMARIES)
CHECKS = ("agrees", "agrees_when_enlarged", "special_values", "in_place", "batchable")
"""Tests of the kit to run, in this order, until one fails."""

Change = Callable[[OpSpec, BindContext, Sequence[Launch]], Sequence[Launch]]
"""Maps an op, a bind context and the real launches to the launches of a mutant."""
Applies = Callable[[OpSpec, KernelSpec, Sequence[Case]], bool]


class Kit(KernelKit):
    """The kit of one kernel, a mutant or the original."""

    plugin = "core.numpy"
    deviations = DEVIATIONS
    dtypes = ("float32", "float64", "int32")
    special_dtypes = ("float32", "int32")
    special_cases = 4
    under_test: KernelSpec | None = None

    def kernels(self, op: str) -> list[KernelSpec]:
        """Return the kernel under test, in place of the original."""
        found = super().kernels(op)
        return found if self.under_test is None else [self.under_test]

    def fails(self, op: str) -> str:
        """Return which test fails with which message, or an empty text."""
        self.totals()
        for check in CHECKS:
            for name, *dtype in self.parameters(check):
                if name != op:
                    continue
                try:
                    getattr(self, f"test_{check}")(name, *dtype)
                except pytest.skip.Exception:
                    continue
                except Exception as error:
                    return f"{check}: {error}"
        return ""

    def covered_ops(self) -> tuple[str, ...]:
        """Return the op of the kernel under test, or all ops with samples."""
        if self.under_test is not None:
            return (self.under_test.op,)
        return tuple(op for op in super().covered_ops() if op not in WITHOUT_SAMPLES)


def results(spec: OpSpec, ctx: BindContext) -> list[Any]:
    """Return the arrays that a launch writes."""
    return [*ctx.outputs, *(ctx.inputs[i] for i in overwritten(spec, ctx.query))]


def numbers(spec: OpSpec, ctx: BindContext) -> list[Any]:
    """Return the results that are not truth values."""
    return [x for x in results(spec, ctx) if x.dtype.kind != "b" and x.size]


def afterwards(change: Callable[[Any], None]) -> Change:
    """Change each result after the real launches."""

    def changed(spec: OpSpec, ctx: BindContext, launches: Sequence[Launch]) -> Sequence[Launch]:
        return (*launches, *(partial(change, x) for x in numbers(spec, ctx)))

    return changed


def _negate(x: Any) -> None:
    x[...] = -x


def _add_one(x: Any) -> None:
    x.reshape(-1)[x.size // 2] += 1


def _shift(x: Any) -> None:
    x[...] = np.roll(x.reshape(-1), 1).reshape(x.shape)


def _swallow_nan(x: Any) -> None:
    if x.dtype.kind not in "iu":
        x[np.isnan(x)] = 0


def _swallow_infinity(x: Any) -> None:
    if x.dtype.kind not in "iu":
        x[np.isinf(x)] = 1


def _round(x: Any) -> None:
    if x.dtype == np.float64:
        x[...] = x.astype(np.float32)
    elif x.dtype == np.float32:
        x[...] = x.astype(bfloat16)


def _forty_two(x: Any) -> None:
    x += np.asarray(42, x.dtype)


def missing_tail(spec: OpSpec, ctx: BindContext, launches: Sequence[Launch]) -> Sequence[Launch]:
    """Leave the last element of each result unwritten."""
    tails = [x.reshape(-1)[-1:] for x in results(spec, ctx) if x.size]
    kept = [np.empty_like(x) for x in tails]
    before = [partial(np.copyto, k, x) for k, x in zip(kept, tails, strict=True)]
    after = [partial(np.copyto, x, k) for k, x in zip(kept, tails, strict=True)]
    return (*before, *launches, *after)


def once_only(spec: OpSpec, ctx: BindContext, launches: Sequence[Launch]) -> Sequence[Launch]:
    """Do nothing from the second launch on."""
    done: list[bool] = []

    def launch() -> None:
        if not done:
            for each in launches:
                each()
        done.append(True)

    return (launch,)


def cached(spec: OpSpec, ctx: BindContext, launches: Sequence[Launch]) -> Sequence[Launch]:
    """Write the results of the first launch again, whatever the inputs are."""
    kept: list[Any] = []

    def launch() -> None:
        if not kept:
            for each in launches:
                each()
            kept.extend(x.copy() for x in results(spec, ctx))
        for x, old in zip(results(spec, ctx), kept, strict=True):
            x[...] = old

    return (launch,)


def reads_outputs(spec: OpSpec, ctx: BindContext, launches: Sequence[Launch]) -> Sequence[Launch]:
    """Add the first byte of the uninitialized output to the result."""
    return _reads(
        [x.reshape(-1).view(np.uint8) for x in ctx.outputs if x.size], spec, ctx, launches
    )


def reads_workspace(spec: OpSpec, ctx: BindContext, launches: Sequence[Launch]) -> Sequence[Launch]:
    """Add the first byte of the uninitialized workspace to the result."""
    space = ctx.workspace
    return _reads([space] if space is not None and space.size else [], spec, ctx, launches)


def _reads(
    sources: Sequence[Any], spec: OpSpec, ctx: BindContext, launches: Sequence[Launch]
) -> Sequence[Launch]:
    first = np.zeros(1, np.uint8)
    if not sources:
        return launches

    def add() -> None:
        for x in results(spec, ctx):
            x.reshape(-1)[:1] += (first % 7).astype(x.dtype)

    return (partial(np.copyto, first, sources[0][:1]), *launches, add)


def into_an_input(spec: OpSpec, ctx: BindContext, launches: Sequence[Launch]) -> Sequence[Launch]:
    """Overwrite an element of an input that must not change."""
    free = [x for i, x in enumerate(ctx.inputs) if i not in overwritten(spec, ctx.query)]
    targets = [x.reshape(-1)[:1].view(np.uint8) for x in free if x.size]
    return (*launches, *(partial(np.bitwise_not, x, x) for x in targets))


def twice(spec: OpSpec, ctx: BindContext, launches: Sequence[Launch]) -> Sequence[Launch]:
    """Update variables twice per launch."""
    return (*launches, *launches)


def only_the_first(spec: OpSpec, ctx: BindContext, launches: Sequence[Launch]) -> Sequence[Launch]:
    """Leave the last of several overwritten inputs unchanged."""
    last = ctx.inputs[overwritten(spec, ctx.query)[-1]]
    kept = np.empty_like(last)
    return (partial(np.copyto, kept, last), *launches, partial(np.copyto, last, kept))


def _has_numbers(spec: OpSpec, kernel: KernelSpec, cases: Sequence[Case]) -> bool:
    return any(t.dtype.kind != "b" and t.size for case in cases for t in case.written)


def _expects(test: Callable[[Any], Any]) -> Applies:
    """Return whether the results for some special value pass a test, such as `numpy.isnan`."""

    def applies(spec: OpSpec, kernel: KernelSpec, cases: Sequence[Case]) -> bool:
        own = [c for c in cases if c.size and any(x.dtype == np.float32 for x in c.arrays)][:FEW]
        made = trials(max((c.arrays for c in own), key=len)) if own else []
        return any(_passes(case, trial, test) for trial in made for case in own)

    return applies


def _passes(case: Case, trial: Trial, test: Callable[[Any], Any]) -> bool:
    arrays = placed(trial, case.arrays, "mutants")
    try:
        found = reference_results(case.spec, case.asked, arrays)
    except (FlowError, IndexError, ValueError):
        return False
    for x, type_ in zip(found, case.written, strict=True):
        with np.errstate(all="ignore"):
            rounded = np.asarray(x).astype(type_.dtype.numpy)
        if type_.dtype.is_floating and test(rounded).any():
            return True
    return False


def _has_floats(spec: OpSpec, kernel: KernelSpec, cases: Sequence[Case]) -> bool:
    return any(t.dtype.is_floating and t.size for case in cases for t in case.written)


def _always(spec: OpSpec, kernel: KernelSpec, cases: Sequence[Case]) -> bool:
    return True


def _has_several(spec: OpSpec, kernel: KernelSpec, cases: Sequence[Case]) -> bool:
    return any(t.size > 1 and t.dtype.kind != "b" for case in cases for t in case.written)


def _has_outputs(spec: OpSpec, kernel: KernelSpec, cases: Sequence[Case]) -> bool:
    return any(t.size for case in cases for t in case.asked.outputs)


def _has_workspace(spec: OpSpec, kernel: KernelSpec, cases: Sequence[Case]) -> bool:
    size = kernel.workspace
    return size is not None and any(size(c.asked) for c in cases if any(t.size for t in c.written))


def _keeps_an_input(spec: OpSpec, kernel: KernelSpec, cases: Sequence[Case]) -> bool:
    return any(
        i not in case.mutates and t.size for case in cases for i, t in enumerate(case.asked.inputs)
    )


def _reads_numbers(spec: OpSpec, kernel: KernelSpec, cases: Sequence[Case]) -> bool:
    return any(x.size for case in cases for x in case.arrays)


def _updates(spec: OpSpec, kernel: KernelSpec, cases: Sequence[Case]) -> bool:
    return any(case.mutates for case in cases)


def _updates_several(spec: OpSpec, kernel: KernelSpec, cases: Sequence[Case]) -> bool:
    return any(len(case.mutates) > 1 for case in cases)


KINDS: Mapping[str, tuple[Applies, Change]] = {
    "wrong sign": (_has_numbers, afterwards(_negate)),
    "one too many": (_has_numbers, afterwards(_add_one)),
    "shifted by one": (_has_several, afterwards(_shift)),
    "NaN swallowed": (_expects(np.isnan), afterwards(_swallow_nan)),
    "infinity swallowed": (_expects(np.isinf), afterwards(_swallow_infinity)),
    "rounded to fewer bits": (_has_floats, afterwards(_round)),
    "plus 42": (_has_numbers, afterwards(_forty_two)),
    "missing tail": (_always, missing_tail),
    "first launch only": (_always, once_only),
    "cached result": (_reads_numbers, cached),
    "uninitialized output": (_has_outputs, reads_outputs),
    "uninitialized workspace": (_has_workspace, reads_workspace),
    "overwrites an input": (_keeps_an_input, into_an_input),
    "updates twice": (_updates, twice),
    "state not updated": (_updates_several, only_the_first),
}
"""Changes of what a kernel writes, and to which kernels they apply."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed kernel.

    Attributes:
        kind: the kind of change.
        kernel: the changed kernel.
    """

    kind: str
    kernel: KernelSpec

    def __str__(self) -> str:
        return f"{self.kernel.op}: {self.kind}"


def _changed(spec: OpSpec, kernel: KernelSpec, change: Change) -> KernelSpec:
    def bind(ctx: BindContext) -> Sequence[Launch]:
        return change(spec, ctx, _bound(kernel, ctx))

    return replace(kernel, load=bind)


def _bound(kernel: KernelSpec, ctx: BindContext) -> tuple[Launch, ...]:
    bound = load(kernel.load)(ctx)
    return tuple(bound) if isinstance(bound, list | tuple) else (bound,)


def _swapped(kernel: KernelSpec, first: int, second: int) -> KernelSpec:
    """Return the kernel that reads two inputs of one type in the wrong order."""

    def bind(ctx: BindContext) -> Sequence[Launch]:
        inputs, types = list(ctx.inputs), ctx.query.inputs
        if max(first, second) < len(inputs) and types[first] == types[second]:
            inputs[first], inputs[second] = inputs[second], inputs[first]
        return _bound(kernel, replace(ctx, inputs=tuple(inputs)))

    return replace(kernel, load=bind)


def _ignoring(spec: OpSpec, kernel: KernelSpec, attr: str, value: Any) -> KernelSpec:
    """Return the kernel for which an attribute always has one value."""

    def bind(ctx: BindContext) -> Sequence[Launch]:
        query = _with(spec, ctx.query, attr, value)
        return _bound(kernel, replace(ctx, query=query or ctx.query))

    return replace(kernel, load=bind)


def _with(spec: OpSpec, query: Any, attr: str, value: Any) -> Any:
    """Return a query with one attribute changed, or None if that changes types or workspace."""
    attrs = Attrs({**query.attrs, attr: value})
    changed = replace(query, attrs=attrs)
    try:
        outputs = tuple(spec.infer(InferContext("mutant", spec.type, query.inputs, attrs)))
    except (FlowError, IndexError, ValueError):
        return None
    return changed if outputs == query.outputs else None


def _attribute_mutants(spec: OpSpec, kernel: KernelSpec, cases: Sequence[Case]) -> Iterator[Mutant]:
    """Yield kernels with one value of an attribute: its default, else that of the first sample.

    A mutant whose value is that of all samples survives: the samples have to vary the attribute.
    """
    for attr, default in spec.attrs.items():
        value = cases[0].asked.attrs[attr] if default is REQUIRED else default
        others = [case for case in cases if case.asked.attrs[attr] != value]
        is_told = any(_matters(case, attr, value) for case in others)
        if (is_told or not others) and (spec.type, attr) not in UNREAD and attr not in SETTINGS:
            yield Mutant(f"ignores {attr}", _ignoring(spec, kernel, attr, value))


def _matters(case: Case, attr: str, value: Any) -> bool:
    """Whether the reference returns other results of the same types for a value of an attribute."""
    changed = _with(case.spec, case.asked, attr, value)
    if changed is None:
        return False
    try:
        other = reference_results(case.spec, changed, case.arrays)
    except (FlowError, IndexError, ValueError, AssertionError):
        return False
    wanted = reference_results(case.spec, case.asked, case.arrays)
    return not all(map(partial(np.array_equal, equal_nan=True), wanted, other))


def _operand_mutants(spec: OpSpec, kernel: KernelSpec, cases: Sequence[Case]) -> Iterator[Mutant]:
    if spec.type in COMMUTATIVE:
        return
    count = max(len(case.asked.inputs) for case in cases)
    for i in range(count - 1):
        if any(
            len(case.asked.inputs) > i + 1
            and case.asked.inputs[i] == case.asked.inputs[i + 1]
            and not np.array_equal(case.arrays[i], case.arrays[i + 1])
            and (spec.type, i) not in SYMMETRIC
            for case in cases
        ):
            yield Mutant(f"swaps inputs {i} and {i + 1}", _swapped(kernel, i, i + 1))


def mutants(kit: Kit, op: str) -> Iterator[Mutant]:
    """Yield the mutants of an op's kernels."""
    spec = kit.shared_registry().ops[op]
    for kernel in kit.kernels(op):
        cases = [c for t in kit.dtypes_of(op) for c in kit.cases(op, t) if c.kernel is kernel]
        for kind, (applies, change) in KINDS.items():
            if (op, kind) not in EQUIVALENT and applies(spec, kernel, cases):
                yield Mutant(kind, _changed(spec, kernel, change))
        if spec.random and (op, "wrong seed") not in EQUIVALENT:
            yield Mutant("wrong seed", _reseeded(kernel))
        yield from _attribute_mutants(spec, kernel, cases)
        yield from _operand_mutants(spec, kernel, cases)


def _reseeded(kernel: KernelSpec) -> KernelSpec:
    def bind(ctx: BindContext) -> Sequence[Launch]:
        return _bound(kernel, replace(ctx, seed=ctx.seed + 1))

    return replace(kernel, load=bind)


SETTINGS = ("shape", "shapes", "dtype", "seed", "has_seed")
"""Attributes that the types of outputs determine, and seeds, which have a kind of mutants."""
UNREAD = frozenset({
    ("CategoricalOrdinalEncode", "hash_precomputed"), ("boxing", "whole"),
    ("concat", "max_dim_size"),
    ("layer_norm_grad", "epsilon"), ("normalization_grad", "epsilon"),
    ("pad_grad", "floating_constant_value"), ("pad_grad", "integral_constant_value"),
    *((op, "draws_as") for op in WITH_BODIES),
    ("top_k", "sorted"), ("transpose", "batch_axis_non_change"), ("upsample", "data_format"),
    ("upsample_grad", "data_format"),
})  # fmt: skip
"""Attributes of ops that have one value, or do not change a result, and names for seeds, which the
compiler reads.
"""
COMMUTATIVE = (
    "add_n", "bias_add", "boxing", "broadcast_add", "broadcast_equal", "broadcast_logical_and",
    "broadcast_logical_or", "broadcast_logical_xor", "broadcast_maximum", "broadcast_minimum",
    "broadcast_mul", "broadcast_not_equal", "elementwise_maximum", "elementwise_minimum",
    "multiply", "smooth_l1_loss",
)  # fmt: skip
SYMMETRIC = frozenset({("avg_pool_1d_grad", 0)})
"""Ops and the inputs that may be exchanged with the next one: of x and y only shapes are read."""
EQUIVALENT = frozenset({
    *((op, "updates twice")
      for op in ("CategoricalOrdinalEncode", "assign", "logical_slice_assign")),
    *((op, "cached result")
      for op in (
          "constant_like", "generate_random_batch_permutation_indices", "random_mask_like",
          "zero_like",
      )),
    *(("upsample", f"{what} swallowed") for what in ("NaN", "infinity")),  # a deviation
    *((op, "infinity swallowed")
      for op in (
          "centered_rmsprop_update", "reciprocal_no_nan", "summed_centered_rmsprop_update",
      )),
    *(("zero_like", kind) for kind in ("wrong sign", "shifted by one")),
    *((op, "shifted by one") for op in ("constant", "constant_like")),
    *((op, "rounded to fewer bits")
      for op in ("bernoulli", "ceil", "floor", "rint", "round", "sign", "zero_like")),
})  # fmt: skip
"""Ops and kinds of changes that do not change what the op promises."""


FEW = 3
"""Cases in which to look for special values."""
FAMILIES = {"ignores": "attribute ignored", "swaps": "operands swapped"}


def killed_by(mutant: Mutant) -> str:
    """Return which test of the kit kills a mutant, or an empty text."""

    class Tested(Kit):
        under_test = mutant.kernel

        @classmethod
        def once(cls, key: Any, make: Callable[[], Any]) -> Any:
            """Share samples, registry and driver with all other mutants."""
            shared = isinstance(key, str) or key[0] == "samples"
            return Kit.once(key, make) if shared else super().once(key, make)

    with np.errstate(all="ignore"):
        return Tested().fails(mutant.kernel.op)


def all_mutants(ops: Sequence[str] | None = None) -> Iterator[Mutant]:
    """Yield the mutants of the kernels of some ops, or of all."""
    kit = Kit()
    return (mutant for op in ops or kit.covered_ops() for mutant in mutants(kit, op))


def family(mutant: Mutant) -> str:
    """Return the kind of a mutant without the attribute or inputs that it concerns."""
    return re.sub("^(ignores|swaps) .*", lambda m: FAMILIES[m[1]], mutant.kind)


def refused_originals(ops: Sequence[str] | None = None) -> Iterator[str]:
    """Yield how the kit rejects kernels that are not changed: then it kills mutants for nothing."""
    kit = Kit()
    for kernel in (kernel for op in ops or kit.covered_ops() for kernel in kit.kernels(op)):
        if why := killed_by(Mutant("original", kernel)):
            yield f"{kernel.op}: {why}"


def main() -> int:
    """Print how many mutants of each kind died; the exit status is 1 if one survives.

    ``--subset K/N`` tests the kernels of subset K, from 0, of N fixed subsets of the ops.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subset", type=subset_of, default=(0, 1), metavar="K/N")
    number, count = parser.parse_args().subset
    ops = [op for op in Kit().covered_ops() if place_of(op) % count == number]
    started, made, alive = time.monotonic(), Counter[str](), Counter[str]()
    refused = list(refused_originals(ops))
    sys.stdout.writelines(f"REFUSED {why}\n" for why in refused)
    for mutant in all_mutants(ops):
        kind = family(mutant)
        made[kind] += 1
        if not killed_by(mutant):
            alive[kind] += 1
            print(f"SURVIVED {mutant}", flush=True)
    for kind, total in made.items():
        print(f"{total - alive[kind]:5} of {total:5} killed: {kind}")
    killed, total = made.total() - alive.total(), made.total()
    seconds = time.monotonic() - started
    print(f"{killed} of {total} mutants of the kernels of {len(ops)} ops killed in {seconds:.0f} s")
    return int(killed < total or bool(refused))


if __name__ == "__main__":
    sys.exit(main())
