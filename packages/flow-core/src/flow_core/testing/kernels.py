"""The kit for kernels: subclass `KernelKit`."""

from __future__ import annotations

import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

from flow_core.base.arrays import Array
from flow_core.base.dtypes import FLOATS, DType, as_dtype
from flow_core.base.errors import FlowError
from flow_core.base.thread_pools import current_kernel_threads, set_kernel_threads
from flow_core.device import Driver, Launch
from flow_core.plugins.registry import kernel_key
from flow_core.plugins.specs import KernelQuery, KernelSpec, OpSpec, Unavailable
from flow_core.sharding.topology import Device
from flow_core.testing.checks import TOLERANCE, Tolerance, cast_sample, check_rig, reference_results
from flow_core.testing.kernel_cases import Case, large_cases, side_by_side, stretchings, tilings
from flow_core.testing.kit import Exceptions, Kit, Parameters, floating_inputs, is_castable
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
"""Stands for an element type in test parameters: samples without floating point inputs, uncast."""


class KernelKit(Kit):
    """Tests that kernels of a device type agree with the ops' references and obey their contract.

    Each op is tested with each element type, on all samples of the op and on samples enlarged along
    axes that the op's SBP rules split.

    Attributes:
        device_type: the device type of the kernels.
        dtypes: element types to which floating point samples are cast.
        ops: op types; None for all ops for which the plugin has kernels on the device type.
        tolerances: (relative, absolute) by (op, element type of an output); these override
            `flow_core.testing.checks.TOLERANCE`.
        deviations: deliberate differences from the reference for special values.
        repeatable: whether the results of two launches on equal inputs are bitwise equal.
        tiles: whether elementwise kernels may be bound to slices, as `fused` kernels bind them.
        stretches: whether elementwise kernels may also be bound to views of stride 0 (host memory
            only).
        steady_bytes: peak allocation allowed during 50 launches, measured by tracemalloc; None if
            it cannot be measured.
        steady_elements: size to which samples are enlarged for the check of ``steady_bytes``, so
            that a temporary array would exceed that limit.
        thread_counts: numbers of OpenMP threads for which results are bitwise equal; empty if the
            results may differ.
        shared_elements: size to which samples are enlarged for the check of ``thread_counts``, so
            that several threads work on them.
        large_elements: largest number of elements of a tensor in the check at large sizes.  More
            than 2**31 check 64-bit offsets, on devices with memory for it.
        fixed_sizes: ops left out of that check, with reasons, because sizes and values of their
            inputs depend on each other in ways that inference does not check.
        special_dtypes: element types to test with special values; None for all of ``dtypes``.
        special_cases: for each special value, the number of a kernel's test cases to run.
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
    large_elements: ClassVar[int] = 70_000
    fixed_sizes: ClassVar[Exceptions] = {}
    special_cases: ClassVar[int] = 2
    special_dtypes: ClassVar[tuple[str, ...] | None] = None

    def absent(self, name: str) -> str:
        """Return why this machine may lack a kernel for an op, or an empty text; override it."""
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
        """Return a context for counting allocations that excludes those of a library."""
        return nullcontext()

    def kernels(self, op: str) -> list[KernelSpec]:
        """Return the kernels under test for an op."""
        found = self.shared_registry().kernels(op, self.device_type)
        return [k for k in found if k.op == op and self.owns("kernels", kernel_key(k))]

    def covered_ops(self) -> tuple[str, ...]:
        """Return the sorted types of the ops under test."""
        known = sorted(self.shared_registry().ops) if self.ops is None else self.ops
        return tuple(op for op in known if self.kernels(op))

    def parameters(self, check: str) -> Iterator[Parameters]:
        """Return the ops, for most tests with each element type."""
        for op in self.covered_ops():
            spec = self.shared_registry().ops[op]
            if check == "takes_a_floating_type":
                if any(map(floating_inputs, self.drawn_or_none(op))):
                    yield (op,)
            elif check == "every_kernel_is_compared":
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
        """Return the cases of an op: its samples, cast to an element type, that kernels accept."""
        registry = self.shared_registry()
        find = partial(registry.find_kernel, device_type=self.device_type)
        spec, found = registry.ops[op], []
        for sample in self.drawn(op):
            wanted = as_dtype("float32" if dtype == AS_GIVEN else dtype)
            if floating_inputs(sample) == (dtype == AS_GIVEN) or not is_castable(sample, wanted):
                continue
            arrays = cast_sample(sample, wanted)
            for kernel in self.kernels(op):
                blank = Case(spec, kernel, KernelQuery(op, sample.attrs, (), (), find), arrays)
                found.append(blank.of(arrays))
        return [case for case in found if case is not None and _is_representable(case)]

    def accepted(self, op: str, dtype: str) -> list[Case]:
        """Return the result of `cases`; skip the test if there are no cases."""
        found = self.cases(op, dtype)
        if not found:
            pytest.skip("not accepted: no kernel of this op supports this element type")
        return found

    def rig(self, case: Case, **binding: Any) -> Rig:
        """Bind the kernel of a case to buffers; see `Rig`."""
        on_host = self.device_type in self.shared_registry().host_numbers
        return Rig(
            self.driver(),
            case.kernel,
            case.asked,
            mutates=case.mutates,
            host=case.spec.numbers if on_host else (),
            **binding,
        )

    def check(self, case: Case, between: Sequence[Array] | None = None, **binding: Any) -> int:
        """Check that a case agrees with the reference for a given binding of buffers.

        Args:
            case: the case.
            between: other arrays of the same types, for a launch between two on the case's arrays.
            binding: arguments of `Rig` that tell how to bind the kernel.

        Returns:
            The number of elements compared.
        """
        rig = self.rig(case, **binding)
        tolerance = partial(self.tolerance, case.spec.type)
        given = (case.arrays,) if between is None else (case.arrays, between)
        count = check_rig(case.spec, rig, given, tolerance, self.repeatable)
        self.totals().update({"elements": count, "cases": 1})
        return count

    def tolerance(self, op: str, dtype: DType) -> Tolerance:
        """Return the relative and absolute tolerance for an output of an op."""
        return self.tolerances.get((op, dtype.name), TOLERANCE[dtype])

    @classmethod
    def totals(cls) -> Counter[str]:
        """Return how many cases and how many elements were compared."""
        return cls.once("totals", Counter)

    @classmethod
    def teardown_class(cls) -> None:
        """Print how many cases and elements were compared."""
        count = cls.totals()
        sys.stdout.write(
            f"\n{cls.__name__}: compared {count['elements']} elements of {count['cases']} cases "
            "with the references\n"
        )

    # ------------------------------------------------------------------------------- tests

    def test_there_is_something_to_test(self) -> None:
        """Check that the plugin has kernels on the device type."""
        where = f"device type {self.device_type!r}"
        assert self.covered_ops(), f"plugin {self.plugin!r} registers no kernels on {where}"

    def test_agrees(self, name: str, dtype: str) -> None:
        """Check that kernels agree with the reference and write only results, at every launch."""
        found = self.accepted(name, dtype)
        compared = sum(self.check(case, _same_types(case, found)) for case in found)
        assert compared, (
            f"{name}: {len(found)} cases in {dtype} compare no element: add samples with elements"
        )

    def test_every_kernel_is_compared(self, name: str) -> None:
        """Check that each kernel has a sample with results to compare, in some element type."""
        reason = self.absent(name)
        found = [case for dtype in self.dtypes_of(name) for case in self.cases(name, dtype)]
        if reason and not found:
            pytest.skip(reason)
        for kernel in self.kernels(name):
            own = [case for case in found if case.kernel is kernel]
            assert any(t.size for case in own for t in case.written), (
                f"kernel {kernel.name} was never compared: of {len(self.drawn(name))} samples of "
                f"{name} in {', '.join(self.dtypes_of(name))} it accepts {len(own)}, none with "
                "results to compare; add samples that it accepts"
            )

    def test_agrees_when_enlarged(self, name: str, dtype: str) -> None:
        """Check that kernels agree with the reference for uneven sizes that samples do not have."""
        rng = np.random.default_rng(5)
        for case in self.accepted(name, dtype)[:: self.draws]:
            self.check(case.grown(int(rng.integers(2, 6))))

    def test_agrees_at_large_sizes(self, name: str, dtype: str) -> None:
        """Check that kernels agree with the reference beyond vectors, blocks and single launches.

        The sizes are odd, one sample per kernel.
        """
        found = self.accepted(name, dtype)
        if name in self.fixed_sizes:
            pytest.skip(self.fixed_sizes[name])
        chosen = [self._large([c for c in found if c.kernel is k]) for k in self.kernels(name)]
        if not any(chosen):
            pytest.skip("no sample of this op has sizes that can be enlarged")
        for case in (case for cases in chosen for case in cases):
            self.check(case)

    def _large(self, cases: Sequence[Case]) -> list[Case]:
        """Return the large cases of the first sample that has any."""
        found = (list(large_cases(case, self.large_elements)) for case in cases)
        return next(filter(None, found), [])

    def test_special_values(self, name: str, dtype: str) -> None:
        """Check that kernels treat NaN, infinities and other special values like the reference."""
        self.accepted(name, dtype)
        found = [d for d in self.differences(name, dtype) if not self._deviations_of(d)]
        assert not found, f"{len(found)} differences:\n" + "\n".join(map(str, found[:20]))

    def test_deviations_are_needed(self, name: str) -> None:
        """Check that each row of `deviations` matches an actual difference."""
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
                        rigs[i] = self.rig(own[i])
                    yield from self._tried(own[i], rigs[i], trial, dtype)

    def _chosen(self, cases: Sequence[Case], trial: Trial, count: int) -> set[int]:
        """Choose cases for a trial, which are different cases for each trial."""
        fit = [i for i, c in enumerate(cases) if trial.index in (None, *range(len(c.arrays)))]
        step = max(1, len(fit) // self.special_cases)
        return {fit[(count + k * step) % len(fit)] for k in range(self.special_cases)}

    def _tried(self, case: Case, rig: Rig, trial: Trial, dtype: str) -> Iterator[Difference]:
        arrays = placed(trial, case.arrays, f"{case.spec.type} {dtype}")
        wanted, found = _wanted(case, arrays), None
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
            differs = self._compared(case, trial, type_.dtype, want, have)
            if differs is not None:
                yield Difference(case.spec.type, dtype, trial, differs[0], k, differs[1])

    def _compared(
        self, case: Case, trial: Trial, dtype: DType, want: Array, have: Array
    ) -> tuple[Aspect, str] | None:
        bounds = self.tolerance(case.spec.type, dtype) if dtype.is_floating else (0.0, 0.0)
        unseen = skipped(trial, case.spec.elementwise, dtype)
        return difference(dtype, want, have, bounds, unseen)

    def test_in_place(self, name: str, dtype: str) -> None:
        """Check that output 0 can share memory with each input that the op's spec allows."""
        for case in self.accepted(name, dtype):
            types, result = case.asked.inputs, case.asked.outputs[0]
            for k in case.spec.inplace:
                if k < len(types) and types[k].nbytes == result.nbytes:
                    self.check(case, inplace=k)

    def test_tiles(self, name: str, dtype: str) -> None:
        """Check elementwise kernels on slices: of flat arrays, of rows, with one-element inputs."""
        for case in self.accepted(name, dtype):
            for arrays in tilings(case):
                tile = case.of(arrays)
                if tile is not None:
                    self.check(tile, shift=1)

    def test_batchable(self, name: str, dtype: str) -> None:
        """Check that one launch of a batchable kernel on several arrays equals single launches."""
        for case in self.accepted(name, dtype):
            for whole, parts in side_by_side(case):
                says = case.kernel.batchable
                if says is not None and says(whole.asked, [part.asked for part in parts]):
                    self._check_rows(whole, parts)

    def _check_rows(self, whole: Case, parts: Sequence[Case]) -> None:
        made, *apart = (self._launched(case) for case in (whole, *parts))
        for found, *wanted in zip(made, *apart, strict=True):
            at_once, one_by_one = found.tobytes(), np.concatenate(wanted).tobytes()
            assert at_once == one_by_one, f"{whole.kernel.name} on {whole.asked.inputs}"

    def _launched(self, case: Case) -> tuple[Array, ...]:
        rig = self.rig(case)
        return rig.results(rig.run(case.arrays))

    def test_stretched_inputs(self, name: str, dtype: str) -> None:
        """Check elementwise kernels on inputs of stride 0."""
        for case in self.accepted(name, dtype):
            for k, arrays in stretchings(case):
                self.check(Case(case.spec, case.kernel, case.asked, arrays), stretch=(k,))

    def test_allocates_nothing(self, name: str, dtype: str) -> None:
        """Check that launches of a bound kernel do not allocate."""
        cases = [case for case in self.accepted(name, dtype) if case.size]
        if not cases:
            pytest.skip("all samples of this op are without elements")
        for kernel in self.kernels(name):
            own = [case for case in cases if case.kernel is kernel]
            if own:
                self._check_steady(max(own, key=lambda case: case.size))

    def _check_steady(self, case: Case) -> None:
        case = case.grown(max(1, self.steady_elements // case.size))
        rig = self.rig(case)
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
        """Check that results are bitwise equal for all numbers of threads."""
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
        """Check that an op with floating point inputs has a kernel for some floating type."""
        refused = [dtype.name for dtype in FLOATS if not self.cases(name, dtype.name)]
        reason = self.absent(name)
        if reason and len(refused) == len(FLOATS):
            pytest.skip(reason)
        assert len(refused) < len(FLOATS), f"no kernel of {name} supports any of {refused}"


def _trials(cases: Sequence[Case]) -> list[Trial]:
    """Return the trials for the cases with the most inputs."""
    return trials(max((c.arrays for c in cases), key=len)) if cases else []


def _wanted(case: Case, arrays: Sequence[Array]) -> tuple[Array, ...] | None:
    """Return the results of the reference in float64; None if the reference rejects the inputs."""
    try:
        return reference_results(case.spec, case.asked, arrays)
    except (FlowError, IndexError, ValueError):
        return None


def _same_types(case: Case, cases: Sequence[Case]) -> tuple[Any, ...] | None:
    """Return the arrays of another case with the same kernel and types; None if there is none."""
    for other in cases:
        same = other.kernel is case.kernel and other.asked == case.asked
        if same and not all(map(np.array_equal, case.arrays, other.arrays)):
            return other.arrays
    return None


def _is_representable(case: Case) -> bool:
    """Return whether the element type can represent the attributes, unlike uint8 and -1."""
    try:
        reference_results(case.spec, case.asked, case.arrays)
    except OverflowError:
        return False
    return True


_ONLY_FOR: Mapping[str, Callable[[KernelKit, OpSpec], bool]] = {
    "in_place": lambda kit, spec: bool(spec.inplace),
    "tiles": lambda kit, spec: spec.elementwise and kit.tiles,
    "batchable": lambda kit, spec: any(k.batchable for k in kit.kernels(spec.type)),
    "stretched_inputs": lambda kit, spec: spec.elementwise and kit.stretches,
    "allocates_nothing": lambda kit, spec: kit.steady_bytes is not None,
    "same_bits_on_any_threads": lambda kit, spec: bool(kit.thread_counts),
}
"""Tests that apply only to some ops of some kits."""


def _peak_growth(launch: Launch, launches: int) -> int:
    launch()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    for _ in range(launches):
        launch()
    return tracemalloc.get_traced_memory()[1] - before


def peak_growth(launch: Launch) -> int:
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
        # other threads and the garbage collector also allocate: use the minimum of three tries
        return min(_peak_growth(launch, 50) for _ in range(3))
    finally:
        if not tracing:
            tracemalloc.stop()
