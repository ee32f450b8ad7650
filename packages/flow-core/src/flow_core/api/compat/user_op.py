"""Creation of ops by type: ``flow.user_op_builder``, the interface to the ops of plugins.

A builder collects inputs, outputs and attributes under the names that the op's spec gives them::

    def fast_relu(x, name):
        builder = flow.user_op_builder(name).Op("fast_relu").Input("in", [x]).Output("out")
        return builder.Build().InferAndTryRun().SoleOutputBlob()

Args:
    op_name: the name of the op.
    op_type_name: the type of the ops.

Returns: A `UserOpBuilder`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from flow_core.api.nn.basic import Module
from flow_core.base.dtypes import DType
from flow_core.base.errors import GraphError, nearest, user_line
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit
from flow_core.frontend.trace.job_build import JobBuild, current_job
from flow_core.ops.system.python_kernel import PYTHON_KERNEL, PythonOp, known
from flow_core.plugins.specs import OpSpec

__all__ = [
    "consistent_user_op_builder", "consistent_user_op_module_builder", "find_or_create_module",
    "user_op_builder", "user_op_module_builder",
]  # fmt: skip


def user_op_builder(op_name: str) -> UserOpBuilder:
    """Return a builder of an op whose name is below the current name scope; see `UserOpBuilder`.

    >>> def relu(x):
    ...     op = flow.user_op_builder("a").Op("relu").Input("in", [x]).Output("out").Build()
    ...     return op.InferAndTryRun().SoleOutputBlob()
    >>> run(relu, [-1, 2])
    array([0., 2.], dtype=float32)
    """
    current_job("user_op_builder")
    return UserOpBuilder(op_name)


def consistent_user_op_builder(op_name: str) -> UserOpBuilder:
    """Do the same as `user_op_builder`, but always in the consistent view.

    >>> def relu(x):
    ...     op = flow.consistent_user_op_builder("a").Op("relu").Input("in", [x]).Output("out")
    ...     return op.Build().InferAndTryRun().SoleOutputBlob()
    >>> run(relu, [-1, 2])
    array([0., 2.], dtype=float32)
    """
    current_job("consistent_user_op_builder")
    return UserOpBuilder(op_name)


def user_op_module_builder(op_type_name: str) -> UserOpModuleBuilder:
    """Return a builder of ops of one type for a `flow.nn.Module`; see `UserOpModuleBuilder`.

    Returns: A `UserOpModuleBuilder`.
    """
    current_job("user_op_module_builder")
    return UserOpModuleBuilder(op_type_name, op_type_name)


def consistent_user_op_module_builder(op_type_name: str) -> UserOpModuleBuilder:
    """Do the same as `user_op_module_builder`, but always in the consistent view.

    Returns: A `UserOpModuleBuilder`.
    """
    current_job("consistent_user_op_module_builder")
    return UserOpModuleBuilder(op_type_name, op_type_name)


def _fail(op_type: str, found: str, allowed: str, hint: str = "") -> GraphError:
    attempted = f"building an op of type {op_type!r}"
    return GraphError.at_caller(attempted, found=found, allowed=allowed, hint=hint or None)


def _names(slots: Iterable[str]) -> list[str]:
    return [slot.rstrip("?*") for slot in slots]


Builder = TypeVar("Builder", bound="UserOpBuilder")


@dataclass
class UserOpBuilder:
    """A builder of an op; every method except `Build` returns the builder itself.

    Attributes:
        op_name: name of the op below the current name scope.
        op_type: type of the op.
    """

    op_name: str
    op_type: str = ""
    _inputs: dict[str, tuple[BlobDef, ...]] = field(default_factory=dict)
    _outputs: dict[str, int] = field(default_factory=dict)
    _attrs: dict[str, Any] = field(default_factory=dict)

    def OpName(self: Builder, op_name: str) -> Builder:
        """Change the name of the op."""
        self.op_name = op_name
        return self

    def Op(self: Builder, op_type_name: str) -> Builder:
        """Set the type of the op."""
        self.op_type = op_type_name
        return self

    def Input(self: Builder, input_name: str, input_blob_list: Sequence[Blob]) -> Builder:
        """Connect blobs to an input.

        Raises:
            GraphError: ``input_blob_list`` is not a list or tuple of blobs.
        """
        if not isinstance(input_blob_list, list | tuple):
            found = f"input {input_name!r} from {input_blob_list!r:.60}"
            raise _fail(self.op_type, found, "a list or tuple of blobs")
        self._inputs[input_name] = tuple(input_blob_list)
        return self

    def Output(self: Builder, output_name: str, num: int = 1) -> Builder:
        """Request an output; a variadic output has ``num`` blobs."""
        self._outputs[output_name] = num
        return self

    def Attr(
        self: Builder, attr_name: str, attr_value: Any, attr_type_name: str | None = None
    ) -> Builder:
        """Set an attribute; ``attr_type_name`` is not needed and has no effect."""
        is_list = isinstance(attr_value, list | tuple)
        self._attrs[attr_name] = (
            [_literal(v) for v in attr_value] if is_list else _literal(attr_value)
        )
        return self

    def Build(self) -> UserOp:
        """Return the op, checked against its spec; `UserOp.InferAndTryRun` adds it to the job.

        Raises:
            GraphError: the op type is unknown, or the inputs or outputs do not fit its spec.
        """
        job, line = current_job("user_op_builder"), user_line(2)
        python = known.get(self.op_type)
        if python is None:
            spec, attrs = job.emitter.spec(self.op_type, line), dict(self._attrs)
        else:
            spec, attrs = _declared(python, job.emitter.spec(PYTHON_KERNEL, line), self._attrs)
        inputs = _ordered_inputs(spec, self._inputs)
        _check_names(spec, "outputs", self._outputs, spec.outputs)
        return UserOp(self.op_name, spec, inputs, dict(self._outputs), attrs)


def _declared(
    op: PythonOp, spec: OpSpec, given: Mapping[str, Any]
) -> tuple[OpSpec, dict[str, Any]]:
    """Return the spec of Python ops with the input and output names of one op, and the attribute
    that selects that op.
    """
    unknown = [name for name in given if name not in op.attrs]
    if unknown:
        raise _fail(op.name, f"attributes {unknown}", f"attributes {list(op.attrs)}")
    return replace(spec, inputs=op.inputs, outputs=op.outputs), {"op": op.name}


def _literal(value: object) -> Any:
    return value.name if isinstance(value, DType) else value


def _check_names(spec: OpSpec, what: str, given: Iterable[str], slots: Sequence[str]) -> None:
    known = _names(slots)
    unknown = [name for name in given if name not in known]
    if unknown:
        hint = nearest(unknown[0], known)
        raise _fail(spec.type, f"{what} {unknown}", f"{what} {known}", hint)


def _ordered_inputs(spec: OpSpec, given: dict[str, tuple[BlobDef, ...]]) -> tuple[BlobDef, ...]:
    """Return all blobs in the order of the spec's inputs."""
    _check_names(spec, "inputs", given, spec.inputs)
    blobs: list[BlobDef] = []
    absent = ""
    for slot in spec.inputs:
        name = slot.rstrip("?*")
        found = given.get(name, ())
        if not slot.endswith("*") and len(found) != 1 and (found or not slot.endswith("?")):
            raise _fail(spec.type, f"{len(found)} blobs for input {name!r}", "one")
        if found and absent:
            raise _fail(spec.type, f"input {name!r} without {absent!r}", "both, or neither")
        absent = absent or ("" if found else name)
        blobs += found
    return tuple(blobs)


@dataclass
class UserOp:
    """An op that is ready to be added to the job.

    Attributes:
        op_name: name of the op below the current name scope.
        spec: spec of the op's type.
        inputs: input blobs, in the order of the spec.
        outputs: number of requested blobs of each output.
        attrs: attributes of the op.
    """

    op_name: str
    spec: OpSpec
    inputs: tuple[BlobDef, ...]
    outputs: dict[str, int]
    attrs: dict[str, Any]
    _results: dict[str, tuple[BlobDef, ...]] | None = None

    def InferAndTryRun(self) -> UserOp:
        """Add the op to the job, which infers shapes and element types of the outputs."""
        result = emit(self.spec.type, *self.inputs, name=self.op_name, **self.attrs)
        blobs = result if isinstance(result, tuple) else (result,)
        names = _names(self.spec.outputs)
        last = len(names) - 1
        self._results = {
            name: blobs[i:] if i == last else blobs[i : i + 1] for i, name in enumerate(names)
        }
        self._check_counts(self._results)
        return self

    def _check_counts(self, results: dict[str, tuple[BlobDef, ...]]) -> None:
        for name, count in self.outputs.items():
            if len(results[name]) != count:
                found = f"{count} blobs requested of output {name!r}"
                raise _fail(self.spec.type, found, f"{len(results[name])}, the number of its blobs")

    def RemoteBlobDict(self) -> dict[str, list[BlobDef]]:
        """Return the blobs of each requested output."""
        if self._results is None:
            raise _fail(self.spec.type, "no op yet", "InferAndTryRun() first")
        results = self._results
        return {name: list(results[name]) for name in self.outputs}

    def RemoteBlobList(self) -> tuple[BlobDef, ...]:
        """Return all blobs, in the order of requests."""
        return tuple(blob for blobs in self.RemoteBlobDict().values() for blob in blobs)

    def SoleOutputBlob(self) -> BlobDef:
        """Return the only output blob.

        Raises:
            GraphError: the op has no output, or several.
        """
        blobs = self.RemoteBlobList()
        if len(blobs) != 1:
            raise _fail(self.spec.type, f"{len(blobs)} output blobs", "one", "use RemoteBlobList")
        return blobs[0]


class UserOpModuleBuilder(UserOpBuilder):
    """A builder for a `flow.nn.Module`, which builds several ops in turn.

    Call ``OpName`` and ``Input`` again before each ``Build``.
    """

    def InputSize(self, input_name: str, input_blob_size: int) -> UserOpModuleBuilder:
        """Declare the number of blobs of an input; `Input` provides them later."""
        spec = current_job("user_op_module_builder").emitter.spec(self.op_type, user_line(2))
        _check_names(spec, "inputs", [input_name], spec.inputs)
        return self

    @property
    def user_op_module(self) -> UserOpModule:
        """Return the (empty) state of the op's kernels."""
        return UserOpModule()


class UserOpModule:
    """The state of the kernels of a module's ops, which is empty since plans own all memory."""

    def InitOpKernel(self) -> None:
        """Do nothing: kernels are bound when the job is compiled."""


_modules: WeakKeyDictionary[JobBuild, dict[str, Module]] = WeakKeyDictionary()


def find_or_create_module(
    module_name: str, create: Callable[[], Module], reuse: bool = False
) -> Module:
    """Return the module that has a given name in the job being traced.

    Args:
        module_name: name of the module, unique within the job.
        create: function that is called to create a missing module.
        reuse: whether the module may already exist.

    Returns: The module.

    Raises:
        GraphError: the module exists and ``reuse`` is False, or ``create`` does not return a
            module.

    >>> class Double(flow.nn.Module):
    ...     def forward(self, x):
    ...         return 2 * x
    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
    ...     return flow.find_or_create_module("double", Double)(x)
    >>> job([1, 2])
    array([2., 4.], dtype=float32)
    """
    modules = _modules.setdefault(current_job("find_or_create_module"), {})
    module = modules.get(module_name)
    if module is None:
        return modules.setdefault(module_name, _created(module_name, create))
    if not reuse:
        raise GraphError.at_caller(
            f"making module {module_name!r}",
            found="a module of that name in this job",
            allowed="a new name, or reuse=True",
        )
    return module


def _created(module_name: str, create: Callable[[], Module]) -> Module:
    module = create() if callable(create) else create
    if not isinstance(module, Module):
        raise GraphError.at_caller(
            f"making module {module_name!r}",
            found=f"{create!r:.60} returned {type(module).__name__}",
            allowed="a function that returns a flow.nn.Module",
        )
    return module
