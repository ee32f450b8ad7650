"""oneDNN's memory descriptors and primitives as Python objects, and launches made of them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from flow_core.base.alignment import aligned
from flow_core.device import Launch
from flow_onednn import binding, threads
from flow_onednn.library import Library, OneDnnError, library, status_text

_LOG = logging.getLogger("flow_onednn")

Md = Any
"""A memory descriptor: cffi's pointer, which frees it or keeps its owner alive."""


def dims(values: Sequence[int]) -> Any:
    """A C array of sizes."""
    return library().ffi.new("dnnl_dim_t[]", list(values))


def plain(shape: Sequence[int], dtype: str, strides: Sequence[int] | None = None) -> Md:
    """The descriptor of an array with strides in elements; row-major by default."""
    shape = tuple(shape) or (1,)
    return _made("with_strides", shape, dtype, dims(strides or row_major(shape)))


def chosen(shape: Sequence[int], dtype: str) -> Md:
    """A descriptor whose layout the primitive chooses."""
    return _made("with_tag", shape, dtype, binding.ANY)


def _made(how: str, shape: Sequence[int], dtype: str, layout: Any) -> Md:
    one = library()
    out = one.ffi.new("dnnl_memory_desc_t *")
    create = getattr(one.lib, f"dnnl_memory_desc_create_{how}")
    kind = binding.DATA_TYPES[dtype]
    one.check(create(out, len(shape), dims(shape), kind, layout), f"describing {shape} {dtype}")
    return one.ffi.gc(out[0], one.lib.dnnl_memory_desc_destroy)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a C-contiguous array.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    strides, step = [], 1
    for size in reversed(tuple(shape)):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def same(a: Md, b: Md) -> bool:
    """Whether two descriptors agree on layout and type."""
    return bool(library().lib.dnnl_memory_desc_equal(a, b))


def nbytes(md: Md) -> int:
    """The memory that a descriptor needs."""
    return int(library().lib.dnnl_memory_desc_get_size(md))


@dataclass(frozen=True, slots=True)
class Primitive:
    """A primitive descriptor: a problem and the implementation that solves it.

    Attributes:
        desc: cffi's pointer.
        implementation: its name in the library.
        threads: how many must run it, 0 for as many as there are.
    """

    desc: Any
    implementation: str
    threads: int = 0

    def md(self, role: str) -> Md:
        """The descriptor of one of its arguments, as the primitive wants it.

        It is a part of the primitive's own, which therefore lives as long.
        """
        one, owner = library(), self.desc
        found = one.lib.dnnl_primitive_desc_query_md(owner, binding.MD[role], 0)
        return one.ffi.gc(found, lambda _: owner)

    @property
    def scratchpad(self) -> int:
        """Bytes of memory that it needs while it runs."""
        return nbytes(self.md("scratchpad"))


@dataclass(frozen=True, slots=True)
class PostOps:
    """What a primitive does with its result before it stores it.

    Attributes:
        operands: functions of two numbers, and descriptors of their second ones, that are applied
            first; the arguments are "operand 0" and so on.
        scale: factor of the result.
        accumulate: whether what is in the destination is added.
        activation: number of an elementwise function, None for none.
    """

    operands: tuple[tuple[int, Md], ...] = ()
    scale: float = 1.0
    accumulate: bool = False
    activation: int | None = None


NOTHING = PostOps()


def create(kind: str, *arguments: Any, post: PostOps = NOTHING, math: str = "") -> Primitive | None:
    """A primitive, or None where the library has nothing, or only a reference, for the problem.

    Reference implementations can be a thousand times slower than numpy's kernels, which take
    their place.  The bits of the result do not depend on the number of threads.
    """
    make = functools.partial(_created, kind, arguments, post, math)
    roles, count = SUMMING.get(kind), threads.count()
    if roles is None or count == 1 or not library().shares:
        return make()
    with threads.alone():
        one = make()
    return None if one is None else _as_one_thread(make, one, count, roles(arguments, post))


Roles = Mapping[str, Md | None]
"""The arguments of a primitive; None stands for a descriptor that the primitive knows."""


def _of_matmul(arguments: Sequence[Any], post: PostOps) -> Roles:
    operands = {f"operand {i}": md for i, (_, md) in enumerate(post.operands)}
    bias = {"bias": arguments[2]} if arguments[2] != library().ffi.NULL else {}
    return {"src": None, "weights": None, "dst": None, **bias, **operands}


def _of_filter_grad(arguments: Sequence[Any], _: PostOps) -> Roles:
    bias = {"diff_bias": arguments[3]} if arguments[3] != library().ffi.NULL else {}
    return {"src": None, "diff_dst": None, "diff_weights": None, **bias}


SUMMING = {"matmul": _of_matmul, "convolution_backward_weights": _of_filter_grad}
"""The primitives that may divide a sum among threads, and what their arguments are."""


def _as_one_thread(
    make: Callable[[], Primitive | None], one: Primitive, count: int, roles: Roles
) -> Primitive:
    """The primitive of the most threads that has the bits of a single one's.

    The library shares a sum out where it has too few results for all threads.  When it does so is
    its secret, so it is tried out.

    Args:
        make: makes the primitive for the pool's threads.
        one: that of a single thread.
        count: the pool's threads.
        roles: its arguments.
    """
    wanted, most = _outcome(one, 1, roles), count
    while count > 1:
        with threads.limited(count):
            made = make()
        if made is not None and _outcome(made, count, roles) == wanted:
            return made if count == most else replace(made, threads=count)
        count //= 2
    return replace(one, threads=1)


def _outcome(primitive: Primitive, count: int, roles: Roles) -> list[bytes]:
    """What all arguments hold after a primitive has run on numbers of both signs."""
    mds = {role: primitive.md(role) if md is None else md for role, md in roles.items()}
    arrays = {role: _numbers(nbytes(md)) for role, md in mds.items()}
    scratchpad = np.empty(primitive.scratchpad, np.uint8)
    tensors = {role: (md, address(arrays[role])) for role, md in mds.items()}
    with threads.limited(count):
        launch(replace(primitive, threads=0), tensors, address(scratchpad))()
    return [array.tobytes() for array in arrays.values()]


@functools.cache
def _some_numbers() -> Any:
    """Pairs of bfloat16, which are floats, too.

    As many as a prime: equal halves of a sum would hide how it is divided.
    """
    drawn = np.random.default_rng(0).standard_normal(16381, np.float32)
    return (drawn.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def _numbers(size: int) -> Any:
    return np.resize(_some_numbers(), size)


def _created(kind: str, arguments: Sequence[Any], post: PostOps, math: str) -> Primitive | None:
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
        one.lib.dnnl_primitive_desc_query(desc, binding.QUERY_IMPLEMENTATION, 0, name), "asking"
    )
    text = one.ffi.string(name[0]).decode()
    if text.startswith("ref"):
        _say_once(kind, text)
        return None
    return Primitive(desc, text)


@functools.cache
def _say_once(kind: str, implementation: str) -> None:
    """Says that a reference implementation was refused, once per kind of primitive."""
    _LOG.warning(
        "oneDNN has only %s for a %s: numpy's kernel runs it",
        implementation,
        kind.replace("_", " "),
    )


def _with_engine(one: Library, kind: str, arguments: Sequence[Any]) -> Sequence[Any]:
    if kind == "reorder":
        source, target = arguments
        return source, one.engine, target, one.engine
    return one.engine, *arguments


def _attributes(one: Library, post: PostOps, math: str) -> Any:
    lib = one.lib
    out = one.ffi.new("dnnl_primitive_attr_t *")
    one.check(lib.dnnl_primitive_attr_create(out), "making attributes")
    attributes = one.ffi.gc(out[0], lib.dnnl_primitive_attr_destroy)
    mode = lib.dnnl_primitive_attr_set_scratchpad_mode(attributes, binding.SCRATCHPAD_USER)
    one.check(mode, "asking for planned memory")
    if math:
        kind = binding.MATH[math]
        one.check(lib.dnnl_primitive_attr_set_fpmath_mode(attributes, kind), "allowing " + math)
    if post != NOTHING:
        _append(one, attributes, post)
    return attributes


def _append(one: Library, attributes: Any, post: PostOps) -> None:
    lib = one.lib
    out = one.ffi.new("dnnl_post_ops_t *")
    one.check(lib.dnnl_post_ops_create(out), "making post-ops")
    ops = one.ffi.gc(out[0], lib.dnnl_post_ops_destroy)
    for alg, md in post.operands:
        one.check(lib.dnnl_post_ops_append_binary(ops, alg, md), "joining an operand")
    rows = [(binding.LINEAR, post.scale)] if post.scale != 1.0 else []
    for alg, alpha in rows:
        one.check(lib.dnnl_post_ops_append_eltwise(ops, alg, alpha, 0.0), "scaling")
    if post.accumulate:
        one.check(lib.dnnl_post_ops_append_sum(ops, 1.0, 0, 0), "accumulating")
    if post.activation is not None:
        one.check(lib.dnnl_post_ops_append_eltwise(ops, post.activation, 0.0, 0.0), "activating")
    one.check(lib.dnnl_primitive_attr_set_post_ops(attributes, ops), "setting post-ops")


Tensor = tuple[Md, int]
"""A descriptor and the address of what it describes."""


def address(array: Any) -> int:
    """Where a numpy array begins."""
    return int(array.ctypes.data)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A primitive on memory at fixed addresses.

    Attributes:
        primitive: cffi's pointer to what runs.
        arguments: C array of them.
        count: how many.
        kept: what must live as long.
    """

    primitive: Any
    arguments: Any
    count: int
    kept: tuple[Any, ...]


def prepared(primitive: Primitive, tensors: Mapping[str, Tensor], scratchpad: int = 0) -> Prepared:
    """A primitive ready to run.

    Args:
        primitive: what runs.
        tensors: descriptor and address per argument.
        scratchpad: address of `Primitive.scratchpad` bytes.
    """
    one = library()
    made = one.ffi.new("dnnl_primitive_t *")
    one.check(one.lib.dnnl_primitive_create(made, primitive.desc), "making a primitive")
    prim = one.ffi.gc(made[0], one.lib.dnnl_primitive_destroy)
    rows = dict(tensors)
    if primitive.scratchpad:
        rows["scratchpad"] = (primitive.md("scratchpad"), scratchpad)
    memories = [_memory(one, *tensor) for tensor in rows.values()]
    arguments = one.ffi.new("dnnl_exec_arg_t[]", len(rows))
    for slot, name, memory in zip(arguments, rows, memories, strict=True):
        slot.arg, slot.memory = binding.ARG[name], memory
    return Prepared(prim, arguments, len(rows), (primitive, *memories))


def launch(primitive: Primitive, tensors: Mapping[str, Tensor], scratchpad: int = 0) -> Launch:
    """A launch of a primitive on memory at fixed addresses; arguments as of `prepared`."""
    if not primitive.threads:
        return _runner(library(), primitive, prepared(primitive, tensors, scratchpad))
    with threads.limited(primitive.threads):
        run = _runner(library(), primitive, prepared(primitive, tensors, scratchpad))
    return functools.partial(_limited, threads.runtime(), primitive.threads, run)


def _limited(pool: Any, count: int, run: Launch) -> None:
    """Runs something with a pool of another size."""
    before = pool.omp_get_max_threads()
    pool.omp_set_num_threads(count)
    try:
        run()
    finally:
        pool.omp_set_num_threads(before)


def _memory(one: Library, md: Md, at: int) -> Any:
    out = one.ffi.new("dnnl_memory_t *")
    handle = one.ffi.cast("void *", at)
    one.check(one.lib.dnnl_memory_create(out, md, one.engine, handle), "naming memory")
    return one.ffi.gc(out[0], one.lib.dnnl_memory_destroy)


def _runner(one: Library, primitive: Primitive, ready: Prepared) -> Launch:
    execute, stream = one.lib.dnnl_primitive_execute, one.stream
    prim, arguments, count = ready.primitive, ready.arguments, ready.count
    wait = one.lib.dnnl_stream_wait if one.waits else None

    def run(keep: object = ready) -> None:
        status = execute(prim, stream, count, arguments)
        if wait is not None:
            status = status or wait(stream)
        if status:
            failed(primitive, status)

    return run


def failed(primitive: Primitive, status: int) -> NoReturn:
    """Raises what a primitive's status says."""
    raise OneDnnError(
        f"running {primitive.implementation}", found=f"status {status}: {status_text(status)}"
    )


@dataclass(slots=True)
class Carver:
    """Hands out aligned parts of a workspace, or counts what they need when there is none.

    Attributes:
        base: address of the workspace.
        used: bytes handed out.
    """

    base: int = 0
    used: int = 0

    def take(self, size: int) -> int:
        """The address of the next part of ``size`` bytes."""
        at = self.base + self.used
        self.used += aligned(size)
        return at


def reorder(source: Tensor, target: Tensor) -> Launch:
    """A launch that copies from one layout to another."""
    made = create("reorder", source[0], target[0])
    if made is None:
        raise OneDnnError("reordering", found="no implementation", allowed="plain layouts")
    return launch(made, {"src": source, "dst": target})
