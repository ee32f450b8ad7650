"""Compile C at run time, with a disk cache keyed by source, compiler, flags and processor.

The environment variable ``FLOW_ONEDNN_CC`` names the compiler (default: ``cc``); an empty value
disables the C loops, so that the numpy kernels run. ``ONEDNN_MAX_CPU_ISA``, oneDNN's limit of the
instruction set, also applies to the C loops. Libraries are stored in
``$XDG_CACHE_HOME/flow-onednn`` (``~/.cache/flow-onednn`` by default), each with a digest; see
`flow_core.base.disk_cache`.
"""

from __future__ import annotations

import functools
import io
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from flow_core.base.disk_cache import CacheError, DiskCache, user_folder
from flow_core.base.errors import FlowError
from flow_onednn import threads
from flow_onednn.native import thunks
from flow_onednn.native.updates import updates_source

_LOG = logging.getLogger("flow_onednn")

SETTING = "FLOW_ONEDNN_CC"
LIMIT = "ONEDNN_MAX_CPU_ISA"
WITHOUT = {
    "SSE41": ("-mno-avx",),
    "AVX": ("-mno-avx2", "-mno-fma"),
    "AVX2": ("-mno-avx512f",),
    "AVX2_VNNI": ("-mno-avx512f",),
}
"""Compiler flags that disable instruction sets, by value of `LIMIT`."""


def limited(value: str) -> tuple[str, ...]:
    """Return the compiler flags that limit ``-march=native`` to a value of `LIMIT`.

    >>> limited("avx2"), limited("")
    (('-mno-avx512f',), ())
    """
    return WITHOUT.get(value.upper(), ()) if platform.machine() in ("x86_64", "AMD64") else ()


FILES = (
    "functions.h", "source.c", "norms.c", "tables.c", "partitions.c", "joined.c", "nan_safe.c",
    "few_rows.c", "panels.c", "recurrent.c", "calls.c", "bands.c",
)  # fmt: skip
WIDE_VECTORS = ("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()
"""Compilers tune for processors whose clock drops with vectors of 512 bits, which few still do.

On an Intel Xeon with AMX, exp takes 26 us instead of 38 us per million numbers and thread."""
# not -ffast-math, because a library linked with it flushes denormals in the whole process
FLAGS = (
    "-O2", "-ftree-vectorize", "-march=native", *WIDE_VECTORS, "-fopenmp", "-fPIC", "-shared",
    "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
    *limited(os.environ.get(LIMIT, "")),
)  # fmt: skip


class CompileError(FlowError):
    """The C compiler failed or is missing."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A working C compiler."""

    path: str  # the command
    version: str  # the first line of the compiler's version text
    native: Any  # the compiled `FILES`


@functools.cache
def state() -> Compiler | str:
    """Compile `FILES` on the first call; return the compiler, or the reason why it is unusable."""
    name = os.environ.get(SETTING, "cc")
    path = shutil.which(name) if name else None
    if path is None:
        return f"no C compiler {name!r} found" if name else f"{SETTING} is empty"
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
        version = done.stdout.splitlines()[0]
        threads.resize_pool()
        return Compiler(path, version, built(path, version, _loops(), CDEF))
    except (OSError, subprocess.CalledProcessError, CacheError, CompileError, ImportError) as error:
        text = f"{path} does not compile the C loops: {error}"
        _LOG.warning("using the numpy kernels: %s", text)
        return text


def _loops() -> str:
    """Return the text of `FILES`, with those of `updates` and `thunks` after what they call."""
    first, second, *others = map(source, FILES)
    return "".join((first, second, updates_source(), *others, thunks.defined(DECLARATIONS)))


def available() -> bool:
    """Return whether a working compiler is present."""
    return isinstance(state(), Compiler)


def native() -> Any:
    """Return the library with the functions of `FILES`; raise `CompileError` without a compiler."""
    return _compiler().native


def describe() -> str:
    """Return the version of the compiler, with its flags."""
    found = state()
    return " ".join((found.version, *FLAGS)) if isinstance(found, Compiler) else "not used"


def doctor() -> str:
    """Return the line about the compiler for ``flow doctor``."""
    found = state()
    if isinstance(found, Compiler):
        return f"C loops: {found.version} at {found.path}, cached in {folder()}"
    return f"C loops: not used, {found}"


def _compiler() -> Compiler:
    found = state()
    if isinstance(found, str):
        raise CompileError(
            "compiling C", found=found, hint=f"set {SETTING} to a C compiler, or install gcc"
        )
    return found


def source(name: str) -> str:
    """Return the text of a file of this package."""
    return (resources.files(__package__) / name).read_text()


@functools.cache
def compiled(text: str, cdef: str) -> Any:
    """Return the library compiled from generated C code, which `functions.h` precedes."""
    found = _compiler()
    return built(found.path, found.version, source("functions.h") + text, cdef)


def built(compiler: str, version: str, text: str, cdef: str) -> Any:
    """Load a C library from the cache, compiling it first if it is absent."""
    key = (text, version, *FLAGS, processor())
    path = _cache(folder(), ".so").path(key, lambda: _compile(compiler, text))
    return ffi(cdef).dlopen(str(path))


@functools.cache
def ffi(cdef: str) -> Any:
    """Return a cffi object for declarations; their parsed form is cached on disk."""
    import _cffi_backend

    key = (cdef, _cffi_backend.__version__)
    code = _cache(folder(), ".py").get(key, lambda: _parsed(cdef).encode())
    scope: dict[str, Any] = {}
    exec(compile(code, "declarations", "exec"), scope)
    return scope["ffi"]


def _parsed(cdef: str) -> str:
    """Parse declarations to Python code, which loads 100 times as fast as they are parsed."""
    import cffi
    from cffi.recompiler import make_py_source

    made = cffi.FFI()
    made.cdef(cdef)
    text = io.StringIO()
    make_py_source(made, "declared", text)
    return text.getvalue()


def folder() -> Path:
    """Return the cache folder of compiled libraries."""
    return user_folder("flow-onednn")


@functools.cache
def _cache(folder: Path, suffix: str) -> DiskCache:
    return DiskCache(folder, suffix)


@functools.cache
def processor(*fields: str) -> str:
    """Return fields of the first processor in ``/proc/cpuinfo``.

    Args:
        fields: the beginnings of their lines; by default, those of its features, which determine
            the effect of ``-march=native``.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(line for line in lines if line.startswith(fields or ("flags", "Features")))


def _compile(compiler: str, text: str) -> bytes:
    """Compile C code to a shared library."""
    with tempfile.TemporaryDirectory() as scratch:
        file, made = Path(scratch, "loops.c"), Path(scratch, "loops.so")
        file.write_text(text)
        command = [compiler, *FLAGS, str(file), "-o", str(made), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileError(f"running {' '.join(command)}", found=done.stderr.strip()[:2000])
        return made.read_bytes()


DECLARATIONS = """
void bf16_to_f32_array(const uint16_t *x, float *y, long n);
void f32_to_bf16_array(const float *x, uint16_t *y, long n);
void quantize_int8(const float *x, const float *scale, const int8_t *zero, int8_t *y, long n);
void quantize_uint8(const float *x, const float *scale, const uint8_t *zero, uint8_t *y, long n);
void quantize_last_int8(const float *x, const float *scale, const int8_t *zero, int8_t *y,
    long images, long channels, long pixels);
void quantize_last_uint8(const float *x, const float *scale, const uint8_t *zero, uint8_t *y,
    long images, long channels, long pixels);
void dequantize_int8(const int8_t *x, const float *scale, const int8_t *zero, float *y, long n);
void dequantize_uint8(const uint8_t *x, const float *scale, const uint8_t *zero, float *y, long n);
void scale_by_rate(const float *x, float *y, const float *rate, const float *factor, long n,
    double scale);
void update(int kind, void **x, const float *rate, const float *factor, const int64_t *step,
    double *sums, long n, int parts, const double *numbers);
void norm_add_relu(const float *x, float *moving_mean, float *moving_variance,
    const float *gamma, const float *beta, const float *r, float *y, float *mean,
    float *inverse, float *scratch, long rows, long columns, int parts, double epsilon,
    double momentum);
void norm_add_relu_bf16(const uint16_t *x, float *moving_mean, float *moving_variance,
    const float *gamma, const float *beta, const uint16_t *r, uint16_t *y, float *mean,
    float *inverse, float *scratch, long rows, long columns, int parts, double epsilon,
    double momentum);
void im2col(const float *x, float *y, const long *sizes);
void gather_pixels(float *x, float *y, long n, long h, long w, long c, long oh, long ow, long sh,
    long sw);
void scatter_pixels(float *y, float *x, long n, long h, long w, long c, long oh, long ow, long sh,
    long sw);
void dropout_mask(int8_t *keep, const int64_t *step, uint64_t seed, long n, float rate);
void column_sums(const float *x, float *y, float *partial, long rows, long columns, int parts);
void stack_sums(const float *x, float *y, long stack, long rows, long columns);
void row_sums(const float *x, float *y, long rows, long columns);
long cross_entropy(const float *x, const void *label, float *prob, float *loss,
    long rows, long columns, int width);
long cross_entropy_grad(const float *prob, const void *label, const float *dy, float *dx,
    long rows, long columns, int width);
void layer_norm(const float *x, const float *beta, const float *gamma, float *y, float *mean,
    float *inverse, long rows, long columns, float epsilon);
void layer_norm_grad(const float *dy, const float *x, const float *mean, const float *inverse,
    float *dx, long rows, long columns);
void layer_norm_gamma_grad(const float *dy, const float *x, const float *mean,
    const float *inverse, float *out, float *partial, long rows, long columns, int parts);
void gather(const float *table, const void *index, float *y, long count, long rows, long columns,
    int width, long first);
void segment_sum(const float *x, const void *index, float *y, long count, long rows,
    long columns, int width, long first, int parts);
void add_to_rows(float *y, const float *x, const void *index, long count, long rows,
    long columns, int width, long first, int parts);
void sparse_adam(float *w, const float *x, const void *index, float *m, float *v,
    const float *rate, const float *factor, int32_t *slot, float *sums, long count, long rows,
    long columns, int width, long first, int parts, const double *numbers);
void sparse_sgd(float *w, const float *x, const void *index, const float *rate,
    const float *factor, long count, long rows, long columns, int width, long first, int parts,
    double scale);
void indexed_update(int kind, void **x, const float *g, const void *index, const float *rate,
    int32_t *scratch, long capacity, long count, long rows, long columns, int width, long first,
    int parts, const double *numbers);
typedef struct { void *primitive, *arguments; long count; } Part;
int run_parts(void *run, void *stream, const Part *parts, long count);
int run_split_k(void *run, void *stream, const Part *parts, long count, float *y,
    const float *more, const float *bias, long rows, long columns, int relu);
void few_rows(const float *x, const float *w, const float *bias, float *y, long rows, long deep,
    long columns, float alpha, int relu);
void panels(const float *x, const float *w, const float *bias, float *y, long rows, long deep,
    long columns, int relu);
void joined_updates(int kind, void **rows, const long *sizes, long count, long width,
    const float *rate, const float *factor, const int64_t *step, double *sums, int most,
    const double *numbers);
void filter_norms(const void *x, const void *bias, float *norms, long rows, long columns, int half);
void relu_inplace(float *x, long n);
void relu_inplace_bf16(uint16_t *x, long n);
void clip_inplace(float *x, long n, float low, float high);
void clip_inplace_bf16(uint16_t *x, long n, float low, float high);
void norm_relu_nonfinite(const float *x, float *y, const float *mean, const float *inverse,
    const float *gamma, const float *beta, long rows, long columns);
void norm_relu_nonfinite_bf16(const uint16_t *x, uint16_t *y, const float *mean,
    const float *inverse, const float *gamma, const float *beta, long rows, long columns);
void max_pool(const float *x, float *y, uint8_t *place, const long *sizes);
void max_pool_bf16(const uint16_t *x, uint16_t *y, uint8_t *place, const long *sizes);
void max_pool_grad(const float *dy, const uint8_t *place, float *dx, const long *sizes);
void max_pool_planes(const float *x, float *y, float *buffer, const long *sizes, int parts);
void softmax(const float *x, float *y, long rows, long columns);
void softmax_grad(const float *y, const float *dy, float *dx, long rows, long columns);
int lstm_forward(void *sgemm, const float *parts, const float *recurrent, const float *h,
    const float *c, float *gates, float *out, float *memory, long batch, long steps, long units,
    int reverse);
int lstm_backward(void *sgemm, const float *gates, const float *recurrent, const float *c,
    const float *memory, const float *dout, const float *dmemory, const float *dgates,
    float *dparts, float *dh, float *dc, float *own, long batch, long steps, long units,
    int reverse);
int gru_forward(void *sgemm, const float *parts, const float *recurrent, const float *h,
    const float *bias, float *gates, float *out, float *memory, float *own, long batch,
    long steps, long units, int reverse);
int gru_backward(void *sgemm, const float *gates, const float *recurrent, const float *h,
    const float *memory, const float *out, const float *dout, const float *dmemory,
    const float *dgates, float *dparts, float *down, float *dh, float *own, long batch,
    long steps, long units, int reverse);
typedef union { void *p; long l; uint64_t u; double d; float f; } Slot;
typedef struct { long (*run)(const Slot *); const Slot *arguments; } Call;
typedef struct { const float *known; const void *x; long n; int half; } Bounded;
long run_calls(const Call *calls, long count, long *at);
typedef struct { void *array; char *sequence; long bytes; } Element;
long run_positions(const long *order, const Element *elements, long ins, long outs,
    const Call *two, int64_t *step, const int64_t *counter);
long run_limited(const Call *one, int count);
typedef struct { void *array; long columns; int half, result, slot; } Rows;
long run_rows(const Call *one, const Rows *arrays, long count, long slots, long counted, long rows,
    long block);
int run_primitive(void *run, void *primitive, void *stream, int count, void *arguments,
    void *wait);
void run_loop(void *run, const long *n, const long *s, const float *c, void **in, void **out);
long run_moderate(const Bounded *arrays, long count, const Call *two);
long run_bounded(const Bounded *arrays, long count, const float *norms, float *result, double most,
    const Call *two);
typedef struct { void *primitive, *arguments; long count; void *from, *to, *added; } Band;
typedef struct {
    const Bounded *ends; long count; const float *norms; double most; float *bound; char *residual;
    long image; float low, high; int limited, half;
} Stage;
typedef struct { long stage, band, from, to, added, size; } Step;
typedef struct { char *x, *y, *lanes; long x_bytes, y_bytes, lane_bytes; } Memory;
long run_bands(void *run, void *set, void *stream, const Stage *stages, long count,
    const Band *bands, long per_lane, const Step *steps, const long *starts, long parts,
    const Memory *memory, long images, long lanes);
"""

CDEF = DECLARATIONS + thunks.declared(DECLARATIONS)
