"""C code generation: expressions of elementwise ops, and loops over fused groups."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Expression = Callable[[Sequence[str]], str]
"""A function that returns the C expression of an op for the names of its arguments and scalars."""

C_TYPES = {
    "float32": "float",
    "bfloat16": "bfloat16",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int32": "int32_t",
}


HALF = "bfloat16"


def _of(pattern: str) -> Expression:
    """Return a function that inserts names in place of ``{0}``, ``{1}`` and ``{2}``."""
    return lambda names: pattern.format(*names)


_MAX = "({0} > {1} || {0} != {0} ? {0} : {1})"
_MIN = "({0} < {1} || {0} != {0} ? {0} : {1})"
_MASKED = _of("({1} ? {0} * {2} : 0.0f * {0})")

TABLE: Mapping[str, Expression] = {
    "relu": _of("({0} < 0.0f ? 0.0f : {0})"),
    "relu_grad": _of("({0} > 0.0f ? {1} : 0.0f)"),
    "sigmoid": _of("sigmoid_({0})"),
    "sigmoid_v2": _of("sigmoid_({0})"),
    "sigmoid_grad": _of("({1} * {0} * (1.0f - {0}))"),
    "tanh": _of("tanh_({0})"),
    "tanh_grad": _of("({1} * (1.0f - {0} * {0}))"),
    "gelu": _of("gelu_({0})"),
    "gelu_grad": _of("({1} * gelu_slope_({0}))"),
    "leaky_relu": _of("({0} > 0.0f ? {0} : {1} * {0})"),
    "leaky_relu_grad": _of("({1} * ({0} > 0.0f ? 1.0f : {2}))"),
    "add_n": lambda names: f"({' + '.join(names)})",
    **{
        f"broadcast_{name}": _of(pattern)
        for name, pattern in {
            "add": "({0} + {1})", "sub": "({0} - {1})", "mul": "({0} * {1})",
            "div": "({0} / {1})", "maximum": _MAX, "minimum": _MIN,
        }.items()
    },
    "multiply": _of("({0} * {1})"),
    "elementwise_maximum": _of(_MAX),
    "elementwise_minimum": _of(_MIN),
    "square": _of("({0} * {0})"),
    "sqrt": _of("sqrtf({0})"),
    "rsqrt": _of("(1.0f / sqrtf({0}))"),
    "reciprocal": _of("(1.0f / {0})"),
    "negative": _of("(-{0})"),
    "abs": _of("fabsf({0})"),
    "exp": _of("exp_({0})"),
    "scalar_add": _of("({0} + {1})"),
    "scalar_mul": _of("({0} * {1})"),
    "scalar_add_by_tensor": _of("({0} + {1})"),
    "scalar_sub_by_tensor": _of("({0} - {1})"),
    "scalar_mul_by_tensor": _of("({0} * {1})"),
    "scalar_div_by_tensor": _of("({0} / {1})"),
    "dropout": _MASKED,
    "dropout_grad": _MASKED,
    "cast": _of("((float){0})"),
    "bias_add": _of("({0} + {1})"),
}  # fmt: skip
"""C expression of each op; its result has the C type float."""

SCALARS: Mapping[str, tuple[str, ...]] = {
    "leaky_relu": ("alpha",),
    "leaky_relu_grad": ("alpha",),
    "scalar_add": ("operand",),
    "scalar_mul": ("operand",),
    "dropout": ("scale",),
    "dropout_grad": ("scale",),
}
"""Attributes that an op's expression takes as scalars, after its arguments."""


@dataclass(frozen=True, slots=True)
class Step:
    """One member of a group: its op type, and its arguments (``-1 - k`` stands for input k)."""

    op: str
    refs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """The C loop of a group over collapsed axes.

    The values of scalars are not included, so that groups that differ only in scalars share code.
    """

    steps: tuple[Step, ...]  # the members
    outputs: tuple[int, ...]  # positions of the members whose results are stored
    types: tuple[str, ...]  # C type of each input
    results: tuple[str, ...]  # C type of each output
    # For each input and axis, whether the input varies along that axis.
    varies: tuple[tuple[bool, ...], ...]


CDEF = "void run(const long *n, const long *s, const float *c, void **in, void **out);"


PART = CDEF.replace("void run", "static void part").replace(");", ", long low, long high) {")
RUN = """
if (elements <= PARALLEL) {
    part(n, s, c, in, out, 0, units);
    return;
}
#pragma omp parallel
{
    long rank = omp_get_thread_num(), all = omp_get_num_threads();
    part(n, s, c, in, out, units * rank / all, units * (rank + 1) / all);
}
}
"""
"""C code that runs a loop; short loops skip the parallel region, whose start takes time."""


MOST_SCALARS = 16
"""Maximum number of scalars that are arguments; with more, the compiler would spill registers."""


def number(value: float) -> str:
    """Return a number as a C float literal.

    >>> number(0.1), number(float("-inf"))
    ('0x1.999999999999ap-4f', '(-INFINITY)')
    """
    if value != value:
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    text = f"{value.hex()}f"
    return f"({text})" if value < 0 else text


def write(loop: Loop, scalars: Sequence[float]) -> str:
    """Return the C code of a loop.

    The arguments of the C function are the sizes ``n``, the strides ``s`` of inputs along outer
    axes, and the scalars ``c``. If there are more than `MOST_SCALARS` scalars, all of them are
    constants in the code instead.
    """
    rank = len(loop.varies[0]) if loop.varies else 1
    inner = rank - 1
    lines = [PART]
    lines += [f"const {t} *x{k} = in[{k}];" for k, t in enumerate(loop.types)]
    lines += [f"{t} *y{k} = out[{k}];" for k, t in enumerate(loop.results)]
    many = len(scalars) > MOST_SCALARS
    values = (number(value) if many else f"c[{k}]" for k, value in enumerate(scalars))
    lines += [f"const float c{k} = {value};" for k, value in enumerate(values)]
    body = _body(loop, inner)
    if rank == 1:
        lines += ["#pragma omp simd", "for (long i = low; i < high; i++) {", *body, "}"]
    else:
        lines += _outer(loop, inner, body)
    outer = " * ".join(f"n[{a}]" for a in range(inner))
    units = f"long units = {outer or 'n[0]'}, elements = units{f' * n[{inner}]' if outer else ''};"
    return "\n".join([*lines, "}", "", CDEF.replace(";", " {"), units, RUN])


def _outer(loop: Loop, inner: int, body: Sequence[str]) -> list[str]:
    """Return the loop over all but the last axis, with the offset of each input."""
    lines = [
        f"long inner = n[{inner}];",
        "for (long o = low; o < high; o++) {", "long rest = o;",
    ]  # fmt: skip
    for axis in range(inner - 1, 0, -1):
        lines += [f"long i{axis} = rest % n[{axis}]; rest /= n[{axis}];"]
    lines += ["long i0 = rest;"]
    for k, varies in enumerate(loop.varies):
        terms = [f"i{a} * s[{k * inner + a}]" for a in range(inner) if varies[a]]
        lines += [f"const {loop.types[k]} *p{k} = x{k} + {' + '.join(terms) or '0'};"]
    lines += [f"{t} *q{k} = y{k} + o * inner;" for k, t in enumerate(loop.results)]
    return [*lines, "#pragma omp simd", "for (long i = 0; i < inner; i++) {", *body, "}", "}"]


def _body(loop: Loop, inner: int) -> list[str]:
    """Return the body of the loop over elements.

    All inputs are read before any output is written, so that outputs can alias inputs. bfloat16
    elements are converted to float when they are read, and back when they are written.
    """
    x, y = ("p", "q") if inner else ("x", "y")
    lines = []
    for k, t in enumerate(loop.types):
        read = f"{x}{k}[{'i' if loop.varies[k][-1] else '0'}]"
        lines.append(f"float a{k} = bf16_to_f32({read});" if t == HALF else f"{t} a{k} = {read};")
    scalars = (f"c{k}" for k in itertools.count())
    for m, step in enumerate(loop.steps):
        names = [f"v{r}" if r >= 0 else f"a{-1 - r}" for r in step.refs]
        names += itertools.islice(scalars, len(SCALARS.get(step.op, ())))
        lines.append(f"float v{m} = {TABLE[step.op](names)};")
    for k, (m, t) in enumerate(zip(loop.outputs, loop.results, strict=True)):
        lines.append(f"{y}{k}[i] = {f'f32_to_bf16(v{m})' if t == HALF else f'v{m}'};")
    return lines
