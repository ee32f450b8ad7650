// CUDA features for host C++.  Blocks run one after the other; the threads of a block are fibers
// that switch at barriers, in alternating order, so that missing barriers change results.

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static thread_local

struct Dim { unsigned x, y, z; };
static thread_local Dim threadIdx, blockIdx, blockDim, gridDim;

template <class T> static T atomicAdd(T *to, T value) {
    T before = *to;
    *to = before + value;
    return before;
}

static int atomicMax(int *to, int value) {
    int before = *to;
    if (value > before) *to = value;
    return before;
}

// Exact models of device instructions.
#define MODELLED
template <class To, class From> static To same_bits(From from) {
    To to;
    static_assert(sizeof to == sizeof from, "types of one size");
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline float half_to_float(unsigned short bits) {  // cvt.f32.f16
    unsigned sign = (unsigned)(bits & 0x8000) << 16, rest = bits & 0x7fff;
    if (rest > 0x7c00) return same_bits<float>(0x7fffffffu);
    if (rest == 0x7c00) return same_bits<float>(sign | 0x7f800000u);
    if (rest >= 0x400) return same_bits<float>(sign | ((rest << 13) + 0x38000000u));
    float tiny = (float)rest * 5.9604644775390625e-08f;  // 2**-24
    return sign ? -tiny : tiny;
}
static inline unsigned short float_to_half(float wide) {  // cvt.rn.f16.f32
    unsigned bits = same_bits<unsigned>(wide), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000u) return 0x7fff;
    if (rest >= 0x47800000u) return sign | 0x7c00;
    if (rest < 0x38800000u) {  // subnormal: the addition rounds to multiples of 2**-24
        float shifted = same_bits<float>(rest) + 0.5f;
        return sign | (same_bits<unsigned>(shifted) - 0x3f000000u);
    }
    rest += 0xfff + (rest >> 13 & 1);
    return sign | (rest - 0x38000000u) >> 13;
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

static const int STACK = 1 << 16, FIBERS = 256;
static thread_local ucontext_t scheduler, fibers[FIBERS];
static thread_local bool over[FIBERS];
static thread_local struct Stacks {
    char *at = 0;
    ~Stacks() { free(at); }
} stacks;
static thread_local void (*body)(void **);
static thread_local void **arguments;

static inline void __syncthreads() {
    unsigned own = threadIdx.x;
    swapcontext(&fibers[own], &scheduler);
    threadIdx.x = own;
}

static void fiber() {
    unsigned own = threadIdx.x;
    body(arguments);
    over[own] = true;
    swapcontext(&fibers[own], &scheduler);
}

static void start(unsigned thread) {
    getcontext(&fibers[thread]);
    fibers[thread].uc_stack.ss_sp = stacks.at + (long)thread * STACK;
    fibers[thread].uc_stack.ss_size = STACK;
    fibers[thread].uc_link = 0;
    makecontext(&fibers[thread], fiber, 0);
    over[thread] = false;
}

// 1 if some threads of a block reached a barrier that others did not reach.
static int run_block() {
    unsigned count = blockDim.x, done = 0;
    for (unsigned i = 0; i < count; i++) start(i);
    for (bool backwards = false; !done; backwards = !backwards) {
        for (unsigned i = 0; i < count; i++) {
            threadIdx.x = backwards ? count - 1 - i : i;
            unsigned thread = threadIdx.x;
            swapcontext(&scheduler, &fibers[thread]);
            done += over[thread];
        }
    }
    return done != count;
}

static int run_grid(void (*run)(void **), void **given, unsigned blocks, unsigned threads,
                    int barriers) {
    if (!stacks.at) stacks.at = (char *)malloc((long)STACK * FIBERS);
    body = run;
    arguments = given;
    gridDim.x = blocks;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        if (barriers) {
            if (run_block()) return 1;
            continue;
        }
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) run(given);
    }
    return 0;
}
