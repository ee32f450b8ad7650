"""Job functions, variables, watched blobs and the session; ``__all__`` has the top-level names.

Args:
    dtype: the element type.
    batch_axis: the axis of the samples, or None.
    shape: the largest sizes.

Returns: A placeholder.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from flow_core.annotations import PlaceholderSpec, parse_handler, placeholder
from flow_core.api.session.train import log_mismatch
from flow_core.base.arrays import Array
from flow_core.base.dtypes import DType, as_asked, float32
from flow_core.base.errors import CheckpointError, InferenceError, JobError, user_line
from flow_core.base.host_arrays import HostDLPack, host_array
from flow_core.checkpoint import store
from flow_core.checkpoint.snapshot import StoredVariable
from flow_core.checkpoint.store import Mismatch
from flow_core.frontend.config.function_config import FunctionConfig
from flow_core.frontend.config.scope import current_scope, name_scope
from flow_core.frontend.job.function import global_function
from flow_core.frontend.session.default import clear_default_session, sync_default_session
from flow_core.frontend.session.session import default_session
from flow_core.frontend.session.variable_storage import StoredVariable as SessionVariable
from flow_core.frontend.session.variables import get_variable
from flow_core.frontend.trace.blob import NO_SPLIT, Blob, BlobDef
from flow_core.frontend.trace.emit import emit, emit_one
from flow_core.frontend.trace.job_build import Watch, current_job, described
from flow_core.frontend.trace.results import FORMS
from flow_core.frontend.trace.sbp_hints import hierarchical_parallel_cast, parallel_cast
from flow_core.ir.graph import TensorType

function_config = FunctionConfig

INVALID_BATCH_AXIS = None
"""The value of ``batch_axis`` for a blob without a batch axis."""
INVALID_SPLIT_AXIS = NO_SPLIT
"""The value of ``split_axis`` for a blob that is not split."""

__all__ = [
    "INVALID_BATCH_AXIS", "INVALID_SPLIT_AXIS", "FixedTensorDef", "FunctionConfig",
    "MirroredTensorDef", "MirroredTensorListDef", "clear_default_session", "current_machine_id",
    "current_scope", "drop_variables", "eager_execution_enabled", "enable_eager_execution",
    "function_config", "get_all_variables", "get_variable", "global_function",
    "hierarchical_parallel_cast", "load_variables", "name_scope", "parallel_cast",
    "sync_default_session", "watch", "watch_diff",
]  # fmt: skip


def FixedTensorDef(
    shape: Sequence[int],
    dtype: DType = float32,
    batch_axis: int | None = 0,
    name: str | None = None,
) -> PlaceholderSpec:
    """Return a placeholder of fixed shape, to be the default value of a job's parameter.

    Args:
        shape: the sizes.
        name: without effect.

    >>> @flow.global_function()
    ... def job(x=flow.FixedTensorDef((2,))):
    ...     return 2 * x
    >>> job([1, 2]).get().numpy()
    array([2., 4.], dtype=float32)
    """
    return placeholder("numpy", tuple(shape), dtype, batch_axis)


def MirroredTensorDef(
    shape: Sequence[int],
    dtype: DType = float32,
    batch_axis: int | None = 0,
    name: str | None = None,
) -> PlaceholderSpec:
    """Return a placeholder for a list of arrays, one per device.

    Args:
        name: without effect.

    >>> config = flow.function_config()
    >>> config.default_logical_view(flow.scope.mirrored_view())
    >>> @flow.global_function(function_config=config)
    ... def job(x=flow.MirroredTensorDef((4,))):
    ...     return 2 * x
    >>> job([np.ones(3)]).get().numpy_list()
    [array([2., 2., 2.], dtype=float32)]
    """
    return placeholder("list", tuple(shape), dtype, batch_axis)


def MirroredTensorListDef(
    shape: Sequence[int],
    dtype: DType = float32,
    batch_axis: int | None = 0,
    name: str | None = None,
) -> PlaceholderSpec:
    """Return a placeholder for a list of lists of arrays.

    Args:
        name: without effect.

    >>> flow.MirroredTensorListDef((2, 3)).shape
    (2, 3)
    """
    return placeholder("list_list", tuple(shape), dtype, batch_axis)


def watch(blob_watched: Blob, handler_or_prompt: Callable[..., object] | str | None = None) -> None:
    """Report the value of a blob at every step.

    Args:
        blob_watched: the blob.
        handler_or_prompt: a text to print before the value, or a function that is called with the
            value: a numpy array if the function's parameter is annotated, otherwise an object with
            ``numpy()``.

    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
    ...     flow.watch(2 * x, lambda value: print(value.numpy()))
    ...     return x
    >>> _ = job([1, 2])
    [2. 4.]
    >>> flow.sync_default_session()
    """
    _watch("watch", blob_watched, handler_or_prompt, gradient=False)


def watch_diff(
    blob_watched: Blob, handler_or_prompt: Callable[..., object] | str | None = None
) -> None:
    """Report the gradient of a blob at every step of a train job; arguments as for `watch`.

    If the blob has no gradient, because the job does not train or no loss depends on the blob, a
    `CompatibilityWarning` says that the handler is never called.

    Args:
        blob_watched: a blob.
        handler_or_prompt: see `watch`.

    >>> @flow.global_function(type="train")
    ... def job() -> tp.Numpy:
    ...     w = flow.get_variable("w", (2,), initializer=flow.ones_initializer())
    ...     flow.watch_diff(w, lambda gradient: print(gradient.numpy()))
    ...     flow.optimizer.SGD(0.1).minimize(3 * w)
    ...     return w
    >>> _ = job()
    [3. 3.]
    >>> flow.sync_default_session()
    """
    _watch("watch_diff", blob_watched, handler_or_prompt, gradient=True)


def _watch(
    what: str, blob: Blob, handler: Callable[..., object] | str | None, gradient: bool
) -> None:
    job = current_job(what)
    if not isinstance(blob, BlobDef) or blob.job is not job:
        found, allowed = described(blob), f"a blob of this job, {job.name!r}"
        raise JobError.at_caller(what, found=found, allowed=allowed)
    job.watches.append(Watch(blob, _handler(handler, blob.op_name), gradient, user_line(3)))


def _handler(handler: Callable[..., Any] | str | None, name: str) -> Callable[[Any], None]:
    if not callable(handler):
        prompt = name if handler is None else handler
        return lambda array: print(prompt, array, sep="\n")  # noqa: T201 - what a prompt asks for
    specs = tuple(default_session().registry.annotations.values())
    form = FORMS[parse_handler(handler, specs).kind]
    return lambda array: handler(form(array))


class VariableBlob(HostDLPack):
    """A variable of the session, as programs access it outside jobs."""

    def __init__(self, name: str, stored: SessionVariable) -> None:
        self._stored = stored
        self.name = name

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape."""
        return tuple(self._stored.info.type.shape)

    @property
    def dtype(self) -> DType:
        """Element type."""
        dtype: DType = self._stored.info.type.dtype
        return dtype

    def numpy(self) -> Array:
        """Return a copy of the value."""
        with default_session().quiesced():
            array: np.ndarray[Any, Any] = self._stored.numpy()
        return array

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Array:
        """Return a copy of the value, for numpy; ``copy=False`` is not supported."""
        if copy is False:
            raise InferenceError.at_caller(
                f"numpy's view of variable {self.name!r}",
                found="copy=False",
                allowed="copy=None or copy=True: the value is in device memory",
            )
        return as_asked(self.numpy(), dtype, None)

    def __reduce__(self) -> NoReturn:
        raise JobError.at_caller(
            f"pickling or copying variable {self.name!r}",
            found="a variable that lives in the session",
            allowed="its value: variable.numpy()",
            hint="flow.checkpoint.save(path) saves all variables",
        )

    def _repr_html_(self) -> str:
        """Return the name, type, range and first elements, for notebooks."""
        from flow_core.base.formats.html_table import html_table

        value = self.numpy()
        rows: list[tuple[str, object]] = [("type", self._stored.info.type)]
        if value.size and value.dtype.kind not in "OSUb":
            wide = value.astype(np.float64)
            rows.append(("range", f"{wide.min():.6g} to {wide.max():.6g}"))
            rows.append(("mean", f"{wide.mean():.6g}"))
        rows.append(("value", np.array2string(value, threshold=40, edgeitems=2, precision=4)))
        return html_table(f"variable {self.name!r}", rows)

    def __repr__(self) -> str:
        return f"VariableBlob({self.name!r}, {self._stored.info.type})"


def get_all_variables() -> dict[str, VariableBlob]:
    """Return all variables of the session by name.

    Returns: A dictionary from names to variables; ``numpy()`` of a variable returns a copy of its
        value.

    >>> @flow.global_function()
    ... def job() -> tp.Numpy:
    ...     return flow.get_variable("w", (2,), initializer=flow.ones_initializer())
    >>> flow.get_all_variables()["w"].numpy()
    array([1., 1.], dtype=float32)
    """
    session = default_session()
    session.sync()
    return {name: VariableBlob(name, stored) for name, stored in session.stored().items()}


def drop_variables(*patterns: str) -> list[str]:
    """Drop variables of the session, so that jobs may request them with other shapes.

    The states that optimizers keep for these variables are dropped, too.  All other variables keep
    their values.  The next call of a job that used a dropped variable traces the job again; the
    variable then begins with its initial value.

    Args:
        patterns: names of variables, in which ``*`` and ``?`` stand for any characters.

    Returns: The names of the dropped variables.

    Raises: VariableError: no variable has one of the names.
    """
    from flow_core.frontend.session.dropped_variables import drop

    return drop(default_session(), patterns)


def load_variables(value_dict: Mapping[str, Array], ignore_mismatch: bool | None = None) -> None:
    """Overwrite variables with values.

    Args:
        value_dict: dict from variable names to arrays or objects with ``numpy()``.
        ignore_mismatch: what to do with names that no variable has.  True: ignore them.  None:
            ignore them with one warning that lists them.  False: raise an error.

    Raises:
        CheckpointError: ``value_dict`` is not a dict, a shape or type does not fit, a value cannot
            be read, or a name belongs to no variable and is not ignored.  The error lists all
            problems, and nothing is overwritten.

    >>> @flow.global_function()
    ... def job() -> tp.Numpy:
    ...     return flow.get_variable("w", (2,), initializer=flow.ones_initializer())
    >>> flow.load_variables({"w": np.array([3, 4], np.float32)})
    >>> job()
    array([3., 4.], dtype=float32)
    """
    if not isinstance(value_dict, Mapping):
        raise CheckpointError.at_caller(
            "loading variables",
            found=f"{type(value_dict).__name__} {value_dict!r:.60}",
            allowed="a dict of arrays by variable name",
            hint="of a checkpoint: flow.load_variables(flow.checkpoint.get(path))",
        )
    session = default_session()
    wanted = session.types()
    values = {name: _plain(v) if name in wanted else v for name, v in value_dict.items()}
    line = user_line(2)
    odd = store.match(wanted, values, missing=False, extra=ignore_mismatch is False, at=line)
    session.assign({k: _read(values[k], wanted[k]) for k in values if k in wanted})
    if ignore_mismatch is None:
        log_mismatch(f"loading variables (at {line})", Mismatch((), odd.extra), wanted)


def _read(value: object, wanted: TensorType) -> Any:
    return value.typed(wanted).numpy() if isinstance(value, StoredVariable) else value


def _plain(value: object) -> Any:
    """Return a stored variable unchanged, and the array of any other object."""
    return value if isinstance(value, StoredVariable) else host_array(value)


def enable_eager_execution(val: bool = True) -> None:
    """Allow programs to redefine a job at every step, as in OneFlow's eager mode.

    Each definition is traced and compiled, which takes milliseconds, and continues with the
    variables and the step counter of the previous job of its name.  Ops outside job functions still
    raise an error.

    Args:
        val: whether jobs may be redefined.

    >>> flow.enable_eager_execution(True)
    >>> flow.eager_execution_enabled()
    True
    """
    default_session().eager = bool(val)


def eager_execution_enabled() -> bool:
    """Return whether jobs may be redefined at every step.

    Returns: True or False.

    >>> flow.eager_execution_enabled()
    False
    """
    return default_session().eager


def current_machine_id() -> int:
    """Return the index of this machine in the session: 0 for a single process.

    Returns: A number from 0.

    >>> flow.current_machine_id()
    0
    """
    world = default_session().world
    return 0 if world is None else world.machine


def enable_typing_check(val: bool = True) -> None:
    """Accept OneFlow's setting without effect: annotations are always checked.

    Args:
        val: without effect.

    >>> flow.experimental.enable_typing_check(True)
    """


def square_sum(x: Blob, name: str | None = None) -> BlobDef:
    """Return the sum of the squares of all elements, of shape (1,).

    Args:
        x: a floating-point blob.

    Returns: A blob of shape (1,).

    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
    ...     return flow.experimental.square_sum(x)
    >>> job([3, 4])
    array([25.], dtype=float32)
    """
    return emit_one("reshape", emit("square_sum", x, name=name), shape=(1,))


_numbers = itertools.count()


def unique_str(prefix: str) -> str:
    """Return a new unique name.

    Args:
        prefix: the beginning of the name.

    Returns: The prefix, followed by a number.

    >>> flow.util.unique_str("layer") != flow.util.unique_str("layer")
    True
    """
    return f"{prefix}{next(_numbers)}"
