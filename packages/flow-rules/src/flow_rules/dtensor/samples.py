"""Samples of ATen ops: the calls that are made by the sample inputs of PyTorch's own tests."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any
from unittest import SkipTest

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from flow_rules.layouts import Array
from flow_rules.prover import NONSENSE

LARGEST = 1024
"""Calls with larger tensors are not recorded."""
FUNCTION_SAMPLES = 12
"""Samples of a function that are run."""
REFUSALS: tuple[type[Exception], ...] = (*NONSENSE, AssertionError, SkipTest)
"""The exceptions of samples that need other hardware or libraries."""
DTYPES = (torch.float64, torch.int64, torch.bool)
"""Element types of samples, in order of preference."""


@dataclass(frozen=True, eq=False)
class Call:
    """A call of an ATen op."""

    op: Any  # the op, an `OpOverload`
    leaves: tuple[Any, ...]  # the arguments, with tensors among the leaves
    tree: TreeSpec
    # The op that returns new tensors where this one writes into given ones, or None.
    returning: Any = None

    @property
    def tensors(self) -> tuple[Any, ...]:
        """Return the tensors among the arguments."""
        return tuple(x for x in self.leaves if isinstance(x, torch.Tensor))

    def filled(self, values: Any) -> tuple[Any, Any]:
        """Return the arguments with other values in the place of tensors."""
        rest = iter(values)
        leaves = [next(rest) if isinstance(x, torch.Tensor) else x for x in self.leaves]
        filled: tuple[Any, Any] = tree_unflatten(leaves, self.tree)
        return filled

    def positions(self, wanted: Callable[[Any], bool]) -> tuple[int, ...]:
        """Return the positions, among the tensors, of the given arguments that are wanted."""
        args, kwargs = self.filled(range(len(self.tensors)))
        arguments = self.op._schema.arguments
        given = {a.name: x for a, x in zip(arguments, args, strict=False)} | kwargs
        named = [a.name for a in arguments if a.name in given and wanted(a)]
        return tuple(tree_flatten([given[name] for name in named])[0])

    @cached_property
    def written(self) -> tuple[int, ...]:
        """Return the tensors that the op overwrites, if it returns nothing."""
        return () if self.op._schema.returns else self.changed

    @cached_property
    def changed(self) -> tuple[int, ...]:
        """Return the tensors that the op overwrites."""
        return self.positions(lambda a: a.alias_info is not None and a.alias_info.is_write)

    @cached_property
    def into(self) -> tuple[int, ...]:
        """Return the tensors into which the op writes its results, in their order."""
        return self.positions(lambda a: a.is_out)

    @cached_property
    def ascending(self) -> tuple[int, ...]:
        """Return the tensors that must be sorted."""
        return self.positions(lambda a: a.name in ("boundaries", "sorted_sequence"))

    def run(self, arrays: Any) -> list[Array]:
        """Call the op with other tensors; return its results, or what it has overwritten.

        Raises:
            ValueError: the tensors to write into have not the shapes of the results.  Some ops of
                PyTorch would write beyond the end of such a tensor.
        """
        tensors = [torch.from_numpy(np.array(x)) for x in arrays]
        args, kwargs = self.filled(tensors)
        with torch.no_grad():
            if self.returning is not None:
                into = {a.name for a in self.op._schema.arguments if a.is_out}
                rest = {name: x for name, x in kwargs.items() if name not in into}
                wanted = [x.shape for x in tree_flatten(self.returning(*args, **rest))[0]]
                if wanted != [kwargs[a.name].shape for a in self.op._schema.arguments if a.is_out]:
                    raise ValueError("a tensor to write into has another shape")
            found = tree_flatten(self.op(*args, **kwargs))[0]
        found += [tensors[i] for i in self.written]
        return [x.numpy() for x in found if isinstance(x, torch.Tensor)]

    def __str__(self) -> str:
        args, kwargs = self.filled(f"{x.dtype}{list(x.shape)}"[6:] for x in self.tensors)
        named = [f"{name}={value}" for name, value in kwargs.items()]
        return f"{self.op}({', '.join([*map(str, args), *named])})"


class _Recorder(TorchDispatchMode):  # type: ignore[misc]  # PyTorch has no types here
    """Records calls of ops, at most ``most`` of each op that differ in shapes or arguments."""

    def __init__(self, ops: Container[Any], most: int) -> None:
        super().__init__()
        self.calls: dict[Any, dict[str, Call]] = {}
        self._ops, self._most = ops, most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op, and record it."""
        kwargs = kwargs or {}
        known = self.calls.setdefault(func, {}) if func in self._ops else None
        if known is not None and len(known) < self._most:
            leaves, tree = tree_flatten((args, kwargs))
            copies = tuple(
                x.detach().clone(memory_format=torch.contiguous_format)
                if isinstance(x, torch.Tensor)
                else x
                for x in leaves
            )
            call = Call(func, copies, tree)
            if all(0 < x.numel() <= LARGEST for x in call.tensors) and call.tensors:
                known.setdefault(str(call), call)
        return func(*args, **kwargs)


def record(
    ops: Container[Any], most: int, wanted: Callable[[str], bool] = lambda name: True
) -> dict[Any, tuple[Call, ...]]:
    """Run PyTorch's samples forward and backward, and return the calls of the given ops.

    Args:
        wanted: whether to run the samples of a function of a name.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    recorder = _Recorder(ops, most)
    for function in filter(lambda function: wanted(function.name), op_db):
        runs = _runs(function)
        while True:
            torch.manual_seed(0)
            try:
                run = next(runs, None)
                if run is None:
                    break
                with recorder:
                    run()
            except REFUSALS:  # a generator that has raised is at its end
                continue
    return {op: tuple(calls.values()) for op, calls in recorder.calls.items() if calls}


def _runs(function: Any) -> Iterator[Callable[[], Any]]:
    """Yield functions that run a sample, and its gradient where there is one."""
    dtype = next((d for d in DTYPES if d in function.dtypes), None)
    if dtype is None:
        return
    gradients = function.supports_autograd and dtype.is_floating_point
    torch.manual_seed(0)
    samples = function.sample_inputs("cpu", dtype, requires_grad=gradients)
    for sample in islice(samples, FUNCTION_SAMPLES):

        def run(sample: Any = sample) -> None:
            result = function(sample.input, *sample.args, **sample.kwargs)
            given = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
            wanted = [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad]
            made = tree_flatten(result)[0]
            made = [x for x in made if isinstance(x, torch.Tensor) and x.requires_grad]
            if wanted and made:
                seeds = [torch.randn_like(x) for x in made]
                torch.autograd.grad(made, wanted, seeds, allow_unused=True)

        yield run
