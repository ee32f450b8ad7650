// Types, math and indexing for all kernels.  The same text compiles as CUDA C++ with NVRTC and,
// after host.h, with the host compiler.

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

struct alignas(16) u128 { u64 low, high; };

#ifndef SHARED
#define SHARED(type, name, size) __shared__ type name size
#endif

// The threads of a block: a constant on devices (`CupyHardware.threads`).
#define MOST_THREADS 256
#ifdef MODELED
#define BLOCK blockDim.x
#else
#define BLOCK MOST_THREADS
#endif

#define FN static __device__ __forceinline__

template <class To, class From> FN To bits_as(From from) {
    union { From from; To to; } both;
    both.from = from;
    return both.to;
}

// --- 16-bit types are storage types only

struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };

// Instructions that C++ lacks; host.h has exact models of them.
#ifndef MODELED
FN float half_to_float(unsigned short bits) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
    return wide;
}
FN unsigned short float_to_half(float wide) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(wide));
    return bits;
}
#endif

FN unsigned short float_to_bfloat(float wide) {
#if !defined(MODELED) && __CUDA_ARCH__ >= 800
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(wide));
    return bits;
#else
    u32 bits = bits_as<u32>(wide);
    if ((bits & 0x7fffffff) > 0x7f800000u) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
}

// In<T>: the computation type of elements of type T.
template <class T> struct In { typedef T type; };
template <> struct In<f16> { typedef float type; };
template <> struct In<bf16> { typedef float type; };

template <class T> FN T load(const T *from) { return *from; }
FN float load(const f16 *from) { return half_to_float(from->bits); }
FN float load(const bf16 *from) { return bits_as<float>((u32)from->bits << 16); }

template <class T, class V> struct Narrow {
    static __device__ __forceinline__ T from(V value) { return (T)value; }
};
template <class V> struct Narrow<bool, V> {
    static __device__ __forceinline__ bool from(V value) { return value != (V)0; }
};
template <class V> struct Narrow<f16, V> {
    static __device__ __forceinline__ f16 from(V value) {
        f16 stored = {float_to_half((float)value)};
        return stored;
    }
};
template <class V> struct Narrow<bf16, V> {
    static __device__ __forceinline__ bf16 from(V value) {
        bf16 stored = {float_to_bfloat((float)value)};
        return stored;
    }
};

// Floats beyond an integer type, and NaN, become its least value; types of fewer than 32 bits take
// the low bits of the conversion to 32.  This is what x86 does; PTX saturates.
template <class V> FN i32 to_i32(V x) {
    return x > (V)-2147483649.0 && x < (V)2147483648.0 ? (i32)x : (i32)0x80000000u;
}
template <class V> FN i64 to_i64(V x) {
    bool inside = x >= (V)-9223372036854775808.0 && x < (V)9223372036854775808.0;
    return inside ? (i64)x : (i64)0x8000000000000000ull;
}
#define INTEGER_FROM(V, T, how) \
    template <> struct Narrow<T, V> { \
        static __device__ __forceinline__ T from(V value) { return (T)how(value); } \
    };
#define INTEGERS_FROM(V) \
    INTEGER_FROM(V, i8, to_i32) INTEGER_FROM(V, u8, to_i32) INTEGER_FROM(V, i32, to_i32) \
    INTEGER_FROM(V, i64, to_i64)
INTEGERS_FROM(float) INTEGERS_FROM(double)

template <class T, class V> FN void store(T *to, V value) { *to = Narrow<T, V>::from(value); }

// Rounds a value to the storage type, so that fused groups match single ops bitwise.
template <class T, class V> FN typename In<T>::type as(V value) {
    T stored = Narrow<T, V>::from(value);
    return load(&stored);
}

// Adjacent elements, which one instruction reads or writes.
template <class T, int N> struct alignas(sizeof(T) * N) Pack { T each[N]; };
template <int N, class T> FN Pack<T, N> load_pack(const T *from) { return *(const Pack<T, N> *)from; }
template <int N, class T> FN void store_pack(T *to, const Pack<T, N> &pack) {
    *(Pack<T, N> *)to = pack;
}

// --- math in the two computation types

#define MATH1(name) \
    FN float name##_(float x) { return name##f(x); } \
    FN double name##_(double x) { return name(x); }
MATH1(exp) MATH1(expm1) MATH1(log) MATH1(log1p) MATH1(sqrt) MATH1(sin) MATH1(cos) MATH1(tan)
MATH1(sinh) MATH1(cosh) MATH1(tanh) MATH1(asin) MATH1(acos) MATH1(atan) MATH1(asinh) MATH1(acosh)
MATH1(atanh) MATH1(ceil) MATH1(floor) MATH1(rint) MATH1(erf) MATH1(erfc) MATH1(fabs)
#define MATH2(name) \
    FN float name##_(float x, float y) { return name##f(x, y); } \
    FN double name##_(double x, double y) { return name(x, y); }
MATH2(pow) MATH2(atan2) MATH2(fmod)

FN float fma_(float x, float y, float z) { return fmaf(x, y, z); }
FN double fma_(double x, double y, double z) { return fma(x, y, z); }

// near its zeros lgamma in float loses all significant digits
FN float lgamma_(float x) { return (float)lgamma((double)x); }
FN double lgamma_(double x) { return lgamma(x); }

template <class V> FN V infinity();
template <> __device__ __forceinline__ float infinity<float>() { return bits_as<float>(0x7f800000u); }
template <> __device__ __forceinline__ double infinity<double>() {
    return bits_as<double>(0x7ff0000000000000ull);
}
template <class V> FN V lowest() { return (V)-1 > 0 ? 0 : (V)((u64)1 << (8 * sizeof(V) - 1)); }
template <> __device__ __forceinline__ float lowest<float>() { return -infinity<float>(); }
template <> __device__ __forceinline__ double lowest<double>() { return -infinity<double>(); }
template <class V> FN V not_a_number() { return infinity<V>() - infinity<V>(); }

template <class V> FN bool is_nan(V x) { return x != x; }
template <class V> FN bool is_finite(V x) { return x - x == (V)0; }

FN double digamma_(double x) {
    bool mirrored = x < 0.5;
    double z = mirrored ? 1 - x : x, below = 0;
    for (int i = 0; i < 20; i++) { below += 1 / z; z += 1; }
    double q = 1 / (z * z);
    double value = log(z) - 1 / (2 * z) - q / 12 + q * q / 120 - q * q * q / 252 + q * q * q * q / 240;
    value -= below;
    const double pi = 3.14159265358979323846;
    return mirrored ? value - pi / tan(pi * x) : value;
}
FN float digamma_(float x) { return (float)digamma_((double)x); }

template <class V> FN V max_(V a, V b) { return a > b || a != a ? a : b; }
template <class V> FN V min_(V a, V b) { return a < b || a != a ? a : b; }
// As max_, by one instruction where there is one; it may take another sign of zero.
template <class V> FN V largest_(V a, V b) { return max_(a, b); }
#if !defined(MODELED) && __CUDA_ARCH__ >= 800
FN float largest_(float a, float b) {
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return most;
}
#endif
template <class V> FN V clip_(V x, V low, V high) {
    V above = x < low ? low : x;
    return above > high ? high : above;
}
template <class V> FN V sign_(V x) { return x != x ? x : (V)((x > (V)0) - (x < (V)0)); }
template <class V> FN V abs_(V x) { return x < (V)0 ? (V)-x : x; }
FN float abs_(float x) { return fabsf(x); }
FN double abs_(double x) { return fabs(x); }

// Integer quotients truncate towards zero; division by zero gives zero, as in NumPy.
template <class V> FN V divide_(V x, V y) { return y == (V)0 ? (V)0 : (V)(x / y); }
FN float divide_(float x, float y) { return x / y; }
FN double divide_(double x, double y) { return x / y; }

template <class V> FN V floor_mod_(V x, V y) {
    if (y == (V)0) return 0;
    V rest = x % y;
    return rest != (V)0 && (rest < (V)0) != (y < (V)0) ? (V)(rest + y) : rest;
}
template <class V> FN V floor_mod_of(V x, V y) {
    V rest = fmod_(x, y);
    if (rest == (V)0) return y < (V)0 ? (V)-0.0 : (V)0.0;
    return (rest < (V)0) != (y < (V)0) ? rest + y : rest;
}
FN float floor_mod_(float x, float y) { return floor_mod_of(x, y); }
FN double floor_mod_(double x, double y) { return floor_mod_of(x, y); }

template <class V> FN V floor_div_(V x, V y) {
    if (y == (V)0) return 0;
    V whole = x / y;
    return x % y != (V)0 && (x % y < (V)0) != (y < (V)0) ? (V)(whole - 1) : whole;
}
template <class V> FN V floor_div_of(V x, V y) {
    if (y == (V)0) return x / y;
    V rest = fmod_(x, y), whole = (x - rest) / y;
    if (rest != (V)0 && (rest < (V)0) != (y < (V)0)) whole -= (V)1;
    V down = floor_(whole);
    if (whole - down > (V)0.5) down += (V)1;
    return down == (V)0 ? (V)0 * (x / y) : down;  // a zero with the sign of the quotient
}
FN float floor_div_(float x, float y) { return floor_div_of(x, y); }
FN double floor_div_(double x, double y) { return floor_div_of(x, y); }

// Without the calls that divisions and roots of any float take.
FN double reciprocal_(double x) { return 1 / x; }
FN double inverse_root_(double x) { return 1 / sqrt(x); }
#ifdef MODELED
FN float reciprocal_(float x) { return 1 / x; }
FN float inverse_root_(float x) { return 1 / sqrtf(x); }
#else
FN float refined(float rough, float better) { return better != better ? rough : better; }
FN float reciprocal_(float x) {
    float rough;
    asm("rcp.approx.f32 %0, %1;" : "=f"(rough) : "f"(x));
    return refined(rough, fmaf(rough, fmaf(-x, rough, 1.0f), rough));  // one step of Newton's method
}
FN float inverse_root_(float x) {
    float rough;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(rough) : "f"(x));
    return refined(rough, fmaf(rough, fmaf(-0.5f * x * rough, rough, 0.5f), rough));
}
#endif

template <class V> FN V softplus_(V x) {
    return (x > (V)0 ? x : (V)0) + log1p_(exp_(-abs_(x)));
}
template <class V> FN V sigmoid_(V x) {
    V small = exp_(-abs_(x));
    return (x < (V)0 ? small : (V)1) / ((V)1 + small);
}
template <class V> FN V gauss_(V x) { return (V)0.5 * erfc_(x * (V)-0.70710678118654752440); }
template <class V> FN V gelu_(V x) { return x * gauss_(x); }
template <class V> FN V gelu_slope_(V x) {
    return gauss_(x) + x * exp_(x * x * (V)-0.5) * (V)0.39894228040143267794;
}

// --- threads

FN i64 first_item() { return (i64)blockIdx.x * BLOCK + threadIdx.x; }
FN i64 all_threads() { return (i64)gridDim.x * BLOCK; }
// Not unrolled: the number of iterations of an unrolled loop takes a division of 64 bits.
#define LOOP(i, from, count, step) \
    _Pragma("unroll 1") for (i64 i = from; i < (count); i += step)
#define UNROLL _Pragma("unroll")
// With indices of a type U, which holds the count plus the threads of a grid.
#define EACH_INDEX(U, i, count) \
    _Pragma("unroll 1") for (U i = (U)first_item(); i < (count); i += (U)all_threads())
#define EACH(i, count) LOOP(i, first_item(), count, all_threads())
#define EACH_BLOCK(i, count) LOOP(i, blockIdx.x, count, gridDim.x)
#define EACH_THREAD(i, count) LOOP(i, threadIdx.x, count, BLOCK)

// --- index spaces of up to eight axes

struct Space { i64 size, rank, n[8]; };
struct Strides { i64 s[8]; };

FN void unravel(i64 i, const Space &space, i64 *at) {
    for (int axis = (int)space.rank - 1; axis >= 0; axis--) {
        at[axis] = i % space.n[axis];
        i /= space.n[axis];
    }
}
FN i64 offset(const i64 *at, const Space &space, const Strides &strides) {
    i64 sum = 0;
    for (int axis = 0; axis < (int)space.rank; axis++) sum += at[axis] * strides.s[axis];
    return sum;
}
FN i64 place(i64 i, const Space &space, const Strides &strides) {
    i64 at[8];
    unravel(i, space, at);
    return offset(at, space, strides);
}

// --- block reductions, in an order that depends only on the block size

struct Sum { template <class V> __device__ static V of(V a, V b) { return a + b; } };
struct Product { template <class V> __device__ static V of(V a, V b) { return a * b; } };
struct Largest { template <class V> __device__ static V of(V a, V b) { return max_(a, b); } };
struct Least { template <class V> __device__ static V of(V a, V b) { return min_(a, b); } };
struct All { template <class V> __device__ static V of(V a, V b) { return (V)(a != 0 && b != 0); } };
struct Any { template <class V> __device__ static V of(V a, V b) { return (V)(a != 0 || b != 0); } };

#define WARP 32
#define LANES (BLOCK < WARP ? BLOCK : WARP)

template <class How, class V> FN V over_warp(V value) {
    UNROLL for (u32 lane = LANES / 2; lane; lane /= 2) {
        value = (V)How::of(value, (V)__shfl_xor_sync(0xffffffffu, value, lane));
    }
    return value;
}

template <class How, class V> FN V over_block(V value) {
    SHARED(V, kept, [MOST_THREADS / WARP]);
    value = over_warp<How>(value);
    __syncthreads();
    if (threadIdx.x % WARP == 0) kept[threadIdx.x / WARP] = value;
    __syncthreads();
    V result = kept[0];
    for (u32 warp = 1; warp < BLOCK / WARP; warp++) result = (V)How::of(result, kept[warp]);
    return result;
}

FN void add_to(float *to, float value) { atomicAdd(to, value); }
FN void add_to(double *to, double value) { atomicAdd(to, value); }
FN void add_to(i32 *to, i32 value) { atomicAdd(to, value); }
FN void add_to(i64 *to, i64 value) { atomicAdd((u64 *)to, (u64)value); }
