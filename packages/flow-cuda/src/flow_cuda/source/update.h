// What the updates of codegen/updates.py call, and scalars that change per step.

struct Terms { double scale, l1, l2, weight_decay; };

template <class V> FN V square_(V x) { return x * x; }
template <class V> FN V positive_(V x) { return max_(x, (V)0); }
FN double is_zero(double x) { return x == 0; }
FN double is_positive(double x) { return x > 0; }
FN double ratio(double x, double y) { return y == 0 ? 0 : x / y; }
FN double where(double test, double x, double y) { return test != 0 ? x : y; }

#define SCALE (factor ? terms.scale * (double)load(factor) : terms.scale)
#define UNLESS_SKIPPED if (skip && *skip) return;

// The threads that share a variable: all, or some blocks of a launch that updates many.
struct Part { i64 first, step; };
FN Part whole() {
    Part part = {first_item(), all_threads()};
    return part;
}
FN Part whole_blocks() {
    Part part = {(i64)blockIdx.x, (i64)gridDim.x};
    return part;
}
#define EACH_OF(part, i, count) for (i64 i = part.first; i < (count); i += part.step)

// Row ``t`` of a table has the first block of a variable, then its arguments of 8 bytes each.
FN const u64 *row_of_block(const u64 *table, i64 rows, i64 words) {
    i64 low = 0, high = rows - 1;
    while (low < high) {
        i64 middle = (low + high + 1) / 2;
        if ((i64)table[middle * words] <= (i64)blockIdx.x) low = middle; else high = middle - 1;
    }
    return table + low * words;
}
FN Part part_of_block(const u64 *row, i64 words, i64 rows, const u64 *table) {
    i64 own = (row - table) / words, first = (i64)row[0];
    i64 stop = own + 1 < rows ? (i64)row[words] : (i64)gridDim.x;
    Part part = {(i64)blockIdx.x - first, stop - first};
    return part;
}
FN Part threads_of(Part blocks) {
    Part part = {blocks.first * BLOCK + threadIdx.x, blocks.step * BLOCK};
    return part;
}

// The root of the sum of one of two sums of squares of each part.
FN double norm_of(const double *sums, i64 parts, int which) {
    double sum = 0;
    for (i64 i = 0; i < parts; i++) sum += sums[2 * i + which];
    return sqrt(sum);
}

// --- per-step scalars

FN void advance(i64 *step) {
    if (first_item() == 0) *step += 1;
}

template <class T>
FN void correct_rate(const T *rate, const i64 *step, T *out, double beta1, double beta2) {
    if (first_item()) return;
    double now = *step < 0 ? 1 : (double)*step + 1;  // steps count from 1
    store(out, (double)load(rate) * sqrt(1 - pow(beta2, now)) / (1 - pow(beta1, now)));
}

FN void adapt_scale(const i64 *bad, float *scale, i64 *good_steps, i64 period, double multiplier) {
    if (first_item()) return;
    if (*bad) {
        *good_steps = 0;
        double less = (double)*scale / multiplier;
        *scale = (float)(less < 1 ? 1 : less);
        return;
    }
    i64 count = *good_steps + 1;
    if (count >= period) {
        double more = (double)*scale * multiplier, most = 3.4028234663852886e38;
        *scale = (float)(more > most ? most : more);
        count = 0;
    }
    *good_steps = count;
}

template <class T> FN void clip_factor(const T *square_sum, T *out, double most) {
    typedef typename In<T>::type V;
    if (first_item()) return;
    store(out, min_((V)most / sqrt_(load(square_sum)), (V)1));
}
