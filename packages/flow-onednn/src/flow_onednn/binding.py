"""The part of the oneDNN 3 C API that this package uses, and the values of its enumerators.

The API and ABI are stable within version 3: the values below are the same in the headers of 3.2
and 3.13, and `flow_onednn.library` rejects any other major version. That module also compares the
names of the enumerators with those in the loaded library, and rejects the library if one differs.
"""

from __future__ import annotations

from typing import Any, TypeAlias

CData: TypeAlias = Any
"""A cffi object: a library, pointer or array; cffi has no type information."""

CDEF = """
typedef int64_t dnnl_dim_t;
typedef struct dnnl_engine *dnnl_engine_t;
typedef struct dnnl_stream *dnnl_stream_t;
typedef struct dnnl_memory_desc *dnnl_memory_desc_t;
typedef struct dnnl_memory *dnnl_memory_t;
typedef struct dnnl_primitive_desc *dnnl_primitive_desc_t;
typedef struct dnnl_primitive *dnnl_primitive_t;
typedef struct dnnl_primitive_attr *dnnl_primitive_attr_t;
typedef struct dnnl_post_ops *dnnl_post_ops_t;
typedef struct { int arg; dnnl_memory_t memory; } dnnl_exec_arg_t;
typedef struct {
    int major; int minor; int patch; const char *hash;
    unsigned cpu_runtime; unsigned gpu_runtime; ...;
} dnnl_version_t;

const dnnl_version_t *dnnl_version(void);
int dnnl_get_effective_cpu_isa(void);
int dnnl_set_primitive_cache_capacity(int capacity);
const char *dnnl_dt2str(int value);
const char *dnnl_alg_kind2str(int value);
const char *dnnl_prop_kind2str(int value);
const char *dnnl_scratchpad_mode2str(int value);
const char *dnnl_fpmath_mode2str(int value);
const char *dnnl_status2str(int value);
const char *dnnl_engine_kind2str(int value);
const char *dnnl_fmt_tag2str(int value);
size_t dnnl_engine_get_count(int kind);
int dnnl_engine_create(dnnl_engine_t *engine, int kind, size_t index);
int dnnl_stream_create(dnnl_stream_t *stream, dnnl_engine_t engine, unsigned flags);
int dnnl_stream_wait(dnnl_stream_t stream);
int dnnl_sgemm(char transa, char transb, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, float alpha,
    const float *a, dnnl_dim_t lda, const float *b, dnnl_dim_t ldb, float beta, float *c,
    dnnl_dim_t ldc);

int dnnl_memory_desc_create_with_strides(dnnl_memory_desc_t *desc, int ndims,
    const dnnl_dim_t *dims, int data_type, const dnnl_dim_t *strides);
int dnnl_memory_desc_create_with_tag(dnnl_memory_desc_t *desc, int ndims,
    const dnnl_dim_t *dims, int data_type, int tag);
int dnnl_memory_desc_destroy(dnnl_memory_desc_t desc);
size_t dnnl_memory_desc_get_size(const dnnl_memory_desc_t desc);
int dnnl_memory_desc_equal(const dnnl_memory_desc_t a, const dnnl_memory_desc_t b);
int dnnl_memory_create(dnnl_memory_t *memory, const dnnl_memory_desc_t desc,
    dnnl_engine_t engine, void *handle);
int dnnl_memory_set_data_handle(dnnl_memory_t memory, void *handle);
int dnnl_memory_destroy(dnnl_memory_t memory);

int dnnl_primitive_attr_create(dnnl_primitive_attr_t *attr);
int dnnl_primitive_attr_destroy(dnnl_primitive_attr_t attr);
int dnnl_primitive_attr_set_scratchpad_mode(dnnl_primitive_attr_t attr, int mode);
int dnnl_primitive_attr_set_fpmath_mode(dnnl_primitive_attr_t attr, int mode);
int dnnl_primitive_attr_set_scales_mask(dnnl_primitive_attr_t attr, int arg, int mask);
int dnnl_primitive_attr_set_zero_points_mask(dnnl_primitive_attr_t attr, int arg, int mask);
int dnnl_primitive_attr_set_post_ops(dnnl_primitive_attr_t attr, const dnnl_post_ops_t ops);
int dnnl_post_ops_create(dnnl_post_ops_t *ops);
int dnnl_post_ops_destroy(dnnl_post_ops_t ops);
int dnnl_post_ops_append_eltwise(dnnl_post_ops_t ops, int alg, float alpha, float beta);
int dnnl_post_ops_append_binary(dnnl_post_ops_t ops, int alg, const dnnl_memory_desc_t other);
int dnnl_post_ops_append_sum(dnnl_post_ops_t ops, float scale, int32_t zero, int data_type);

int dnnl_primitive_desc_query(const dnnl_primitive_desc_t desc, int what, int index, void *out);
const dnnl_memory_desc_t dnnl_primitive_desc_query_md(const dnnl_primitive_desc_t desc,
    int what, int index);
int dnnl_primitive_desc_destroy(dnnl_primitive_desc_t desc);
int dnnl_primitive_create(dnnl_primitive_t *primitive, const dnnl_primitive_desc_t desc);
int dnnl_primitive_destroy(dnnl_primitive_t primitive);
int dnnl_primitive_execute(const dnnl_primitive_t primitive, dnnl_stream_t stream,
    int nargs, const dnnl_exec_arg_t *args);

int dnnl_reorder_primitive_desc_create(dnnl_primitive_desc_t *desc,
    const dnnl_memory_desc_t src, dnnl_engine_t src_engine,
    const dnnl_memory_desc_t dst, dnnl_engine_t dst_engine, const dnnl_primitive_attr_t attr);
int dnnl_matmul_primitive_desc_create(dnnl_primitive_desc_t *desc, dnnl_engine_t engine,
    const dnnl_memory_desc_t src, const dnnl_memory_desc_t weights,
    const dnnl_memory_desc_t bias, const dnnl_memory_desc_t dst,
    const dnnl_primitive_attr_t attr);
int dnnl_convolution_forward_primitive_desc_create(dnnl_primitive_desc_t *desc,
    dnnl_engine_t engine, int prop_kind, int alg_kind,
    const dnnl_memory_desc_t src, const dnnl_memory_desc_t weights,
    const dnnl_memory_desc_t bias, const dnnl_memory_desc_t dst,
    const dnnl_dim_t *strides, const dnnl_dim_t *dilates, const dnnl_dim_t *padding_l,
    const dnnl_dim_t *padding_r, const dnnl_primitive_attr_t attr);
int dnnl_convolution_backward_data_primitive_desc_create(dnnl_primitive_desc_t *desc,
    dnnl_engine_t engine, int alg_kind,
    const dnnl_memory_desc_t diff_src, const dnnl_memory_desc_t weights,
    const dnnl_memory_desc_t diff_dst,
    const dnnl_dim_t *strides, const dnnl_dim_t *dilates, const dnnl_dim_t *padding_l,
    const dnnl_dim_t *padding_r, const dnnl_primitive_desc_t hint,
    const dnnl_primitive_attr_t attr);
int dnnl_convolution_backward_weights_primitive_desc_create(dnnl_primitive_desc_t *desc,
    dnnl_engine_t engine, int alg_kind,
    const dnnl_memory_desc_t src, const dnnl_memory_desc_t diff_weights,
    const dnnl_memory_desc_t diff_bias, const dnnl_memory_desc_t diff_dst,
    const dnnl_dim_t *strides, const dnnl_dim_t *dilates, const dnnl_dim_t *padding_l,
    const dnnl_dim_t *padding_r, const dnnl_primitive_desc_t hint,
    const dnnl_primitive_attr_t attr);
int dnnl_pooling_forward_primitive_desc_create(dnnl_primitive_desc_t *desc,
    dnnl_engine_t engine, int prop_kind, int alg_kind,
    const dnnl_memory_desc_t src, const dnnl_memory_desc_t dst,
    const dnnl_dim_t *strides, const dnnl_dim_t *kernel, const dnnl_dim_t *dilation,
    const dnnl_dim_t *padding_l, const dnnl_dim_t *padding_r,
    const dnnl_primitive_attr_t attr);
int dnnl_pooling_backward_primitive_desc_create(dnnl_primitive_desc_t *desc,
    dnnl_engine_t engine, int alg_kind,
    const dnnl_memory_desc_t diff_src, const dnnl_memory_desc_t diff_dst,
    const dnnl_dim_t *strides, const dnnl_dim_t *kernel, const dnnl_dim_t *dilation,
    const dnnl_dim_t *padding_l, const dnnl_dim_t *padding_r,
    const dnnl_primitive_desc_t hint, const dnnl_primitive_attr_t attr);
int dnnl_batch_normalization_forward_primitive_desc_create(dnnl_primitive_desc_t *desc,
    dnnl_engine_t engine, int prop_kind,
    const dnnl_memory_desc_t src, const dnnl_memory_desc_t dst,
    float epsilon, unsigned flags, const dnnl_primitive_attr_t attr);
int dnnl_batch_normalization_backward_primitive_desc_create(dnnl_primitive_desc_t *desc,
    dnnl_engine_t engine, int prop_kind,
    const dnnl_memory_desc_t diff_src, const dnnl_memory_desc_t diff_dst,
    const dnnl_memory_desc_t src,
    float epsilon, unsigned flags, const dnnl_primitive_desc_t hint,
    const dnnl_primitive_attr_t attr);
int dnnl_layer_normalization_forward_primitive_desc_create(dnnl_primitive_desc_t *desc,
    dnnl_engine_t engine, int prop_kind,
    const dnnl_memory_desc_t src, const dnnl_memory_desc_t dst,
    const dnnl_memory_desc_t stat, float epsilon, unsigned flags,
    const dnnl_primitive_attr_t attr);
int dnnl_eltwise_forward_primitive_desc_create(dnnl_primitive_desc_t *desc,
    dnnl_engine_t engine, int prop_kind, int alg_kind,
    const dnnl_memory_desc_t src, const dnnl_memory_desc_t dst,
    float alpha, float beta, const dnnl_primitive_attr_t attr);
int dnnl_eltwise_backward_primitive_desc_create(dnnl_primitive_desc_t *desc,
    dnnl_engine_t engine, int alg_kind,
    const dnnl_memory_desc_t diff_src, const dnnl_memory_desc_t diff_dst,
    const dnnl_memory_desc_t data, float alpha, float beta,
    const dnnl_primitive_desc_t hint, const dnnl_primitive_attr_t attr);
"""

SUCCESS, UNIMPLEMENTED = 0, 3
STATUS = (
    "success", "out of memory", "invalid arguments", "not implemented",
    "last implementation reached", "runtime error", "not required",
    "invalid graph", "invalid graph operation", "invalid shape", "invalid data type",
)  # fmt: skip

CPU = 1
DATA_TYPES = {
    "float16": 1, "bfloat16": 2, "float32": 3, "int32": 4, "int8": 5, "uint8": 6, "float64": 7,
}  # fmt: skip
ANY = 1  # format tag: the primitive selects its layout
SCRATCHPAD_USER = 1
MATH = {"bfloat16": 1}  # types to which a primitive is allowed to round float32 operands
FORWARD_TRAINING, FORWARD_INFERENCE, BACKWARD = 64, 96, 128
CONVOLUTION_DIRECT = 0x1
POOLING = {"max": 0x1FF, "avg": 0x3FF}
RELU, TANH, LINEAR, LOGISTIC, CLIP, GELU_ERF = 32, 33, 38, 41, 46, 49
RELU_FROM_RESULT = 0x100
BINARY_ADD, BINARY_MUL = 0x1FFF0, 0x1FFF1
USE_GLOBAL_STATS, USE_SCALE, USE_SHIFT, FUSE_RELU = 1, 2, 4, 8

QUERY_IMPLEMENTATION = 8
MD = {
    "src": 129, "diff_src": 130, "weights": 131, "diff_weights": 132, "dst": 133,
    "diff_dst": 134, "workspace": 135, "scratchpad": 136,
}  # fmt: skip

SCALES, ZERO_POINTS = 1 << 12, 1 << 13  # added to an argument, they stand for its grid
ARG = {
    "src": 1, "dst": 17, "weights": 33, "bias": 41, "mean": 49, "variance": 50, "scale": 51,
    "shift": 52, "workspace": 64, "scratchpad": 80, "diff_src": 129, "diff_dst": 145,
    "diff_weights": 161, "diff_bias": 169, "diff_scale": 255, "diff_shift": 256,
    "operand 0": 1 << 15 | 2, "operand 1": 2 << 15 | 2,
    "weights scales": SCALES | 33, "dst scales": SCALES | 17,
    "src zero points": ZERO_POINTS | 1, "dst zero points": ZERO_POINTS | 17,
}  # fmt: skip

RUNTIMES = {0: "none", 1: "sequential", 2: "OpenMP", 4: "TBB", 8: "threadpool", 512: "SYCL"}
SYNCHRONOUS = (1, 2, 4)

AMX, BF16 = 0xFEF, 0xE7  # AVX512 with AMX tiles; AVX512 with bfloat16 dot products
VNNI = (0x67, 0xF)  # AVX512 and AVX2 with int8 dot products, whose sums do not saturate
ISAS = (
    (AMX, "AVX512 with AMX"), (0x1EF, "AVX512 with FP16"), (BF16, "AVX512 with BF16"),
    (VNNI[0], "AVX512 with VNNI"), (0x27, "AVX512"), (VNNI[1], "AVX2 with VNNI"), (0x7, "AVX2"),
    (0x3, "AVX"), (0x1, "SSE4.1"),
)  # fmt: skip
"""Bit masks of instruction sets, highest first."""

NAMES: dict[str, dict[int, str]] = {
    "dt": {3: "f32", 2: "bf16", 5: "s8", 6: "u8"},
    "alg_kind": {
        CONVOLUTION_DIRECT: "convolution_direct",
        POOLING["max"]: "pooling_max", POOLING["avg"]: "pooling_avg_exclude_padding",
        RELU: "eltwise_relu", TANH: "eltwise_tanh", LINEAR: "eltwise_linear",
        LOGISTIC: "eltwise_logistic", CLIP: "eltwise_clip", GELU_ERF: "eltwise_gelu_erf",
        RELU_FROM_RESULT: "eltwise_relu_use_dst_for_bwd",
        BINARY_ADD: "binary_add", BINARY_MUL: "binary_mul",
    },
    "prop_kind": {
        FORWARD_TRAINING: "forward_training", FORWARD_INFERENCE: "forward_inference",
        BACKWARD: "backward",
    },
    "scratchpad_mode": {SCRATCHPAD_USER: "user"},
    "fpmath_mode": {MATH["bfloat16"]: "bf16"},
    "status": {SUCCESS: "success", UNIMPLEMENTED: "unimplemented"},
    "engine_kind": {CPU: "cpu"},
    "fmt_tag": {ANY: "any"},
}  # fmt: skip
"""The names that the library must have for the values above, by enumeration."""
