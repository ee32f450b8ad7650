// Loops over rows of embedding tables; source.c precedes this file. Indices have 4 or 8 bytes; an
// index out of range reads zeros and writes nothing.

static inline long index_at(const void *index, long i, int width) {
    return width == 8 ? (long)((const int64_t *)index)[i] : ((const int32_t *)index)[i];
}

void gather(const float *table, const void *index, float *y, long count, long rows, long columns,
            int width, long first) {
#pragma omp parallel for if (count * columns > PARALLEL) schedule(static)
    for (long i = 0; i < count; i++) {
        long k = index_at(index, i, width) - first;
        if (k >= 0 && k < rows)
            memcpy(y + i * columns, table + k * columns, columns * sizeof(float));
        else
            memset(y + i * columns, 0, columns * sizeof(float));
    }
}

// Each part owns a range of rows, so that no two threads write the same row and the order of the
// additions is fixed.
static void add_rows(const float *x, const void *index, float *y, long count, long low, long high,
                     long columns, int width, long first, float scale) {
    for (long i = 0; i < count; i++) {
        long k = index_at(index, i, width) - first;
        if (k < low || k >= high) continue;
        float *to = y + k * columns;
        const float *from = x + i * columns;
#pragma omp simd
        for (long j = 0; j < columns; j++) to[j] += scale * from[j];
    }
}

void segment_sum(const float *x, const void *index, float *y, long count, long rows, long columns,
                 int width, long first, int parts) {
#pragma omp parallel for if (rows * columns > PARALLEL) schedule(static)
    for (int p = 0; p < parts; p++) {
        long low = rows * p / parts, high = rows * (p + 1) / parts;
        memset(y + low * columns, 0, (high - low) * columns * sizeof(float));
        add_rows(x, index, y, count, low, high, columns, width, first, 1.0f);
    }
}

void add_to_rows(float *y, const float *x, const void *index, long count, long rows, long columns,
                 int width, long first, int parts) {
#pragma omp parallel for if (count * columns > PARALLEL) schedule(static)
    for (int p = 0; p < parts; p++)
        add_rows(x, index, y, count, rows * p / parts, rows * (p + 1) / parts, columns, width,
                 first, 1.0f);
}

void sparse_sgd(float *w, const float *x, const void *index, const float *rate, const float *factor,
                long count, long rows, long columns, int width, long first, int parts,
                double scale) {
    float step = (float)(-(double)*rate * scaled(scale, factor));
#pragma omp parallel for if (count * columns > PARALLEL) schedule(static)
    for (int p = 0; p < parts; p++)
        add_rows(x, index, w, count, rows * p / parts, rows * (p + 1) / parts, columns, width,
                 first, step);
}

// Adam on a table with gradients for few rows, equivalent to dense Adam: rows that have no gradient
// and zero moments do not change, so they are only read.
enum { BLOCK = 256, SHORT = 8 };

static int all_zero(const float *x, long n) {
    int found = 0;
#pragma omp simd reduction(| : found)
    for (long i = 0; i < n; i++) found |= x[i] != 0.0f;
    return !found;
}

static int no_lookups(const int32_t *slot, long n) {
    int found = 0;
#pragma omp simd reduction(| : found)
    for (long i = 0; i < n; i++) found |= slot[i] >= 0;
    return !found;
}

// Update one row; a scale of 0 means that the row has no gradient.
static inline void adam_row(float *w, const float *g, float *m, float *v, long n, float lr, float s,
                            float keep1, float keep2, float rest1, float rest2, float e) {
#pragma omp simd
    for (long j = 0; j < n; j++) {
        float r = s == 0.0f ? 0.0f : s * g[j];
        float one = keep1 * m[j] + rest1 * r, two = keep2 * v[j] + rest2 * r * r;
        m[j] = one;
        v[j] = two;
        w[j] -= lr * one / (sqrtf(two) + e);
    }
}

void sparse_adam(float *w, const float *x, const void *index, float *m, float *v,
                 const float *rate, const float *factor, int32_t *slot, float *sums, long count,
                 long rows, long columns, int width, long first, int parts, double scale,
                 double beta1, double beta2, double epsilon) {
    float lr = *rate, s = (float)scaled(scale, factor), e = (float)epsilon;
    float keep1 = (float)beta1, keep2 = (float)beta2;
    float rest1 = (float)(1.0 - beta1), rest2 = (float)(1.0 - beta2);
    long block = columns < BLOCK ? BLOCK / columns : 1;
#pragma omp parallel for if (rows * columns > PARALLEL) schedule(dynamic)
    for (int p = 0; p < parts; p++) {
        long low = rows * p / parts, high = rows * (p + 1) / parts;
        memset(slot + low, 0xff, (high - low) * sizeof(int32_t));
        for (long i = 0; i < count; i++) {
            long k = index_at(index, i, width) - first;
            if (k < low || k >= high) continue;
            const float *from = x + i * columns;
            if (slot[k] < 0) {
                slot[k] = (int32_t)i;
                memcpy(sums + i * columns, from, columns * sizeof(float));
                continue;
            }
            float *to = sums + slot[k] * columns;
#pragma omp simd
            for (long j = 0; j < columns; j++) to[j] += from[j];
        }
        for (long start = low; start < high; start += block) {
            long stop = start + block < high ? start + block : high, n = (stop - start) * columns;
            if (no_lookups(slot + start, stop - start) && all_zero(m + start * columns, n)
                && all_zero(v + start * columns, n))
                continue;
            if (columns < SHORT) {
                float dense[BLOCK];
                memset(dense, 0, n * sizeof(float));
                for (long k = start; k < stop; k++)
                    if (slot[k] >= 0)
                        memcpy(dense + (k - start) * columns, sums + slot[k] * columns,
                               columns * sizeof(float));
                long at = start * columns;
                adam_row(w + at, dense, m + at, v + at, n, lr, s, keep1, keep2, rest1, rest2, e);
                continue;
            }
            for (long k = start; k < stop; k++) {
                long at = k * columns;
                if (slot[k] >= 0)
                    adam_row(w + at, sums + slot[k] * columns, m + at, v + at, columns, lr, s, keep1,
                             keep2, rest1, rest2, e);
                else if (!all_zero(m + at, columns) || !all_zero(v + at, columns))
                    adam_row(w + at, w + at, m + at, v + at, columns, lr, 0.0f, keep1, keep2, rest1,
                             rest2, e);
            }
        }
    }
}

// --- updates of the looked-up rows only

enum { SGD, MOMENTUM, ADAM, CHUNK = 64 };

typedef struct {
    float *w, *m, *v;
    float rate, scale, decay, keep1, keep2, rest1, rest2, epsilon;
} Rule;

static inline __attribute__((always_inline)) void row_part(const Rule *u, int kind, long at,
                                                           const float *r, long n) {
    float *w = u->w + at, *m = u->m + at, *v = u->v + at;
    float rate = u->rate, scale = u->scale, shrink = u->rate * u->decay;
    float keep1 = u->keep1, keep2 = u->keep2, rest1 = u->rest1, rest2 = u->rest2, e = u->epsilon;
#pragma omp simd
    for (long j = 0; j < n; j++) {
        float g = scale * r[j], step;
        if (kind == SGD) {
            step = -rate * g;
        } else if (kind == MOMENTUM) {
            step = m[j] = keep1 * m[j] - rate * g;
        } else {
            float first = keep1 * m[j] + rest1 * g, second = keep2 * v[j] + rest2 * g * g;
            m[j] = first;
            v[j] = second;
            step = -rate * first / (sqrtf(second) + e);
        }
        w[j] += step - shrink * w[j];
    }
}

// Update one row from the list of its lookups, which starts at i and is linked in order by `next`.
// The gradient of the row is the sum over its lookups.
static inline __attribute__((always_inline)) void update_row(const Rule *u, int kind, long k,
                                                             const float *x, const int32_t *next,
                                                             long i, long columns) {
    for (long start = 0; start < columns; start += CHUNK) {
        long n = columns - start < CHUNK ? columns - start : CHUNK;
        const float *r = x + i * columns + start;
        float sum[CHUNK];
        if (next[i] >= 0) {
            memcpy(sum, r, n * sizeof(float));
            for (long o = next[i]; o >= 0; o = next[o]) {
                const float *more = x + o * columns + start;
#pragma omp simd
                for (long j = 0; j < n; j++) sum[j] += more[j];
            }
            r = sum;
        }
        row_part(u, kind, k * columns + start, r, n);
    }
}

static inline void fetch_row(const Rule *u, int kind, long at) {
    __builtin_prefetch(u->w + at, 1);
    if (kind != SGD) __builtin_prefetch(u->m + at, 1);
    if (kind == ADAM) __builtin_prefetch(u->v + at, 1);
}

// Each part owns the indices of a range of hashes; its hash table maps an index to its first
// lookup. Lookups are inserted from last to first, so that the links point forwards.
static inline __attribute__((always_inline)) void rows_of_part(
    const Rule *u, int kind, const float *x, const void *index, int32_t *next, int32_t *heads,
    long capacity, long count, long rows, long columns, int width, long first, int part,
    int parts) {
    memset(heads, 0xff, capacity * sizeof(int32_t));
    for (long i = count - 1; i >= 0; i--) {
        long k = index_at(index, i, width) - first;
        if (k < 0 || k >= rows) continue;
        uint32_t hash = (uint32_t)k * 2654435761u;
        if ((int)(((uint64_t)hash * parts) >> 32) != part) continue;
        long place = (hash >> 4) & (capacity - 1);
        while (heads[place] >= 0 && index_at(index, heads[place], width) - first != k)
            place = (place + 1) & (capacity - 1);
        next[i] = heads[place];
        heads[place] = (int32_t)i;
        if (next[i] < 0) fetch_row(u, kind, k * columns);
    }
    for (long place = 0; place < capacity; place++)
        if (heads[place] >= 0) {
            long k = index_at(index, heads[place], width) - first;
            update_row(u, kind, k, x, next, heads[place], columns);
        }
}

static inline __attribute__((always_inline)) void update_rows(
    const Rule *u, int kind, const float *x, const void *index, int32_t *scratch, long capacity,
    long count, long rows, long columns, int width, long first, int parts) {
#pragma omp parallel for if (count * columns > PARALLEL / 8) schedule(static)
    for (int p = 0; p < parts; p++)
        rows_of_part(u, kind, x, index, scratch, scratch + count + p * capacity, capacity, count,
                     rows, columns, width, first, p, parts);
}

void indexed_update(int kind, float *w, float *m, float *v, const float *x, const void *index,
                    const float *rate, int32_t *scratch, long capacity, long count, long rows,
                    long columns, int width, long first, int parts, double scale, double decay,
                    double beta1, double beta2, double epsilon) {
    Rule u = {w, m, v, *rate, (float)scale, (float)decay, (float)beta1, (float)beta2,
              (float)(1.0 - beta1), (float)(1.0 - beta2), (float)epsilon};
#define RUN(kind) update_rows(&u, kind, x, index, scratch, capacity, count, rows, columns, width, \
                              first, parts)
    switch (kind) {
        case SGD: RUN(SGD); break;
        case MOMENTUM: RUN(MOMENTUM); break;
        default: RUN(ADAM);
    }
#undef RUN
}
