// Concurrent single-threaded primitives: each thread of a parallel region executes one or more of
// them. A primitive inside a parallel region uses the calling thread only.

typedef int (*execute)(void *primitive, void *stream, int count, void *arguments);

typedef struct { void *primitive, *arguments; long count; } Part;

// Execute all parts. Return 0, or a nonzero status if a part failed.
int run_parts(void *run, void *stream, const Part *parts, long count) {
    int status = 0;
#pragma omp parallel for schedule(static) reduction(| : status)
    for (long p = 0; p < count; p++) {
        const Part *one = parts + p;
        status |= ((execute)run)(one->primitive, stream, (int)one->count, one->arguments);
    }
    return status;
}

// Execute all parts of a split-K product and add the partial sums in order: the first part writes
// to y, the other parts write to consecutive arrays in `more`.
int run_split_k(void *run, void *stream, const Part *parts, long count, float *y,
             const float *more, const float *bias, long rows, long columns, int relu) {
    int status = 0;
#pragma omp parallel
    {
#pragma omp for schedule(static) reduction(| : status)
        for (long p = 0; p < count; p++) {
            const Part *one = parts + p;
            status |= ((execute)run)(one->primitive, stream, (int)one->count, one->arguments);
        }
#pragma omp for schedule(static)
        for (long i = 0; i < rows; i++) {
            float *to = y + i * columns;
            for (long p = 0; p < count - 1; p++) {
                const float *from = more + (p * rows + i) * columns;
#pragma omp simd
                for (long j = 0; j < columns; j++) to[j] += from[j];
            }
            if (bias) {
#pragma omp simd
                for (long j = 0; j < columns; j++) to[j] += bias[j];
            }
            if (relu) {
#pragma omp simd
                for (long j = 0; j < columns; j++) to[j] = to[j] < 0.0f ? 0.0f : to[j];
            }
        }
    }
    return status;
}
