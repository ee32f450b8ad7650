// Calls of C functions with fixed arguments, which one call from Python runs in order. For each
// function of the declarations, thunks.py writes a function call_NAME that unpacks the arguments.

typedef union { void *p; long l; uint64_t u; double d; float f; } Slot;

typedef struct { long (*run)(const Slot *); const Slot *arguments; } Call;

// Run calls until one returns a nonzero status, and return it; `at` receives the call's position.
long run_calls(const Call *calls, long count, long *at) {
    for (*at = 0; *at < count; ++*at) {
        long status = calls[*at].run(calls[*at].arguments);
        if (status) return status;
    }
    return 0;
}

// A fixed array, and a sequence whose elements are copied to or from it.
typedef struct { void *array; char *sequence; long bytes; } Element;

// Run a loop. Before each position, its elements are copied from the first `ins` sequences. Two calls
// alternate, of which the second runs last; after each, its own `outs` results are copied.
long run_positions(const long *order, const Element *elements, long ins, long outs,
                   const Call *two, int64_t *step, const int64_t *counter) {
    long position = order[0], length = order[1], stride = order[2];
    int64_t start = counter ? *counter * length : 0;
    for (long left = length; left; left--, position += stride) {
        *step = start + position;
        for (long k = 0; k < ins; k++)
            memcpy(elements[k].array, elements[k].sequence + position * elements[k].bytes,
                   elements[k].bytes);
        const Call *one = two + left % 2;
        long status = one->run(one->arguments);
        if (status) return status;
        const Element *results = elements + ins + (left % 2) * outs;
        for (long k = 0; k < outs; k++)
            memcpy(results[k].sequence + position * results[k].bytes, results[k].array,
                   results[k].bytes);
    }
    return 0;
}

// Run a call with another size of the thread pool.
long run_limited(const Call *one, int count) {
    int before = omp_get_max_threads();
    omp_set_num_threads(count);
    long status = one->run(one->arguments);
    omp_set_num_threads(before);
    return status;
}

// An array of a loop over rows, which is bfloat16 or float: its row length, and its argument's place.
typedef struct { void *array; long columns; int half, result, slot; } Rows;

enum { CONVERTED = 1 << 13, MOST_SLOTS = 16 };

// Run a loop over `rows` float rows on arrays of which some are bfloat16, in blocks of rows whose
// float copies stay in the cache. Its argument number `counted` is the number of rows.
long run_rows(const Call *one, const Rows *arrays, long count, long slots, long counted, long rows,
              long block) {
    long status = 0, blocks = (rows + block - 1) / block, work = rows * arrays->columns;
#pragma omp parallel for if (work > PARALLEL) schedule(static) reduction(| : status)
    for (long b = 0; b < blocks; b++) {
        float copies[CONVERTED], *copy[MOST_SLOTS], *next = copies;
        Slot given[MOST_SLOTS];
        memcpy(given, one->arguments, slots * sizeof(Slot));
        long first = b * block, n = rows - first < block ? rows - first : block;
        given[counted].l = n;
        for (long k = 0; k < count; k++) {
            const Rows *a = arrays + k;
            long at = first * a->columns, size = n * a->columns;
            copy[k] = a->half ? next : (float *)a->array + at;
            next += a->half ? size : 0;
            given[a->slot].p = copy[k];
            if (!a->half || a->result) continue;
#pragma omp simd
            for (long i = 0; i < size; i++) copy[k][i] = bf16_to_f32(((bfloat16 *)a->array)[at + i]);
        }
        status |= one->run(given);
        for (long k = 0; k < count; k++) {
            const Rows *a = arrays + k;
            if (!a->half || !a->result) continue;
            bfloat16 *to = (bfloat16 *)a->array + first * a->columns;
#pragma omp simd
            for (long i = 0; i < n * a->columns; i++) to[i] = f32_to_bf16(copy[k][i]);
        }
    }
    return status;
}

// Execute a primitive; `wait` is null if the library is synchronous.
int run_primitive(void *run, void *primitive, void *stream, int count, void *arguments,
                  void *wait) {
    int status = ((execute)run)(primitive, stream, count, arguments);
    return status || !wait ? status : ((int (*)(void *))wait)(stream);
}

// Run a loop that expressions.py writes.
void run_loop(void *run, const long *n, const long *s, const float *c, void **in, void **out) {
    ((void (*)(const long *, const long *, const float *, void **, void **))run)(n, s, c, in, out);
}

// An array, null if its magnitudes are not needed, and a bound of them, null if no op computes it.
typedef struct { const float *known; const void *x; long n; int half; } Bounded;

static double measured(const Bounded *b) {
    if (!b->x) return INFINITY;
    return b->half ? largest_bf16(b->x, b->n) : largest(b->x, b->n);
}

// Run the first of two calls if all numbers are so small that a sum of products of two of them is
// finite, else the second one.
long run_moderate(const Bounded *arrays, long count, const Call *two) {
    int moderate = 1;
    for (long k = 0; k < count && moderate; k++) moderate = measured(arrays + k) < 0x1p40;
    const Call *one = two + !moderate;
    return one->run(one->arguments);
}

#define FINITE 0x1p120  // no partial sum overflows; rounding to bfloat16 at most doubles the bound

// Store a bound of a result's magnitudes, and return whether it shows that the result is finite.
// The bound is that of the first array times norms[0], plus norms[1], plus those of other arrays.
// The arrays are read only if a bound is not known, or too large.
static int finite_bound(const Bounded *arrays, long count, const float *norms, float *result,
                        double most) {
    double bound = INFINITY;
    for (int again = 0; again < 2 && !(bound < FINITE); again++)
        for (long k = 0; k < count; k++) {
            const float *known = again ? 0 : arrays[k].known;
            double one = known ? *known : measured(arrays + k);
            bound = k ? bound + one : one * norms[0] + norms[1];
        }
    int finite = bound < FINITE;
    *result = finite ? (float)(bound < most ? bound : most) : INFINITY;
    return finite;
}

// Run the first of two calls if a bound of the result shows that it is finite, else the second one.
long run_bounded(const Bounded *arrays, long count, const float *norms, float *result, double most,
                 const Call *two) {
    const Call *one = two + !finite_bound(arrays, count, norms, result, most);
    return one->run(one->arguments);
}
