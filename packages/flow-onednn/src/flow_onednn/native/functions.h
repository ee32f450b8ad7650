// Branch-free elementary functions for loops that the compiler vectorizes.
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>

static inline float power_of_2(int32_t n) {
    uint32_t bits = (uint32_t)(n + 127) << 23;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

// exp: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]; 2^n is split into two factors, so that
// results out of range become 0 or infinity
static inline float exp_(float x) {
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    float n = rintf(x * 1.44269504088896341f);
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t k = (int32_t)n, half = k >> 1;
    return p * power_of_2(half) * power_of_2(k - half);
}

// erf: an odd rational function on [-4, 4]; beyond this interval, erf is 1 or -1 in float
static inline float erf_(float x) {
    x = x < -4.0f ? -4.0f : x;
    x = x > 4.0f ? 4.0f : x;
    float z = x * x;
    float a = -2.72614225801306e-10f;
    a = a * z + 2.77068142495902e-08f;
    a = a * z - 2.10102402082508e-06f;
    a = a * z - 5.69250639462346e-05f;
    a = a * z - 7.34990630326855e-04f;
    a = a * z - 2.95459980854025e-03f;
    a = a * z - 1.60960333262415e-02f;
    float b = -1.45660718464996e-05f;
    b = b * z - 2.13374055278905e-04f;
    b = b * z - 1.68282697438203e-03f;
    b = b * z - 7.37332916720468e-03f;
    b = b * z - 1.42647390514189e-02f;
    return x * a / b;
}

static inline float sigmoid_(float x) { return 1.0f / (1.0f + exp_(-x)); }

static inline float tanh_(float x) {
    float z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    float small = x + x * z * p;
    float large = 1.0f - 2.0f / (exp_(2.0f * fabsf(x)) + 1.0f);
    return copysignf(fabsf(x) < 0.625f ? small : large, x);
}

static inline float gelu_(float x) { return 0.5f * x * (1.0f + erf_(x * 0.70710678118654752f)); }

static inline float gelu_slope_(float x) {
    return 0.5f * (1.0f + erf_(x * 0.70710678118654752f))
        + x * exp_(-0.5f * x * x) * 0.39894228040143268f;
}

// bfloat16: the upper half of a float; conversion rounds to nearest, with ties to even
typedef uint16_t bfloat16;

static inline float bf16_to_f32(bfloat16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

static inline bfloat16 f32_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t near = bits + 0x7fffu + (bits >> 16 & 1u);
    return (bfloat16)((x != x ? bits | 0x400000u : near) >> 16);
}

// In inlined functions, `half` is a constant at each call: the type of images, which is bfloat16 or
// else float.
#define INLINED static inline __attribute__((always_inline))

INLINED float load_(const void *x, long i, int half) {
    return half ? bf16_to_f32(((const bfloat16 *)x)[i]) : ((const float *)x)[i];
}

INLINED void store_(void *y, long i, float v, int half) {
    if (half) ((bfloat16 *)y)[i] = f32_to_bf16(v);
    else ((float *)y)[i] = v;
}

// Vectors of floats and of the results of their comparisons, for loops that the compiler does not
// vectorize by itself.
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t Mask __attribute__((vector_size(4 * LANES)));

#define PARALLEL 16384

// Threads start at multiples of VECTORS elements. For the elements that remain after the last full
// vector, the compiler can contract products and sums differently; with this rule, these elements
// are the same for any number of threads.
#define VECTORS 64

// Run a statement for each i below n. Short loops skip the parallel region, which takes time to
// start even with one thread.
#define EACH(n, ...) \
    if ((n) > PARALLEL) { \
        _Pragma("omp parallel") \
        { \
            long count_ = (n), threads_ = omp_get_num_threads(); \
            long share_ = ((count_ + VECTORS - 1) / VECTORS + threads_ - 1) / threads_ * VECTORS; \
            long low_ = omp_get_thread_num() * share_, high_ = low_ + share_; \
            high_ = high_ < count_ ? high_ : count_; \
            _Pragma("omp simd") \
            for (long i = low_; i < high_; i++) __VA_ARGS__ \
        } \
    } else { \
        _Pragma("omp simd") \
        for (long i = 0; i < (n); i++) __VA_ARGS__ \
    }
