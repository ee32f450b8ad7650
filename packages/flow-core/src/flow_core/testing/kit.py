"""The base class of all kits: known gaps, test parameters, and the registry under test."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import pytest

from flow_core.base.dtypes import DType
from flow_core.plugins.host import default_registry
from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import OpSpec, Sample
from flow_core.testing.checks import is_floating

Parameters = tuple[str, ...]
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Gap:
    """An unsupported feature of a plugin; its tests are strict xfails, which fail once they pass.

    Attributes:
        what: the op, device or other name over which the tests are parametrized.
        kind: "notimpl" (possible, but not planned), "notyet" (planned), or "never" (impossible or
            undesirable).
        reason: why the feature is not supported.
        checks: names of the tests without ``test_``; empty for all.
        dtypes: element types; empty for all.

    >>> gap = Gap("sort", "notyet", "no 16-bit types", dtypes=("float16",))
    >>> gap.covers("agrees", ("sort", "float16")), gap.covers("agrees", ("sort", "int8"))
    (True, False)
    """

    what: str
    kind: Literal["notimpl", "notyet", "never"]
    reason: str
    checks: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    def covers(self, check: str, parameters: Parameters) -> bool:
        """Return whether a test is expected to fail; the first of its parameters is the name."""
        return (
            self.what == parameters[0]
            and (not self.checks or check in self.checks)
            and (not self.dtypes or parameters[-1] in self.dtypes)
        )


class Kit:
    """The base class of the kits.

    To use a kit, subclass it in a test module, as ``class Test...``, and run pytest.

    Attributes:
        plugin: name of the plugin or distribution whose records are tested; None for all plugins.
        gaps: known unsupported features.
        draws: how often the samples of an op are drawn, each time with another random generator.
    """

    plugin: ClassVar[str | None] = None
    gaps: ClassVar[tuple[Gap, ...]] = ()
    draws: ClassVar[int] = 2
    _made: ClassVar[dict[Hashable, Any]] = {}

    def registry(self) -> Registry:
        """Return the registry under test, by default with all installed plugins; called once."""
        return default_registry()

    def samples(self, spec: OpSpec, rng: np.random.Generator) -> Iterable[Sample]:
        """Return the samples of an op, by default those of the op's spec."""
        return () if spec.samples is None else spec.samples(rng)

    def parameters(self, check: str) -> Iterable[Parameters]:
        """Return the parameters of a test; the first parameter is the name that gaps use."""
        return ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize each test, and mark the parameters that gaps cover."""
        check = metafunc.function.__name__.removeprefix("test_")
        names = [n for n in ("name", "dtype") if n in metafunc.fixturenames]
        if names:
            rows = self.parameters(check)
            metafunc.parametrize(names, [self._parameter(check, row) for row in rows])

    def _parameter(self, check: str, row: Parameters) -> Any:
        found = [gap for gap in self.gaps if gap.covers(check, row)]
        marks = [
            pytest.mark.xfail(strict=True, reason=f"{gap.kind}: {gap.reason}") for gap in found[:1]
        ]
        return pytest.param(*row, id="-".join(row), marks=marks)

    def owns(self, table: str, key: object) -> bool:
        """Return whether a record belongs to the plugin under test."""
        origin = self.shared_registry().origins[table, key]
        return self.plugin in (None, origin.plugin, origin.distribution)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._made = {}

    @classmethod
    def once(cls, key: Hashable, make: Callable[[], Made]) -> Made:
        """Call ``make`` once per class and key, because pytest creates an instance per test."""
        if key not in cls._made:
            cls._made[key] = make()
        found: Made = cls._made[key]
        return found

    @classmethod
    def shared_registry(cls) -> Registry:
        """Return the result of `registry`, cached per class."""
        return cls.once("registry", cls().registry)

    @classmethod
    def drawn_or_none(cls, op: str) -> tuple[Sample, ...]:
        """Return all samples of an op, which are drawn once per class; empty if there are none."""
        return cls.once(("samples", op), lambda: tuple(cls()._draw(op)))

    @classmethod
    def drawn(cls, op: str) -> tuple[Sample, ...]:
        """Return all samples of an op, which are drawn once per class.

        Raises:
            AssertionError: the op has no samples.
        """
        found = cls.drawn_or_none(op)
        assert found, f"op {op!r} has no samples: set `OpSpec.samples`, or override `samples`"
        return found

    def _draw(self, op: str) -> Iterator[Sample]:
        spec = self.shared_registry().ops[op]
        for seed in range(self.draws):
            yield from self.samples(spec, np.random.default_rng(seed))

    def own_ops(self) -> tuple[str, ...]:
        """Return the sorted types of the ops that the plugin under test registers."""
        return tuple(sorted(op for op in self.shared_registry().ops if self.owns("ops", op)))


def floating_inputs(sample: Sample) -> bool:
    """Return whether a sample has floating point inputs, which are cast to the type under test."""
    return any(is_floating(x) for i, x in enumerate(sample.inputs) if i not in sample.fixed)


def is_castable(sample: Sample, dtype: DType) -> bool:
    """Return whether an element type can represent a sample's values; no integer is NaN."""
    return dtype.is_floating or all(np.isfinite(x).all() for x in sample.inputs)


Exceptions = Mapping[str, str]
"""Deliberate exceptions: the reason for each op."""
