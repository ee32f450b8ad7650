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

void sparse_adam(float *w, const float *x, const void *index, float *m, float *v,
                 const float *rate, const float *factor, int32_t *slot, float *sums, long count,
                 long rows, long columns, int width, long first, int parts,
                 const double *numbers) {
    float c[MOST_COEFFICIENTS], *tables[] = {w, m, v};
    adam_update_setup(numbers, *rate, scaled(numbers[0], factor), c);
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
                adam_update_row(tables, dense, c, start * columns, n);
                continue;
            }
            for (long k = start; k < stop; k++) {
                long at = k * columns;
                if (slot[k] >= 0)
                    adam_update_row(tables, sums + slot[k] * columns, c, at, columns);
                else if (!all_zero(m + at, columns) || !all_zero(v + at, columns))
                    adam_update_row(tables, NULL, c, at, columns);
            }
        }
    }
}

// --- updates of the looked-up rows only

enum { CHUNK = 64 };

typedef void Row(float *const *x, const float *g, const float *c, long at, long n);

// The tables of the weights and their states, and the coefficients of a rule.
typedef struct {
    float *x[MOST_TABLES], c[MOST_COEFFICIENTS];
} Rule;

// Update one row from the list of its lookups, which starts at i and is linked in order by `next`.
// The gradient of the row is the sum over its lookups.
static inline __attribute__((always_inline)) void update_row(const Rule *u, Row *row, long k,
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
        row(u->x, r, u->c, k * columns + start, n);
    }
}

// Each part owns the indices of a range of hashes; its hash table maps an index to its first
// lookup. Lookups are inserted from last to first, so that the links point forwards.
static inline __attribute__((always_inline)) void rows_of_part(
    const Rule *u, Row *row, int tables, const float *x, const void *index, int32_t *next,
    int32_t *heads, long capacity, long count, long rows, long columns, int width, long first, int part,
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
        for (int t = 0; next[i] < 0 && t < tables; t++)
            __builtin_prefetch(u->x[t] + k * columns, 1);
    }
    for (long place = 0; place < capacity; place++)
        if (heads[place] >= 0) {
            long k = index_at(index, heads[place], width) - first;
            update_row(u, row, k, x, next, heads[place], columns);
        }
}

// One function per rule, because a parallel region cannot inline a function that it gets as a value.
#define UPDATE_ROWS(number, rule, tables) \
    static void rule##_rows(void **x, const float *g, const void *index, double rate, \
                            int32_t *scratch, long capacity, long count, long rows, long columns, \
                            int width, long first, int parts, const double *numbers) { \
        Rule u; \
        memcpy(u.x, x, tables * sizeof(void *)); \
        rule##_setup(numbers, rate, numbers[0], u.c); \
        _Pragma("omp parallel for if (count * columns > PARALLEL / 8) schedule(static)") \
        for (int p = 0; p < parts; p++) \
            rows_of_part(&u, rule##_row, tables, g, index, scratch, scratch + count + p * capacity, \
                         capacity, count, rows, columns, width, first, p, parts); \
    }
ROW_UPDATES(UPDATE_ROWS)

void indexed_update(int kind, void **x, const float *g, const void *index, const float *rate,
                    int32_t *scratch, long capacity, long count, long rows, long columns,
                    int width, long first, int parts, const double *numbers) {
#define RUN(number, rule, tables) \
    case number: \
        rule##_rows(x, g, index, *rate, scratch, capacity, count, rows, columns, width, first, \
                    parts, numbers); \
        break;
    switch (kind) { ROW_UPDATES(RUN) }
#undef RUN
}
