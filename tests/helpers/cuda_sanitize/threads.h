// CUDA for sanitizers: a thread of the host for each CUDA thread, all blocks at the same time.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define MOST_BLOCKS 16

// Shared memory: one copy per block.
#define SHARED(type, name, size) \
    typedef type name##_type size; \
    static name##_type name##_of_blocks[MOST_BLOCKS]; \
    name##_type &name = name##_of_blocks[blockIdx.x]

struct Dim { unsigned x, y, z; };
static thread_local Dim threadIdx, blockIdx;
static Dim blockDim, gridDim;

// Atomic operations order nothing else, as on a GPU.
template <class T> static T atomicAdd(T *to, T value) {
    T before, after;
    __atomic_load(to, &before, __ATOMIC_RELAXED);
    do after = before + value;
    while (!__atomic_compare_exchange(to, &before, &after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return before;
}
static int atomicMax(int *to, int value) {
    int before = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (before < value && !__atomic_compare_exchange_n(to, &before, value, true,
                                                         __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return before;
}

// A barrier that reports threads which end while others wait.  A mutex would also order threads
// that are in different rounds, and so hide missing barriers: rounds are ordered one by one.
#define ROUNDS 4096
#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_acquire(void *);
extern "C" void __tsan_release(void *);
#else
static void __tsan_acquire(void *) {}
static void __tsan_release(void *) {}
#endif
struct Barrier {
    unsigned long state = 0;  // threads that wait, and, in the upper half, threads that have ended
    unsigned round = 0;
    char tokens[ROUNDS];

    bool all(unsigned long now, unsigned members) {
        unsigned waiting = (unsigned)now, over = (unsigned)(now >> 32);
        if (!waiting || waiting + over < members) return false;
        if (over) {
            fprintf(stderr, "a barrier that some threads of a block did not reach\n");
            _Exit(3);
        }
        return true;
    }
    void wait(unsigned members) {
        unsigned own = __atomic_load_n(&round, __ATOMIC_RELAXED);
        __tsan_release(tokens + own % ROUNDS);
        if (all(__atomic_add_fetch(&state, 1, __ATOMIC_RELAXED), members)) {
            __atomic_store_n(&state, 0, __ATOMIC_RELAXED);
            __atomic_store_n(&round, own + 1, __ATOMIC_RELAXED);
            syscall(SYS_futex, &round, FUTEX_WAKE, 1 << 30, 0, 0, 0);
        }
        while (__atomic_load_n(&round, __ATOMIC_RELAXED) == own) {
            syscall(SYS_futex, &round, FUTEX_WAIT, own, 0, 0, 0);
        }
        __tsan_acquire(tokens + own % ROUNDS);
    }
    void end() { all(__atomic_add_fetch(&state, 1ul << 32, __ATOMIC_RELAXED), blockDim.x); }
};
static Barrier barriers[MOST_BLOCKS], warps[MOST_BLOCKS][32];
static void __syncthreads() { barriers[blockIdx.x].wait(blockDim.x); }

// All threads of a warp take part in each exchange, which orders no other threads.
template <class V> static V __shfl_xor_sync(unsigned, V value, unsigned lane) {
    SHARED(V, slots, [1024]);
    unsigned members = blockDim.x < 32 ? blockDim.x : 32;
    Barrier &warp = warps[blockIdx.x][threadIdx.x / 32];
    slots[threadIdx.x] = value;
    warp.wait(members);
    V other = slots[threadIdx.x ^ lane];
    warp.wait(members);
    return other;
}

struct Start { unsigned block, thread; };
static void (*body)(void **);
static void **arguments;

static void *run_thread(void *given) {
    Start *start = (Start *)given;
    blockIdx.x = start->block;
    threadIdx.x = start->thread;
    body(arguments);
    barriers[blockIdx.x].end();
    return 0;
}

static void run_grid(void (*run)(void **), void **given, unsigned blocks, unsigned threads) {
    body = run;
    arguments = given;
    gridDim.x = blocks;
    blockDim.x = threads;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 18);
    unsigned count = blocks * threads;
    pthread_t *handles = new pthread_t[count];
    Start *starts = new Start[count];
    for (unsigned i = 0; i < count; i++) {
        starts[i] = {i / threads, i % threads};
        if (pthread_create(handles + i, &small, run_thread, starts + i)) {
            perror("pthread_create");
            _Exit(4);
        }
    }
    for (unsigned i = 0; i < count; i++) pthread_join(handles[i], 0);
    delete[] handles;
    delete[] starts;
}
