// Batch normalization of channels-last rows, fused with a residual addition and relu; source.c
// precedes this file. Each part of the rows has its own statistics, which are computed in blocks
// that fit in the cache, so that x is read from memory once. Parts are merged in order, with Chan's
// formula for means and sums of squared deviations, which avoids cancellation.

enum { NORM_ROWS = 32 };

// Merge the statistics of `more` rows (means b, squared deviations q) into those of `count` rows (m
// and s).
static void merge(float *m, float *s, long count, const float *b, const float *q, long more,
                 long columns) {
    float share = (float)more / (float)(count + more);
    float weight = (float)count * share;
#pragma omp simd
    for (long j = 0; j < columns; j++) {
        float d = b[j] - m[j];
        m[j] += d * share;
        s[j] += q[j] + d * d * weight;
    }
}

INLINED void block_statistics(const void *x, long at, float *b, float *q, long rows, long columns,
                              int half) {
    float scale = 1.0f / (float)rows;
    memset(b, 0, columns * sizeof(float));
    memset(q, 0, columns * sizeof(float));
    for (long i = 0; i < rows; i++) {
        long row = at + i * columns;
#pragma omp simd
        for (long j = 0; j < columns; j++) b[j] += load_(x, row + j, half);
    }
#pragma omp simd
    for (long j = 0; j < columns; j++) b[j] *= scale;
    for (long i = 0; i < rows; i++) {
        long row = at + i * columns;
#pragma omp simd
        for (long j = 0; j < columns; j++) {
            float d = load_(x, row + j, half) - b[j];
            q[j] += d * d;
        }
    }
}

// Compute means and sums of squared deviations; scratch: 4 rows per part.
INLINED void statistics(const void *x, float *scratch, long rows, long columns, int parts, int half) {
#pragma omp parallel for if (rows * columns > PARALLEL) schedule(static)
    for (int p = 0; p < parts; p++) {
        float *m = scratch + 4 * p * columns, *s = m + columns, *b = s + columns, *q = b + columns;
        memset(m, 0, 2 * columns * sizeof(float));
        long low = rows * p / parts, high = rows * (p + 1) / parts;
        for (long i = low; i < high; i += NORM_ROWS) {
            long n = high - i < NORM_ROWS ? high - i : NORM_ROWS;
            block_statistics(x, i * columns, b, q, n, columns, half);
            merge(m, s, i - low, b, q, n, columns);
        }
    }
    for (int p = 1; p < parts; p++) {
        long low = rows * p / parts, high = rows * (p + 1) / parts;
        float *other = scratch + 4 * p * columns;
        merge(scratch, scratch + columns, low, other, other + columns, high - low, columns);
    }
}

// Compute y = max(0, (x - mean) gamma / sqrt(variance + epsilon) + beta + r); scratch: 4 rows per
// part.
INLINED void norm_add_relu_(const void *x, float *moving_mean, float *moving_variance,
                            const float *gamma, const float *beta, const void *r, void *y,
                            float *mean, float *inverse, float *scratch, long rows, long columns,
                            int parts, double epsilon, double momentum, int half) {
    statistics(x, scratch, rows, columns, parts, half);
    float keep = (float)momentum, rate = (float)(1.0 - momentum), e = (float)epsilon;
    float unbiased = (float)((1.0 - momentum) / (rows > 1 ? rows - 1 : 1));
    float *slope = scratch + 2 * columns;
    for (long j = 0; j < columns; j++) {
        float s = scratch[columns + j];
        mean[j] = scratch[j];
        inverse[j] = 1.0f / sqrtf(s / (float)rows + e);
        slope[j] = inverse[j] * gamma[j];
        moving_mean[j] = keep * moving_mean[j] + rate * mean[j];
        moving_variance[j] = keep * moving_variance[j] + unbiased * s;
    }
#pragma omp parallel for if (rows * columns > PARALLEL) schedule(static)
    for (long k = 0; k < rows; k++) {
        long row = k * columns;
#pragma omp simd
        for (long j = 0; j < columns; j++) {
            float more = load_(r, row + j, half);
            float v = (load_(x, row + j, half) - mean[j]) * slope[j] + beta[j] + more;
            store_(y, row + j, v < 0.0f ? 0.0f : v, half);
        }
    }
}

#define NORM_ADD_RELU(name, type, half) \
    void name(const type *x, float *moving_mean, float *moving_variance, const float *gamma, \
              const float *beta, const type *r, type *y, float *mean, float *inverse, \
              float *scratch, long rows, long columns, int parts, double epsilon, \
              double momentum) { \
        norm_add_relu_(x, moving_mean, moving_variance, gamma, beta, r, y, mean, inverse, scratch, \
                       rows, columns, parts, epsilon, momentum, half); \
    }
NORM_ADD_RELU(norm_add_relu, float, 0)
NORM_ADD_RELU(norm_add_relu_bf16, bfloat16, 1)
