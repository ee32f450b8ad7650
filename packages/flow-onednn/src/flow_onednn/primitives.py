"""oneDNN memory descriptors and primitives as Python objects, and launches of primitives."""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeAlias

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.base.alignment import aligned
from flow_core.base.arrays import Array
from flow_onednn import binding, threads
from flow_onednn.binding import CData
from flow_onednn.kept_trials import threads_of
from flow_onednn.library import Library, OneDnnError, library, status_text
from flow_onednn.native import compiler
from flow_onednn.native.calls import Call, call, limited

_LOG = logging.getLogger("flow_onednn")

Md: TypeAlias = CData
"""A memory descriptor: a cffi pointer that owns the C object or keeps its owner alive."""


def dims(values: Sequence[int]) -> CData:
    """Return a C array of sizes."""
    return library().ffi.new("dnnl_dim_t[]", list(values))


def plain(shape: Sequence[int], dtype: str, strides: Sequence[int] | None = None) -> Md:
    """Return the descriptor of an array; strides are in elements and row-major by default."""
    shape = tuple(shape) or (1,)
    steps = tuple(strides or row_major(shape))
    return _described(
        _create_descriptor("with_strides", shape, dtype, dims(steps)), f"{dtype}{shape}{steps}"
    )


def any_layout(shape: Sequence[int], dtype: str) -> Md:
    """Return a descriptor whose layout the primitive selects (format tag "any")."""
    found = _create_descriptor("with_tag", shape, dtype, binding.ANY)
    return _described(found, f"{dtype}{tuple(shape)}any")


def _create_descriptor(how: str, shape: Sequence[int], dtype: str, layout: CData) -> Md:
    one = library()
    out = one.ffi.new("dnnl_memory_desc_t *")
    create = getattr(one.lib, f"dnnl_memory_desc_create_{how}")
    kind = binding.DATA_TYPES[dtype]
    one.check(create(out, len(shape), dims(shape), kind, layout), f"describing {shape} {dtype}")
    return one.ffi.gc(out[0], one.lib.dnnl_memory_desc_destroy)


_texts: weakref.WeakKeyDictionary[CData, str] = weakref.WeakKeyDictionary()
"""Texts that identify descriptors of memory and of primitives, for keys on disk.

Pointers to one descriptor are equal keys, so that only one object may point to it.
"""


def _described(found: CData, text: str) -> CData:
    _texts[found] = text
    return found


def _text(argument: Any) -> str:
    """Return what determines an argument of a primitive, without addresses.

    Raises:
        KeyError: it is unknown, as for descriptors of arguments that a primitive does not have.
    """
    ffi = library().ffi
    if not isinstance(argument, ffi.CData):
        return repr(argument)
    if ffi.typeof(argument).kind == "array":
        return repr(list(argument))
    return "none" if argument == ffi.NULL else _texts[argument]


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-contiguous array.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    strides, step = [], 1
    for size in reversed(tuple(shape)):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def same_layout(a: Md, b: Md) -> bool:
    """Return whether two descriptors have the same shape, layout and type."""
    return bool(library().lib.dnnl_memory_desc_equal(a, b))


def nbytes(md: Md) -> int:
    """Return the size in bytes of the memory that a descriptor describes."""
    return int(library().lib.dnnl_memory_desc_get_size(md))


@dataclass(frozen=True, slots=True)
class Primitive:
    """A primitive descriptor: a problem and the selected implementation.

    Attributes:
        desc: the cffi pointer to the descriptor.
        implementation: the name of the implementation in the library.
        threads: the number of threads that must execute it; 0 for all threads of the pool.
        mds: the memory descriptors that were required so far.
    """

    desc: CData
    implementation: str
    threads: int = 0
    mds: dict[str, Md] = field(default_factory=dict, repr=False, compare=False)

    def md(self, role: str) -> Md:
        """Return the memory descriptor that the primitive requires for an argument.

        The primitive descriptor owns the memory descriptor, which keeps it alive.
        """
        if role not in self.mds:
            one, owner = library(), self.desc
            found = one.lib.dnnl_primitive_desc_query_md(owner, binding.MD[role], 0)
            self.mds[role] = one.ffi.gc(found, lambda _: owner)
            if owner in _texts:
                _described(self.mds[role], f"{role} of ({_texts[owner]})")
        return self.mds[role]

    @property
    def scratchpad(self) -> int:
        """Bytes of scratch memory that the primitive needs during execution."""
        return nbytes(self.md("scratchpad"))


@dataclass(frozen=True, slots=True)
class PostOps:
    """The post-ops of a primitive, which change its result before the result is stored.

    Attributes:
        operands: binary algorithms, applied first, with the descriptors of their second operands;
            the arguments are named "operand 0" and so on.
        scale: factor by which the result is multiplied.
        accumulate: whether the old content of the destination is added.
        activation: algorithm of an elementwise function; None for no function.
        alpha, beta: parameters of the elementwise function.
        scales: arguments, such as "weights scales", that have the scales of arrays of int8, with
            the mask of the axes along which the scales differ.
        zero_points: arguments, such as "src zero points", that have the zero point of an array.
    """

    operands: tuple[tuple[int, Md], ...] = ()
    scale: float = 1.0
    accumulate: bool = False
    activation: int | None = None
    alpha: float = 0.0
    beta: float = 0.0
    scales: tuple[tuple[str, int], ...] = ()
    zero_points: tuple[str, ...] = ()


NO_POST_OPS = PostOps()


def create(
    kind: str, *arguments: Any, post: PostOps = NO_POST_OPS, math: str = "", warns: bool = True
) -> Primitive | None:
    """Create a primitive whose result has the same bits for any number of threads.

    Return None if the library has no implementation or only a reference implementation. The latter
    can be a thousand times slower than the numpy kernel, which then runs instead; a warning says so
    unless ``warns`` is unset.
    """
    make = functools.partial(_created, kind, arguments, post, math, warns)
    roles, count = SUMMING_PRIMITIVES.get(kind), threads.count()
    exact = bool(post.scales)  # sums of integers have no order
    if roles is None or exact or count == 1 or not library().shares_pool:
        return make()
    with threads.single_threaded():
        one = make()
    return None if one is None else _reproducible(make, one, count, roles(arguments, post))


Roles = Mapping[str, Md | None]
"""Descriptors of a primitive's arguments; None stands for one that the primitive provides."""


def _matmul_arguments(arguments: Sequence[Any], post: PostOps) -> Roles:
    operands = {f"operand {i}": md for i, (_, md) in enumerate(post.operands)}
    bias = {"bias": arguments[2]} if arguments[2] != library().ffi.NULL else {}
    return {"src": None, "weights": None, "dst": None, **bias, **operands}


def _filter_grad_arguments(arguments: Sequence[Any], _: PostOps) -> Roles:
    bias = {"diff_bias": arguments[3]} if arguments[3] != library().ffi.NULL else {}
    return {"src": None, "diff_dst": None, "diff_weights": None, **bias}


SUMMING_PRIMITIVES = {
    "matmul": _matmul_arguments,
    "convolution_backward_weights": _filter_grad_arguments,
}
"""Primitives that can divide a sum among threads; each has a function that lists its arguments."""

RESULTS = {"dst", "diff_weights", "diff_bias"}
"""The arguments that these primitives write."""


def _reproducible(
    make: Callable[[], Primitive | None], one: Primitive, count: int, roles: Roles
) -> Primitive:
    """Return the primitive with the most threads that has the bits of the single-threaded one.

    The library splits sums among threads if there are fewer results than it needs to keep all
    threads busy, which changes their rounding. The library's criterion is undocumented, so the
    outputs of both primitives on trial data are compared.

    Args:
        make: creates the primitive for all threads of the pool.
        one: the single-threaded primitive.
        count: number of threads of the pool.
        roles: the descriptors of the primitive's arguments.
    """
    size = sum(map(nbytes, _memories(one, roles).values()))
    trial = functools.partial(_equal_threads, make, one, count, roles)
    text = _texts.get(one.desc)
    found = threads_of(f"{text} {one.implementation}", size, count, trial) if text else trial()
    if found == 1:
        return replace(one, threads=1)
    with threads.limited(found):
        made = make() or one
    return made if found == count else replace(made, threads=found)


def _equal_threads(
    make: Callable[[], Primitive | None], one: Primitive, count: int, roles: Roles
) -> int:
    """Return the most threads whose results have the bits of one thread's; see `_reproducible`."""
    wanted = _trial_outputs(one, 1, roles)
    while count > 1:
        with threads.limited(count):
            made = make()
        if made is not None and all(
            map(np.array_equal, _trial_outputs(made, count, roles), wanted)
        ):
            return count
        count //= 2
    return 1


def _memories(primitive: Primitive, roles: Roles) -> dict[str, Md]:
    return {role: primitive.md(role) if md is None else md for role, md in roles.items()}


def _trial_outputs(primitive: Primitive, count: int, roles: Roles) -> list[Array]:
    """Return the bytes of the results of a run on trial data with both signs."""
    mds = _memories(primitive, roles)
    arrays = {role: np.resize(_trial_values(), nbytes(md)) for role, md in mds.items()}
    scratchpad = np.empty(primitive.scratchpad, np.uint8)
    tensors = {role: (md, address(arrays[role])) for role, md in mds.items()}
    with threads.limited(count):
        launch(replace(primitive, threads=0), tensors, address(scratchpad))()
    return [array for role, array in arrays.items() if role in RESULTS]


@functools.cache
def _trial_values() -> Array:
    """Return the bytes of bfloat16 numbers, each pair of which is a valid float32 number as well.

    The number of values is prime: with periodic data, equal bits could hide that a sum is split.
    """
    drawn = np.random.default_rng(0).standard_normal(16381, np.float32)
    return (drawn.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def _created(
    kind: str, arguments: Sequence[Any], post: PostOps, math: str, warns: bool
) -> Primitive | None:
    one = library()
    out = one.ffi.new("dnnl_primitive_desc_t *")
    make = getattr(one.lib, f"dnnl_{kind}_primitive_desc_create")
    attributes = _attributes(one, post, math)
    status = make(out, *_with_engine(one, kind, arguments), attributes)
    if status == binding.UNIMPLEMENTED:
        return None
    one.check(status, f"describing a {kind.replace('_', ' ')}")
    desc = one.ffi.gc(out[0], one.lib.dnnl_primitive_desc_destroy)
    name = one.ffi.new("char **")
    one.check(
        one.lib.dnnl_primitive_desc_query(desc, binding.QUERY_IMPLEMENTATION, 0, name),
        "querying the implementation",
    )
    text = one.ffi.string(name[0]).decode()
    if text.startswith("ref"):
        if warns:
            _warn_once(kind, text)
        return None
    with contextlib.suppress(KeyError):
        operands = [(number, _text(md)) for number, md in post.operands]
        others = (replace(post, operands=()), operands, math, threads.count())
        _described(desc, f"{kind} {(*map(_text, arguments), *others)}")
    return Primitive(desc, text)


@functools.cache
def _warn_once(kind: str, implementation: str) -> None:
    """Warn once per kind of primitive that a reference implementation was rejected."""
    _LOG.warning(
        "oneDNN has only %s for a %s: using the numpy kernel",
        implementation,
        kind.replace("_", " "),
    )


def _with_engine(one: Library, kind: str, arguments: Sequence[Any]) -> Sequence[Any]:
    if kind == "reorder":
        source, target = arguments
        return source, one.engine, target, one.engine
    return one.engine, *arguments


def _attributes(one: Library, post: PostOps, math: str) -> CData:
    lib = one.lib
    out = one.ffi.new("dnnl_primitive_attr_t *")
    one.check(lib.dnnl_primitive_attr_create(out), "creating attributes")
    attributes = one.ffi.gc(out[0], lib.dnnl_primitive_attr_destroy)
    mode = lib.dnnl_primitive_attr_set_scratchpad_mode(attributes, binding.SCRATCHPAD_USER)
    one.check(mode, "setting the scratchpad mode")
    if math:
        kind = binding.MATH[math]
        one.check(lib.dnnl_primitive_attr_set_fpmath_mode(attributes, kind), "allowing " + math)
    for role, mask in post.scales:
        scaled = binding.ARG[role] & ~binding.SCALES
        status = lib.dnnl_primitive_attr_set_scales_mask(attributes, scaled, mask)
        one.check(status, f"describing {role}")
    for role in post.zero_points:
        shifted = binding.ARG[role] & ~binding.ZERO_POINTS
        status = lib.dnnl_primitive_attr_set_zero_points_mask(attributes, shifted, 0)
        one.check(status, f"describing {role}")
    if post != NO_POST_OPS:
        _append(one, attributes, post)
    return attributes


def _append(one: Library, attributes: CData, post: PostOps) -> None:
    lib = one.lib
    out = one.ffi.new("dnnl_post_ops_t *")
    one.check(lib.dnnl_post_ops_create(out), "creating post-ops")
    ops = one.ffi.gc(out[0], lib.dnnl_post_ops_destroy)
    for alg, md in post.operands:
        one.check(lib.dnnl_post_ops_append_binary(ops, alg, md), "appending a binary post-op")
    if post.scale != 1.0:
        scaled = lib.dnnl_post_ops_append_eltwise(ops, binding.LINEAR, post.scale, 0.0)
        one.check(scaled, "appending a scale")
    if post.accumulate:
        one.check(lib.dnnl_post_ops_append_sum(ops, 1.0, 0, 0), "appending a sum")
    if post.activation is not None:
        applied = lib.dnnl_post_ops_append_eltwise(ops, post.activation, post.alpha, post.beta)
        one.check(applied, "appending an activation")
    one.check(lib.dnnl_primitive_attr_set_post_ops(attributes, ops), "setting post-ops")


Tensor = tuple[Md, int]
"""A descriptor and the address of its memory."""


def address(array: Array) -> int:
    """Return the address of a numpy array."""
    return int(array.ctypes.data)


@dataclass(frozen=True, slots=True)
class BoundPrimitive:
    """A primitive with arguments at fixed addresses.

    Attributes:
        primitive: cffi pointer to the primitive.
        arguments: C array of its arguments.
        count: number of arguments.
        kept: objects that must outlive the primitive.
    """

    primitive: CData
    arguments: CData
    count: int
    kept: tuple[Any, ...]


def bind_primitive(
    primitive: Primitive, tensors: Mapping[str, Tensor], scratchpad: int = 0
) -> BoundPrimitive:
    """Bind a primitive to memory at fixed addresses.

    Args:
        tensors: descriptor and address per argument.
        scratchpad: address of `Primitive.scratchpad` bytes.
    """
    one = library()
    prim, rows = _executable(one, primitive), dict(tensors)
    if primitive.scratchpad:
        rows["scratchpad"] = (primitive.md("scratchpad"), scratchpad)
    memories = [_memory(one, *tensor) for tensor in rows.values()]
    arguments = one.ffi.new("dnnl_exec_arg_t[]", len(rows))
    for slot, name, memory in zip(arguments, rows, memories, strict=True):
        slot.arg, slot.memory = binding.ARG[name], memory
    return BoundPrimitive(prim, arguments, len(rows), (primitive, *memories))


_executables: weakref.WeakValueDictionary[tuple[int, int], Any] = weakref.WeakValueDictionary()
"""Primitives in use, by the address of their description and their number of threads."""


def _executable(one: Library, primitive: Primitive) -> CData:
    """Return the library's primitive, which keeps its description; equal ops share one."""
    key = int(one.ffi.cast("intptr_t", primitive.desc)), threads.count()
    found = _executables.get(key)
    if found is None:
        made = one.ffi.new("dnnl_primitive_t *")
        one.check(one.lib.dnnl_primitive_create(made, primitive.desc), "creating a primitive")
        destroy, desc = one.lib.dnnl_primitive_destroy, primitive.desc
        found = one.ffi.gc(made[0], lambda handle, _=desc: destroy(handle))
        _executables[key] = found
    return found


def launch(primitive: Primitive, tensors: Mapping[str, Tensor], scratchpad: int = 0) -> Launch:
    """Return a launch of a primitive; see `bind_primitive` for the arguments."""
    if not primitive.threads:
        return _runner(library(), primitive, bind_primitive(primitive, tensors, scratchpad))
    with threads.limited(primitive.threads):
        run = _runner(library(), primitive, bind_primitive(primitive, tensors, scratchpad))
    if isinstance(run, Call):
        return limited(run, primitive.threads)
    return functools.partial(_limited, threads.runtime(), primitive.threads, run)


def _limited(pool: Any, count: int, run: Launch) -> None:
    """Run a launch with another pool size."""
    before = pool.omp_get_max_threads()
    pool.omp_set_num_threads(count)
    try:
        run()
    finally:
        pool.omp_set_num_threads(before)


def _memory(one: Library, md: Md, at: int) -> CData:
    out = one.ffi.new("dnnl_memory_t *")
    handle = one.ffi.cast("void *", at)
    one.check(one.lib.dnnl_memory_create(out, md, one.engine, handle), "creating a memory object")
    return one.ffi.gc(out[0], one.lib.dnnl_memory_destroy)


def void_pointer(pointer: CData) -> CData:
    """Convert a pointer from the library's cffi declarations to those of the C loops."""
    number = int(library().ffi.cast("uintptr_t", pointer))
    return compiler.ffi(compiler.CDEF).cast("void *", number)


def _runner(one: Library, primitive: Primitive, ready: BoundPrimitive) -> Launch:
    execute, wait = one.lib.dnnl_primitive_execute, one.lib.dnnl_stream_wait
    fail = functools.partial(raise_failure, primitive, ready)
    if compiler.available():
        prim, stream, arguments = map(void_pointer, (ready.primitive, one.stream, ready.arguments))
        awaited = void_pointer(wait if one.asynchronous else one.ffi.NULL)
        run = void_pointer(execute)
        return call("run_primitive", run, prim, stream, ready.count, arguments, awaited, fail=fail)

    def launch() -> None:
        status = execute(ready.primitive, one.stream, ready.count, ready.arguments)
        if one.asynchronous:
            status = status or wait(one.stream)
        if status:
            fail(status)

    return launch


def raise_failure(primitive: Primitive, kept: object, status: int) -> NoReturn:
    """Raise the error of a status code; ``kept`` are objects that its launch needs."""
    raise OneDnnError(
        f"running {primitive.implementation}", found=f"status {status}: {status_text(status)}"
    )


@dataclass(slots=True)
class WorkspaceAllocator:
    """An allocator of aligned parts of a workspace; without a workspace, it only counts bytes.

    Attributes:
        base: address of the workspace.
        used: bytes allocated.
    """

    base: int = 0
    used: int = 0

    def allocate(self, size: int) -> int:
        """Return the address of the next ``size`` bytes."""
        at = self.base + self.used
        self.used += aligned(size)
        return at


def reorder(source: Tensor, target: Tensor) -> Launch:
    """Return a launch that copies a tensor from one memory layout to another."""
    made = create("reorder", source[0], target[0])
    if made is None:
        raise OneDnnError(
            "reordering", found="no implementation for these layouts", allowed="plain layouts"
        )
    return launch(made, {"src": source, "dst": target})
