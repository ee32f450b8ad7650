// CUDA features for host C++.  Blocks run one after the other; the threads of a block are fibers
// that switch at barriers, in alternating order, so that missing barriers change results.

#include <cmath>
#include <cstdlib>
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

// All threads of a block take part in each exchange.
template <class V> static V __shfl_xor_sync(unsigned, V value, unsigned lane) {
    static thread_local V slots[FIBERS];
    slots[threadIdx.x] = value;
    __syncthreads();
    V other = slots[threadIdx.x ^ lane];
    __syncthreads();
    return other;
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
