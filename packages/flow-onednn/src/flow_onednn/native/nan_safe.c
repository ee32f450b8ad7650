// NaN-propagating loops that replace primitives which drop NaN (max pooling and softmax), and the
// largest magnitude, which shows whether a product can contain NaN; source.c precedes this file.

// Return the largest magnitude; NaN if any number is NaN, because the bits of NaN exceed others.
float largest(const float *x, long n) {
    uint32_t most = 0;
#pragma omp parallel for simd if (parallel: n > PARALLEL) schedule(static) reduction(max : most)
    for (long i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    float result;
    memcpy(&result, &most, sizeof result);
    return result;
}

float largest_bf16(const bfloat16 *x, long n) {
    bfloat16 most = 0;
#pragma omp parallel for simd if (parallel: n > PARALLEL) schedule(static) reduction(max : most)
    for (long i = 0; i < n; i++) most = (x[i] & 0x7fff) > most ? x[i] & 0x7fff : most;
    return bf16_to_f32(most);
}

INLINED uint32_t largest_row(const void *x, long rows, long columns, int half) {
    uint32_t most = 0;
#pragma omp parallel for if (rows * columns > PARALLEL) schedule(static) reduction(max : most)
    for (long i = 0; i < rows; i++) {
        double sum = 0.0;
#pragma omp simd reduction(+ : sum)
        for (long j = 0; j < columns; j++) sum += fabsf(load_(x, i * columns + j, half));
        float near = (float)sum;
        uint32_t bits;
        memcpy(&bits, &near, sizeof bits);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    return most;
}

// Store the largest sum of the magnitudes of a row, and the largest magnitude of the bias, NaN if a
// number is NaN.
void filter_norms(const void *x, const void *bias, float *norms, long rows, long columns, int half) {
    uint32_t most = half ? largest_row(x, rows, columns, 1) : largest_row(x, rows, columns, 0);
    memcpy(norms, &most, sizeof most);
    norms[1] = !bias ? 0.0f : half ? largest_bf16(bias, rows) : largest(bias, rows);
}

void relu_inplace(float *x, long n) { EACH(n, x[i] = x[i] < 0.0f ? 0.0f : x[i];) }

void relu_inplace_bf16(bfloat16 *x, long n) {
    EACH(n, x[i] = x[i] >= 0x8000 && x[i] <= 0xff80 ? 0 : x[i];)
}

// NaN stays NaN; for equal numbers, such as zeros of both signs, the limit is the result.
static inline float clip_(float x, float low, float high) {
    x = x <= low ? low : x;
    return x >= high ? high : x;
}

void clip_inplace(float *x, long n, float low, float high) { EACH(n, x[i] = clip_(x[i], low, high);) }

void clip_inplace_bf16(bfloat16 *x, long n, float low, float high) {
    EACH(n, x[i] = f32_to_bf16(clip_(bf16_to_f32(x[i]), low, high));)
}

// Recompute y = max(0, normalized x) for channels with nonfinite statistics: the library's relu
// returns 0 for NaN.
#define NORM_RELU_NONFINITE(name, type, wide, narrow) \
    void name(const type *x, type *y, const float *mean, const float *inverse, \
              const float *gamma, const float *beta, long rows, long columns) { \
        for (long j = 0; j < columns; j++) { \
            float slope = inverse[j] * gamma[j]; \
            if (isfinite(mean[j]) && isfinite(slope) && isfinite(beta[j])) continue; \
            for (long i = j; i < rows * columns; i += columns) { \
                float v = (wide(x[i]) - mean[j]) * slope + beta[j]; \
                y[i] = narrow(v < 0.0f ? 0.0f : v); \
            } \
        } \
    }
NORM_RELU_NONFINITE(norm_relu_nonfinite, float, , )
NORM_RELU_NONFINITE(norm_relu_nonfinite_bf16, bfloat16, bf16_to_f32, f32_to_bf16)

// --- max pooling. NaN is greater than all numbers; among equal elements, and among NaN, the first
// one is selected. sizes: images, height, width, channels; then, for each of the two axes, the
// output size, the kernel size, the strides and the padding before.

typedef struct {
    long n, h, w, c, oh, ow, kh, kw, sh, sw, top, left;
} Pool;

static inline int above(float v, float best) { return !(v <= best) & (best == best); }

typedef struct { long low, high; } Range;

// The taps of a window that are inside the input.
static inline Range inside(long start, long size, long taps) {
    Range r = {start < 0 ? -start : 0, start + taps > size ? size - start : taps};
    return r;
}

enum { CHANNELS = 32 };

typedef uint8_t Places __attribute__((vector_size(LANES), aligned(1)));

// Reduce one window from the offset `at` for a number of vectors of channels.
INLINED void pool_vectors(const Pool *p, const float *x, long at, Range rows, Range taps,
                          const int vectors, float *y, uint8_t *place) {
    Vector best[CHANNELS / LANES];
    Mask index[CHANNELS / LANES];
    const float *first = x + at + (rows.low * p->w + taps.low) * p->c;
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
        best[v] = *(const Vector *)(first + v * LANES);
        index[v] = (Mask){0} + (int32_t)(rows.low * p->kw + taps.low);
    }
    long b = taps.low + 1;
    for (long a = rows.low; a < rows.high; a++, b = taps.low)
        for (; b < taps.high; b++) {
            const float *from = x + at + (a * p->w + b) * p->c;
            int32_t tap = (int32_t)(a * p->kw + b);
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
                Vector next = *(const Vector *)(from + v * LANES);
                Mask keep = (Mask)(next <= best[v]) | (Mask)(best[v] != best[v]);
                best[v] = (Vector)(((Mask)best[v] & keep) | ((Mask)next & ~keep));
                index[v] = (index[v] & keep) | (tap & ~keep);
            }
        }
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
        *(Vector *)(y + v * LANES) = best[v];
        if (place) *(Places *)(place + v * LANES) = __builtin_convertvector(index[v], Places);
    }
}

// Reduce one window from the offset `at` for up to CHANNELS channels; their number is a constant.
INLINED void pool_window(const Pool *p, const void *x, long at, Range rows, Range taps,
                         long channels, void *y, long to, uint8_t *place, int half) {
    if (!half && channels % LANES == 0) {
        uint8_t *where = place ? place + to : 0;
        pool_vectors(p, x, at, rows, taps, channels / LANES, (float *)y + to, where);
        return;
    }
    float best[CHANNELS];
    int32_t index[CHANNELS];
    long first = at + (rows.low * p->w + taps.low) * p->c;
#pragma omp simd simdlen(16)
    for (long j = 0; j < channels; j++) {
        best[j] = load_(x, first + j, half);
        index[j] = (int32_t)(rows.low * p->kw + taps.low);
    }
    long b = taps.low + 1;
    for (long a = rows.low; a < rows.high; a++, b = taps.low)
        for (; b < taps.high; b++) {
            long from = at + (a * p->w + b) * p->c;
            int32_t tap = (int32_t)(a * p->kw + b);
#pragma omp simd simdlen(16)
            for (long j = 0; j < channels; j++) {
                float v = load_(x, from + j, half);
                int take = above(v, best[j]);
                best[j] = take ? v : best[j];
                index[j] = take ? tap : index[j];
            }
        }
#pragma omp simd simdlen(16)
    for (long j = 0; j < channels; j++) store_(y, to + j, best[j], half);
    if (place) {
#pragma omp simd simdlen(16)
        for (long j = 0; j < channels; j++) place[to + j] = (uint8_t)index[j];
    }
}

// Reduce all channels of a window, `width` at a time; the last block overlaps the one before it.
INLINED void pool_blocks(const Pool *p, const void *x, long at, Range rows, Range taps, long width,
                         void *y, long to, uint8_t *place, int half) {
    for (long j = 0; j < p->c; j += width) {
        long k = j + width < p->c ? j : p->c - width;
        pool_window(p, x, at + k, rows, taps, width, y, to + k, place, half);
    }
}

INLINED void pool_images(const Pool *p, const void *x, void *y, uint8_t *place, int half) {
#pragma omp parallel for if (p->n * p->h * p->w * p->c > PARALLEL) schedule(static)
    for (long o = 0; o < p->n * p->oh; o++) {
        long i = o / p->oh, row = o % p->oh * p->sh - p->top;
        Range rows = inside(row, p->h, p->kh);
        for (long q = 0; q < p->ow; q++) {
            long column = q * p->sw - p->left, to = (o * p->ow + q) * p->c;
            Range taps = inside(column, p->w, p->kw);
            long at = ((i * p->h + row) * p->w + column) * p->c;
            if (p->c >= 32) pool_blocks(p, x, at, rows, taps, 32, y, to, place, half);
            else if (p->c >= 16) pool_blocks(p, x, at, rows, taps, 16, y, to, place, half);
            else if (p->c >= 4) pool_blocks(p, x, at, rows, taps, 4, y, to, place, half);
            else pool_blocks(p, x, at, rows, taps, 1, y, to, place, half);
        }
    }
}

void max_pool(const float *x, float *y, uint8_t *place, const long *sizes) {
    pool_images((const Pool *)sizes, x, y, place, 0);
}

void max_pool_bf16(const bfloat16 *x, bfloat16 *y, uint8_t *place, const long *sizes) {
    pool_images((const Pool *)sizes, x, y, place, 1);
}

static void scatter_row(const Pool *p, const float *dy, const uint8_t *place, float *dx, long o) {
    long i = o / p->oh, row = o % p->oh * p->sh - p->top;
    Range rows = inside(row, p->h, p->kh);
    for (long q = 0; q < p->ow; q++) {
        long column = q * p->sw - p->left, from = (o * p->ow + q) * p->c;
        Range taps = inside(column, p->w, p->kw);
        float *to = dx + ((i * p->h + row) * p->w + column) * p->c;
        if (p->c % 32) {
            for (long j = 0; j < p->c; j++) {
                long a = place[from + j] / p->kw, b = place[from + j] % p->kw;
                to[(a * p->w + b) * p->c + j] += dy[from + j];
            }
            continue;
        }
        for (long a = rows.low; a < rows.high; a++)
            for (long b = taps.low; b < taps.high; b++) {
                float *target = to + (a * p->w + b) * p->c;
                uint8_t tap = (uint8_t)(a * p->kw + b);
#pragma omp simd
                for (long j = 0; j < p->c; j++)
                    target[j] += place[from + j] == tap ? dy[from + j] : 0.0f;
            }
    }
}

void max_pool_grad(const float *dy, const uint8_t *place, float *dx, const long *sizes) {
    const Pool *p = (const Pool *)sizes;
    long image = p->h * p->w * p->c;
#pragma omp parallel for if (p->n * image > PARALLEL) schedule(static)
    for (long i = 0; i < p->n; i++) {
        memset(dx + i * image, 0, image * sizeof(float));
        for (long o = i * p->oh; o < (i + 1) * p->oh; o++) scatter_row(p, dy, place, dx, o);
    }
}

// Max pooling of single-channel images: reduce over the rows of a window first, which vectorizes.
// buffer: one row of the input per part.
void max_pool_planes(const float *x, float *y, float *buffer, const long *sizes, int parts) {
    const Pool *p = (const Pool *)sizes;
    long all = p->n * p->oh;
#pragma omp parallel for if (p->n * p->h * p->w > PARALLEL) schedule(static)
    for (int part = 0; part < parts; part++) {
        float *best = buffer + part * p->w;
        for (long o = all * part / parts; o < all * (part + 1) / parts; o++) {
            long row = o % p->oh * p->sh - p->top;
            Range rows = inside(row, p->h, p->kh);
            const float *from = x + (o / p->oh * p->h + row) * p->w;
            memcpy(best, from + rows.low * p->w, p->w * sizeof(float));
            for (long a = rows.low + 1; a < rows.high; a++) {
#pragma omp simd
                for (long j = 0; j < p->w; j++) {
                    float v = from[a * p->w + j];
                    best[j] = above(v, best[j]) ? v : best[j];
                }
            }
            for (long q = 0; q < p->ow; q++) {
                long column = q * p->sw - p->left;
                Range taps = inside(column, p->w, p->kw);
                float top = best[column + taps.low];
                for (long b = taps.low + 1; b < taps.high; b++) {
                    float v = best[column + b];
                    top = above(v, top) ? v : top;
                }
                y[o * p->ow + q] = top;
            }
        }
    }
}

// --- softmax over rows; the result is NaN for a row that contains NaN or inf, or only -inf

// exp for x <= 0; subnormal results become 0
static inline float exp_below_(float x) {
    float c = x < -87.0f ? -87.0f : x;
    float n = rintf(c * 1.44269504088896341f);
    float r = c - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    float e = p * power_of_2((int32_t)n);
    return x < -87.0f ? 0.0f : e;
}

static void softmax_row(const float *x, float *y, long columns) {
    float top = -INFINITY, sum = 0.0f;
#pragma omp simd reduction(max : top) simdlen(16)
    for (long j = 0; j < columns; j++) top = x[j] > top ? x[j] : top;
#pragma omp simd reduction(+ : sum) simdlen(16)
    for (long j = 0; j < columns; j++) {
        float e = exp_below_(x[j] - top);
        y[j] = e;
        sum += e;
    }
    float scale = 1.0f / sum;
#pragma omp simd simdlen(16)
    for (long j = 0; j < columns; j++) y[j] *= scale;
}

// For rows shorter than a few vectors: compute the exponentials of a block of rows in one loop.
static void softmax_block(const float *x, float *y, long rows, long columns) {
    for (long i = 0; i < rows; i++) {
        const float *row = x + i * columns;
        float top = row[0];
        for (long j = 1; j < columns; j++) top = row[j] > top ? row[j] : top;
        for (long j = 0; j < columns; j++) y[i * columns + j] = row[j] - top;
    }
#pragma omp simd simdlen(16)
    for (long k = 0; k < rows * columns; k++) y[k] = exp_below_(y[k]);
    for (long i = 0; i < rows; i++) {
        float *to = y + i * columns, sum = 0.0f;
        for (long j = 0; j < columns; j++) sum += to[j];
        float scale = 1.0f / sum;
        for (long j = 0; j < columns; j++) to[j] *= scale;
    }
}

void softmax(const float *x, float *y, long rows, long columns) {
    long step = columns < NARROW ? FEW_ROWS : 1, blocks = (rows + step - 1) / step;
#pragma omp parallel for if (rows * columns > PARALLEL) schedule(static)
    for (long b = 0; b < blocks; b++) {
        long i = b * step, n = rows - i < step ? rows - i : step;
        if (columns < NARROW)
            softmax_block(x + i * columns, y + i * columns, n, columns);
        else
            softmax_row(x + i * columns, y + i * columns, columns);
    }
}

void softmax_grad(const float *y, const float *dy, float *dx, long rows, long columns) {
#pragma omp parallel for if (rows * columns > PARALLEL) schedule(static)
    for (long i = 0; i < rows; i++) {
        const float *p = y + i * columns, *g = dy + i * columns;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum) simdlen(16)
        for (long j = 0; j < columns; j++) sum += p[j] * g[j];
#pragma omp simd simdlen(16)
        for (long j = 0; j < columns; j++) dx[i * columns + j] = (g[j] - sum) * p[j];
    }
}
