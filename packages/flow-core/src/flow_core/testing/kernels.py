"""The kit for kernels: subclass `KernelKit`."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, ClassVar

import numpy as np
import pytest

from flow_core.base.arrays import Array
from flow_core.base.dtypes import FLOATS, DType, as_dtype
from flow_core.base.errors import FlowError, InferenceError
from flow_core.base.thread_pools import current_kernel_threads, set_kernel_threads
from flow_core.device import Driver, Launch
from flow_core.ir.graph import TensorType
from flow_core.plugins import batchable
from flow_core.plugins.registry import Registry, kernel_key
from flow_core.plugins.specs import (
    KernelQuery,
    KernelSpec,
    OpSpec,
    Sample,
    SbpContext,
    Unavailable,
)
from flow_core.sharding.sbp import Partial, Signature, Split
from flow_core.sharding.topology import Device
from flow_core.testing.checks import (
    TOLERANCE,
    Tolerance,
    cast_sample,
    check_rig,
    is_floating,
    query,
    reference_outputs,
    run_kernel,
)
from flow_core.testing.kit import Kit, Parameters, floating_inputs
from flow_core.testing.rig import Rig
from flow_core.testing.special import (
    Aspect,
    Deviation,
    Difference,
    Trial,
    difference,
    placed,
    skipped,
    trials,
)

AS_GIVEN = "as_given"
"""Parameter in place of an element type: the samples without floating point inputs, not cast."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel and its inputs.

    Attributes:
        spec, kernel: the op and the kernel.
        asked: the query: the op with concrete types.
        arrays: host arrays for the inputs.
    """

    spec: OpSpec
    kernel: KernelSpec
    asked: KernelQuery
    arrays: tuple[Any, ...]

    @property
    def size(self) -> int:
        """Number of elements of inputs and outputs."""
        return sum(t.size for t in (*self.asked.inputs, *self.asked.outputs))

    @property
    def written(self) -> tuple[TensorType, ...]:
        """Types of the outputs and of the mutated inputs."""
        return (*self.asked.outputs, *(self.asked.inputs[i] for i in self.spec.mutates))

    def of(self, arrays: Sequence[Array]) -> Case | None:
        """Return the same op and kernel on other arrays, or None if they reject them."""
        try:
            asked = replace(query(self.spec, arrays, self.asked.attrs), find=self.asked.find)
        except InferenceError:
            return None
        if self.kernel.accepts is None or self.kernel.accepts(asked):
            return Case(self.spec, self.kernel, asked, tuple(arrays))
        return None

    def grown(self, copies: int) -> Case:
        """Return the case with all split axes ``copies`` times as long, by the first valid rule.

        An op that can be split along an axis also accepts the concatenation of more parts.
        """
        asked = self.asked
        context = SbpContext(asked.inputs, asked.outputs, asked.attrs)
        for rule in self.spec.sbp(context) if self.size else ():
            if any(isinstance(s, Partial) for s in rule.inputs):
                continue
            rows = zip(self.arrays, rule.inputs, strict=True)
            found = self.of([_repeated(*row, copies) for row in rows])
            if found is not None and _fits(asked, found.asked, rule, copies):
                return found
        return self


def _repeated(array: Array, sbp: object, copies: int) -> Array:
    return np.concatenate([array] * copies, sbp.axis) if isinstance(sbp, Split) else array


def _fits(small: KernelQuery, large: KernelQuery, rule: Signature, copies: int) -> bool:
    """Whether the outputs grew according to the rule, and at least one grew."""
    wanted = []
    for type_, sbp in zip(small.outputs, rule.outputs, strict=True):
        axis = sbp.axis if isinstance(sbp, Split) else None
        wanted.append(tuple(n * copies if i == axis else n for i, n in enumerate(type_.shape)))
    return large.inputs != small.inputs and [t.shape for t in large.outputs] == wanted


class KernelKit(Kit):
    """Check that kernels of one device type agree with the ops' references and their contract.

    Each op is tested with each element type, on all its samples and on samples enlarged along
    axes that its SBP rules split.

    Attributes:
        device_type: the device type of the kernels.
        dtypes: element types to which floating point samples are cast.
        ops: op types; None for all ops with kernels of the plugin on the device type.
        tolerances: (relative, absolute) per (op, element type of an output), overriding
            `flow_core.testing.checks.TOLERANCE`.
        deviations: deliberate differences from the reference for special values.
        repeatable: whether two launches on equal inputs are bitwise equal.
        tiles: whether elementwise kernels may be bound to slices, as `fused` kernels bind them.
        stretches: whether they may also be bound to views of stride 0 (host memory only).
        steady_bytes: peak allocation allowed during 50 launches, by tracemalloc; None if it cannot
            be measured.
        steady_elements: size to which samples are enlarged for that check, so that a temporary
            array exceeds ``steady_bytes``.
        thread_counts: numbers of OpenMP threads for which results are bitwise equal; empty if they
            may differ.
        shared_elements: size to which samples are enlarged for that check, so that several threads
            work on them.
        special_dtypes: element types to test with special values; None for all of ``dtypes``.
        special_cases: with how many of its cases a kernel is tested per special value.
    """

    device_type: ClassVar[str] = "cpu"
    dtypes: ClassVar[tuple[str, ...]] = (
        "float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8"
    )  # fmt: skip
    ops: ClassVar[tuple[str, ...] | None] = None
    tolerances: ClassVar[Mapping[tuple[str, str], Tolerance]] = {}
    deviations: ClassVar[tuple[Deviation, ...]] = ()
    repeatable: ClassVar[bool] = True
    tiles: ClassVar[bool] = True
    stretches: ClassVar[bool] = True
    steady_bytes: ClassVar[int | None] = 8192
    steady_elements: ClassVar[int] = 40_000
    thread_counts: ClassVar[tuple[int, ...]] = ()
    shared_elements: ClassVar[int] = 200_000
    special_cases: ClassVar[int] = 2
    special_dtypes: ClassVar[tuple[str, ...] | None] = None

    def absent(self, name: str) -> str:
        """Return why this machine may lack a kernel of an op, or an empty text.  To override."""
        return ""

    def driver(self) -> Driver:
        """Return a driver of the device; skip the test if no device is available."""
        found = self.shared_registry().probe(self.device_type)
        if isinstance(found, Unavailable):
            pytest.skip(f"no device of type {self.device_type!r}: {found.reason}")
        driver: Driver = self.once(
            "driver", lambda: self.shared_registry().driver(Device(self.device_type, 0, 0))
        )
        return driver

    def steady_context(self) -> AbstractContextManager[Any]:
        """Return a context for counting allocations, to exclude those of a library."""
        return nullcontext()

    def kernels(self, op: str) -> list[KernelSpec]:
        """Return the kernels under test of an op."""
        found = self.shared_registry().kernels(op, self.device_type)
        return [k for k in found if k.op == op and self.owns("kernels", kernel_key(k))]

    def covered_ops(self) -> tuple[str, ...]:
        """Return the sorted types of the ops under test."""
        known = sorted(self.shared_registry().ops) if self.ops is None else self.ops
        return tuple(op for op in known if self.kernels(op))

    def parameters(self, check: str) -> Iterator[Parameters]:
        """Return the op, and for most tests the element type."""
        for op in self.covered_ops():
            spec = self.shared_registry().ops[op]
            if check == "takes_a_floating_type":
                if any(map(floating_inputs, self.drawn_or_none(op))):
                    yield (op,)
            elif check == "deviations_are_needed":
                if any(row.op == op and row.everywhere for row in self.deviations):
                    yield (op,)
            elif check == "special_values":
                yield from ((op, dtype) for dtype in self._special_dtypes_of(op))
            elif check in _ONLY_FOR and not _ONLY_FOR[check](self, spec):
                continue
            else:
                yield from ((op, dtype) for dtype in self.dtypes_of(op))

    def dtypes_of(self, op: str) -> tuple[str, ...]:
        """Return the element types for an op's floating point samples, and `AS_GIVEN`."""
        kinds = {floating_inputs(sample) for sample in self.drawn_or_none(op)} or {False}
        return (*(self.dtypes if True in kinds else ()), *((AS_GIVEN,) if False in kinds else ()))

    def cases(self, op: str, dtype: str) -> list[Case]:
        """Return the samples in an element type that kernels of an op accept."""
        registry = self.shared_registry()
        find = partial(registry.find_kernel, device_type=self.device_type)
        spec, found = registry.ops[op], []
        for sample in self.drawn(op):
            wanted = as_dtype("float32" if dtype == AS_GIVEN else dtype)
            if floating_inputs(sample) == (dtype == AS_GIVEN) or not _is_castable(sample, wanted):
                continue
            arrays = cast_sample(sample, wanted)
            for kernel in self.kernels(op):
                blank = Case(spec, kernel, KernelQuery(op, sample.attrs, (), (), find), arrays)
                found.append(blank.of(arrays))
        return [case for case in found if case is not None and _is_representable(case)]

    def accepted(self, op: str, dtype: str) -> list[Case]:
        """Return `cases`; skip the test if there are none."""
        found = self.cases(op, dtype)
        if not found:
            pytest.skip("not accepted: no kernel of this op supports this element type")
        return found

    def check(self, case: Case, **binding: Any) -> None:
        """Check that a case agrees with the reference for a given binding of buffers."""
        rig = Rig(self.driver(), case.kernel, case.asked, mutates=case.spec.mutates, **binding)
        tolerance = partial(self.tolerance, case.spec.type)
        check_rig(case.spec, rig, case.arrays, tolerance, self.repeatable)

    def tolerance(self, op: str, dtype: DType) -> Tolerance:
        """Return relative and absolute tolerance of an output of an op."""
        return self.tolerances.get((op, dtype.name), TOLERANCE[dtype])

    # ------------------------------------------------------------------------------- tests

    def test_there_is_something_to_test(self) -> None:
        """The plugin has kernels on the device type."""
        where = f"device type {self.device_type!r}"
        assert self.covered_ops(), f"plugin {self.plugin!r} registers no kernels on {where}"

    def test_agrees(self, name: str, dtype: str) -> None:
        """Kernels equal the reference and write only their results, at repeated launches."""
        for case in self.accepted(name, dtype):
            self.check(case)

    def test_agrees_when_enlarged(self, name: str, dtype: str) -> None:
        """Kernels agree with the reference for uneven sizes that are not in the samples."""
        rng = np.random.default_rng(5)
        for case in self.accepted(name, dtype)[:: self.draws]:
            self.check(case.grown(int(rng.integers(2, 6))))

    def test_special_values(self, name: str, dtype: str) -> None:
        """Kernels treat NaN, infinities, zeros, subnormals and extremes like the reference."""
        self.accepted(name, dtype)
        found = [d for d in self.differences(name, dtype) if not self._deviations_of(d)]
        assert not found, f"{len(found)} differences:\n" + "\n".join(map(str, found[:20]))

    def test_deviations_are_needed(self, name: str) -> None:
        """Each row of `deviations` matches an actual difference."""
        found = [d for t in self._special_dtypes_of(name) for d in self.differences(name, t)]
        rows = [row for row in self.deviations if row.op == name and row.everywhere]
        idle = [row for row in rows if not any(map(row.covers, found))]
        assert not idle, f"no longer needed: {idle}"

    def _special_dtypes_of(self, op: str) -> list[str]:
        chosen = self.special_dtypes
        return [t for t in self.dtypes_of(op) if chosen is None or t in (*chosen, AS_GIVEN)]

    def _deviations_of(self, found: Difference) -> list[Deviation]:
        return [row for row in self.deviations if row.covers(found)]

    @classmethod
    def differences(cls, op: str, dtype: str) -> tuple[Difference, ...]:
        """Return the differences for special values, cached per class."""
        return cls.once(("special", op, dtype), lambda: tuple(cls()._differences(op, dtype)))

    def _differences(self, op: str, dtype: str) -> Iterator[Difference]:
        for kernel in self.kernels(op):
            own = [c for c in self.cases(op, dtype) if c.kernel is kernel and c.size]
            rigs: dict[int, Rig] = {}
            for count, trial in enumerate(_trials(own)):
                for i in self._chosen(own, trial, count):
                    if i not in rigs:
                        case, mutates = own[i], own[i].spec.mutates
                        rigs[i] = Rig(self.driver(), kernel, case.asked, mutates=mutates)
                    yield from self._tried(own[i], rigs[i], trial, dtype)

    def _chosen(self, cases: Sequence[Case], trial: Trial, count: int) -> set[int]:
        """Choose the cases of a trial: different ones for each trial."""
        fit = [i for i, c in enumerate(cases) if trial.index in (None, *range(len(c.arrays)))]
        step = max(1, len(fit) // self.special_cases)
        return {fit[(count + k * step) % len(fit)] for k in range(self.special_cases)}

    def _tried(self, case: Case, rig: Rig, trial: Trial, dtype: str) -> Iterator[Difference]:
        arrays = placed(trial, case.arrays, f"{case.spec.type} {dtype}")
        wanted, found = _wanted(self.shared_registry(), case, arrays), None
        words = "no error"
        try:
            with np.errstate(all="ignore"):
                found = rig.results(rig.run(arrays))
        except FlowError as error:
            words = str(error)
        if found is None or wanted is None:
            if (found is None) != (wanted is None):
                yield Difference(case.spec.type, dtype, trial, "refused", 0, words)
            return
        for k, (type_, want, have) in enumerate(zip(case.written, wanted, found, strict=True)):
            differs = None if want is None else self._compared(case, trial, type_.dtype, want, have)
            if differs is not None:
                yield Difference(case.spec.type, dtype, trial, differs[0], k, differs[1])

    def _compared(
        self, case: Case, trial: Trial, dtype: DType, want: Array, have: Array
    ) -> tuple[Aspect, str] | None:
        bounds = self.tolerance(case.spec.type, dtype) if dtype.is_floating else (0.0, 0.0)
        return difference(dtype, want, have, bounds, skipped(trial, case.spec.elementwise))

    def test_in_place(self, name: str, dtype: str) -> None:
        """Output 0 may share memory with each input that the op's spec lists."""
        for case in self.accepted(name, dtype):
            types, result = case.asked.inputs, case.asked.outputs[0]
            for k in case.spec.inplace:
                if k < len(types) and types[k].nbytes == result.nbytes:
                    self.check(case, inplace=k)

    def test_tiles(self, name: str, dtype: str) -> None:
        """Elementwise kernels work on slices: flat ones, rows, inputs of one element."""
        for case in self.accepted(name, dtype):
            for arrays in _tilings(case):
                tile = case.of(arrays)
                if tile is not None:
                    self.check(tile, shift=1)

    def test_rows(self, name: str, dtype: str) -> None:
        """One launch on the rows of several arrays is bitwise equal to separate launches."""
        for case in self.accepted(name, dtype):
            for whole, parts in _side_by_side(case):
                if self._says_rows(whole, parts):
                    self._check_rows(whole, parts)

    def _says_rows(self, whole: Case, parts: Sequence[Case]) -> bool:
        asked = [part.asked for part in parts]
        if whole.kernel.batchable is not None:
            return whole.kernel.batchable(whole.asked, asked)
        return whole.spec.elementwise and batchable.of_elements(whole.asked, asked)

    def _check_rows(self, whole: Case, parts: Sequence[Case]) -> None:
        made, *apart = (self._launched(case) for case in (whole, *parts))
        for found, *wanted in zip(made, *apart, strict=True):
            at_once, one_by_one = found.tobytes(), np.concatenate(wanted).tobytes()
            assert at_once == one_by_one, f"{whole.kernel.name} on {whole.asked.inputs}"

    def _launched(self, case: Case) -> tuple[Array, ...]:
        rig = Rig(self.driver(), case.kernel, case.asked, mutates=case.spec.mutates)
        return rig.outputs(rig.run(case.arrays))

    def test_stretched_inputs(self, name: str, dtype: str) -> None:
        """Elementwise kernels work on inputs of stride 0."""
        for case in self.accepted(name, dtype):
            for k, arrays in _stretchings(case):
                self.check(Case(case.spec, case.kernel, case.asked, arrays), stretch=(k,))

    def test_allocates_nothing(self, name: str, dtype: str) -> None:
        """Launches of a bound kernel do not allocate."""
        cases = [case for case in self.accepted(name, dtype) if case.size]
        if not cases:
            pytest.skip("all samples of this op are without elements")
        for kernel in self.kernels(name):
            own = [case for case in cases if case.kernel is kernel]
            if own:
                self._check_steady(max(own, key=lambda case: case.size))

    def _check_steady(self, case: Case) -> None:
        case = case.grown(max(1, self.steady_elements // case.size))
        rig = Rig(self.driver(), case.kernel, case.asked, mutates=case.spec.mutates)
        rig.run(case.arrays)
        with self.steady_context():
            peak = peak_growth(rig.launch)
        types = ", ".join(map(str, case.asked.inputs))
        assert self.steady_bytes is None or peak <= self.steady_bytes, (
            f"{case.kernel.name} on {types} allocates up to {peak} bytes; at most "
            f"{self.steady_bytes} are allowed: put temporaries into the workspace, and create "
            "views while binding"
        )

    def test_same_bits_on_any_threads(self, name: str, dtype: str) -> None:
        """Results are bitwise equal for all numbers of threads."""
        for case in self.accepted(name, dtype)[:: self.draws]:
            big = case.grown(max(1, self.shared_elements // max(1, case.size)))
            first, *others = (self._launched_on(count, big) for count in self.thread_counts)
            for count, made in zip(self.thread_counts[1:], others, strict=True):
                assert made == first, (
                    f"{case.kernel.name} on {big.asked.inputs} {dict(big.asked.attrs)}: "
                    f"{count} threads give other bits than {self.thread_counts[0]}"
                )

    def _launched_on(self, threads: int, case: Case) -> list[bytes]:
        before = current_kernel_threads()
        set_kernel_threads(threads)
        try:
            return [np.asarray(out).tobytes() for out in self._launched(case)]
        finally:
            set_kernel_threads(before)

    def test_takes_a_floating_type(self, name: str) -> None:
        """An op with floating point inputs has a kernel for at least one floating type."""
        refused = [dtype.name for dtype in FLOATS if not self.cases(name, dtype.name)]
        reason = self.absent(name)
        if reason and len(refused) == len(FLOATS):
            pytest.skip(reason)
        assert len(refused) < len(FLOATS), f"no kernel of {name} supports any of {refused}"


def _trials(cases: Sequence[Case]) -> list[Trial]:
    """Return the trials for the cases with the most inputs."""
    return trials(max((c.arrays for c in cases), key=len)) if cases else []


def _wanted(registry: Registry, case: Case, arrays: Sequence[Array]) -> list[Array] | None:
    """Return the reference's outputs and numpy's mutated inputs in float64; None for an error."""
    spec, asked = case.spec, case.asked
    try:
        expected: list[Any] = [None] * len(asked.outputs)
        if spec.reference is not None:
            expected = list(reference_outputs(spec, asked, arrays))
        return [*expected, *_mutated(registry, case, arrays)]
    except (FlowError, IndexError, ValueError):
        return None  # the reference rejects the inputs


def _mutated(registry: Registry, case: Case, arrays: Sequence[Any]) -> list[Any]:
    """Return inputs mutated by numpy's kernel, in float64 except scalars that are float32."""
    spec, found = case.spec, registry.kernels(case.spec.type, "cpu")
    of_core = [
        k for k in found if registry.origins["kernels", kernel_key(k)].plugin == "core.numpy"
    ]
    for wide in _widened(arrays) if spec.mutates else ():
        try:
            asked = replace(query(spec, wide, case.asked.attrs), find=case.asked.find)
        except InferenceError:
            continue
        for kernel in of_core:
            if kernel.accepts is None or kernel.accepts(asked):
                run_kernel(kernel, asked, wide)
                return [wide[i] for i in spec.mutates]
    return [None] * len(spec.mutates)


def _widened(arrays: Sequence[Array]) -> Iterator[list[Array]]:
    """Yield copies in float64; copies in float64 except scalars; unchanged copies."""
    for least in (1, 2, inf):
        yield [
            np.array(x, np.float64 if is_floating(x) and x.size >= least else x.dtype)
            for x in arrays
        ]


def _is_castable(sample: Sample, dtype: DType) -> bool:
    """Whether an element type can represent all values of a sample: no integer is NaN."""
    return dtype.is_floating or all(np.isfinite(x).all() for x in sample.inputs)


def _is_representable(case: Case) -> bool:
    """Whether the element type can represent the sample's attributes: -1 is not a uint8."""
    try:
        if case.spec.reference is not None:
            reference_outputs(case.spec, case.asked, case.arrays)
    except OverflowError:
        return False
    return True


_ONLY_FOR: Mapping[str, Callable[[KernelKit, OpSpec], bool]] = {
    "in_place": lambda kit, spec: bool(spec.inplace),
    "tiles": lambda kit, spec: spec.elementwise and kit.tiles,
    "rows": lambda kit, spec: (
        not spec.mutates
        and (spec.elementwise or any(k.batchable is not None for k in kit.kernels(spec.type)))
    ),
    "stretched_inputs": lambda kit, spec: spec.elementwise and kit.stretches,
    "allocates_nothing": lambda kit, spec: kit.steady_bytes is not None,
    "same_bits_on_any_threads": lambda kit, spec: bool(kit.thread_counts),
}
"""Tests that apply only to some ops of some kits."""


def _tilings(case: Case) -> Iterator[list[Array]]:
    """Yield inputs of a case sliced to a part of its elements, or of its leading axis."""
    shape = case.asked.outputs[0].shape
    size = case.asked.outputs[0].size
    if size > 2:
        yield [_flat(x, shape)[: None if x.size == 1 else size - 1][-size:] for x in case.arrays]
        yield [_flat(x, shape)[0 if x.size == 1 else 1 :] for x in case.arrays]
    if shape and shape[0] > 1 and size:
        wide = [x.reshape((1,) * (len(shape) - x.ndim) + x.shape) for x in case.arrays]
        yield [x if x.shape[0] == 1 else x[1:] for x in wide]


def _side_by_side(case: Case) -> Iterator[tuple[Case, list[Case]]]:
    """Yield a case of many rows and its parts, split in one, some, or all inputs with rows."""
    count = len(case.arrays)
    choices = {tuple(range(count)), (0,), (count - 1,)}
    for split in choices if count else ():
        if not all(case.arrays[i].ndim and len(case.arrays[i]) for i in split):
            continue
        arrays = [[x, x[:1], x[::-1]] if i in split else [x] * 3 for i, x in enumerate(case.arrays)]
        joined = [np.concatenate(a) if i in split else a[0] for i, a in enumerate(arrays)]
        whole, *parts = map(case.of, (joined, *map(list, zip(*arrays, strict=True))))
        found = [part for part in parts if part is not None]
        if whole is not None and len(found) == len(parts) and _are_rows(whole, found):
            yield whole, found


def _are_rows(whole: Case, parts: Sequence[Case]) -> bool:
    """Whether the concatenated results of the parts have the type of the whole."""
    made = zip(whole.asked.outputs, *(part.asked.outputs for part in parts), strict=True)
    return all(batchable.side_by_side(types) == out for out, *types in made)


def _flat(array: Array, shape: tuple[int, ...]) -> Array:
    """Flatten an input in the output's order; keep a single element."""
    return array.reshape(1) if array.size == 1 else np.broadcast_to(array, shape).reshape(-1)


def _stretchings(case: Case) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """Yield, for each input of the output's shape, inputs where it has a constant value."""
    result = case.asked.outputs[0]
    for k, x in enumerate(case.arrays):
        if x.shape == result.shape and x.size > 1 and k < len(case.arrays):
            one = np.broadcast_to(x.reshape(-1)[:1], x.shape)
            yield k, tuple(one if i == k else y for i, y in enumerate(case.arrays))


def _peak_growth(launch: Launch, launches: int) -> int:
    launch()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    for _ in range(launches):
        launch()
    return tracemalloc.get_traced_memory()[1] - before


def peak_growth(launch: Launch, launches: int = 50) -> int:
    """Return the peak growth of traced memory during launches, in bytes.

    >>> peak_growth(lambda: bytes(5000)) > 5000
    True
    """
    for _ in range(3):  # first calls fill caches
        launch()
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        # other threads and the collector also allocate: use the minimum of three tries
        return min(_peak_growth(launch, launches) for _ in range(3))
    finally:
        if not tracing:
            tracemalloc.stop()
