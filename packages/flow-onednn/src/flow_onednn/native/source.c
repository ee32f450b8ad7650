// Loops whose code is fixed; functions.h precedes this file. Loops over more than PARALLEL elements
// use all threads; for shorter loops, synchronization takes longer than the work.

// --- conversions between bfloat16 and float

void bf16_to_f32_array(const bfloat16 *x, float *y, long n) {
    EACH(n, y[i] = bf16_to_f32(x[i]);)
}

void f32_to_bf16_array(const float *x, bfloat16 *y, long n) {
    EACH(n, y[i] = f32_to_bf16(x[i]);)
}

// --- levels of int8 and uint8, with one scale and one zero point

static inline float level_(float x, float scale, float zero, float low, float high) {
    float v = rintf(x / scale) + zero;
    v = v > low ? v : low;  // NaN becomes the lowest level
    return v < high ? v : high;
}

void quantize_int8(const float *x, const float *scale, const int8_t *zero, int8_t *y, long n) {
    float s = *scale, z = *zero;
    EACH(n, y[i] = (int8_t)(int)level_(x[i], s, z, -128.0f, 127.0f);)
}

void quantize_uint8(const float *x, const float *scale, const uint8_t *zero, uint8_t *y, long n) {
    float s = *scale, z = *zero;
    EACH(n, y[i] = (uint8_t)(int)level_(x[i], s, z, 0.0f, 255.0f);)
}

// Quantize NCHW images to NHWC. The levels of a span of pixels are computed by channel, and then
// interleaved: compilers have vector instructions for 3 channels, the usual number.
enum { SPAN = 512 };
#define QUANTIZE_LAST(name, type, low, high) \
    void name(const float *x, const float *scale, const type *zero, type *y, long images, \
              long channels, long pixels) { \
        float s = *scale, z = *zero; \
        long spans = (pixels + SPAN - 1) / SPAN; \
        _Pragma("omp parallel for if (images * channels * pixels > PARALLEL) schedule(static)") \
        for (long b = 0; b < images * spans; b++) { \
            long first = b % spans * SPAN, n = pixels - first < SPAN ? pixels - first : SPAN; \
            const float *in = x + b / spans * channels * pixels + first; \
            type *out = y + (b / spans * pixels + first) * channels, rows[3][SPAN]; \
            for (long c = 0; c < channels; c += 3) { \
                for (long k = c; k < channels && k < c + 3; k++) \
                    _Pragma("omp simd") for (long i = 0; i < n; i++) \
                        rows[k - c][i] = (type)(int)level_(in[k * pixels + i], s, z, low, high); \
                if (channels == 3) \
                    for (long i = 0; i < n; i++) \
                        out[3 * i] = rows[0][i], out[3 * i + 1] = rows[1][i], \
                                out[3 * i + 2] = rows[2][i]; \
                else \
                    for (long k = c; k < channels && k < c + 3; k++) \
                        for (long i = 0; i < n; i++) out[i * channels + k] = rows[k - c][i]; \
            } \
        } \
    }
QUANTIZE_LAST(quantize_last_int8, int8_t, -128.0f, 127.0f)
QUANTIZE_LAST(quantize_last_uint8, uint8_t, 0.0f, 255.0f)

void dequantize_int8(const int8_t *x, const float *scale, const int8_t *zero, float *y, long n) {
    float s = *scale, z = *zero;
    EACH(n, y[i] = ((float)x[i] - z) * s;)
}

void dequantize_uint8(const uint8_t *x, const float *scale, const uint8_t *zero, float *y, long n) {
    float s = *scale, z = *zero;
    EACH(n, y[i] = ((float)x[i] - z) * s;)
}

// --- what the functions of updates.py call. Scalars are multiplied in double, so that, for example,
// a rate of 6 times a scale of 1/6 is exactly 1.

static inline float sqrt_(float x) { return sqrtf(x); }
static inline float square_(float x) { return x * x; }
static inline float positive_(float x) { return x < 0.0f ? 0.0f : x; }
static inline float sign_(float x) {
    return x != x ? x : (float)(x > 0.0f) - (float)(x < 0.0f);
}

static inline double is_zero(double x) { return x == 0.0; }
static inline double is_positive(double x) { return x > 0.0; }
static inline double ratio(double x, double y) { return y == 0.0 ? 0.0 : x / y; }
static inline double where(double test, double x, double y) { return test != 0.0 ? x : y; }
static inline double scaled(double scale, const float *factor) {
    return factor ? scale * *factor : scale;
}

// Compute y = -rate scale factor x, the scaled operand of a product that is added to a variable.
void scale_by_rate(const float *x, float *y, const float *rate, const float *factor, long n,
                   double scale) {
    float a = (float)(-*rate * scaled(scale, factor));
    EACH(n, y[i] = a * x[i];)
}

// Sums of squares are in double, one pair per part, and added in order.
static void add_pairs(double *sums, int parts) {
    for (int p = 1; p < parts; p++) {
        sums[0] += sums[2 * p];
        sums[1] += sums[2 * p + 1];
    }
}

// --- random bits: Philox4x64-10 with key (seed, 0) and counter (block + 1, step, 0, 0)

static inline void philox(uint64_t block, uint64_t step, uint64_t seed, uint64_t out[4]) {
    uint64_t c0 = block + 1, c1 = step, c2 = 0, c3 = 0, k0 = seed, k1 = 0;
    for (int round = 0; round < 10; round++) {
        __uint128_t p = (__uint128_t)0xD2E7470EE14C6C93ull * c0;
        __uint128_t q = (__uint128_t)0xCA5A826395121157ull * c2;
        uint64_t n0 = (uint64_t)(q >> 64) ^ c1 ^ k0, n2 = (uint64_t)(p >> 64) ^ c3 ^ k1;
        c1 = (uint64_t)q;
        c3 = (uint64_t)p;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B97F4A7C15ull;
        k1 += 0xBB67AE8584CAA73Bull;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void dropout_mask(int8_t *keep, const int64_t *step, uint64_t seed, long n, float rate) {
    long blocks = (n + 7) / 8;
    uint64_t now = (uint64_t)*step;
#pragma omp parallel for if (n > PARALLEL) schedule(static)
    for (long b = 0; b < blocks; b++) {
        uint64_t words[4];
        philox((uint64_t)b, now, seed, words);
        for (long j = 0; j < 8 && b * 8 + j < n; j++) {
            uint32_t word = (uint32_t)(words[j / 2] >> (j % 2 * 32));
            keep[b * 8 + j] = rate < (float)(word >> 8) * 0x1p-24f;
        }
    }
}

// --- sums; each part of the rows has its own row in `partial`, so that the order of additions is
// fixed

static void add_parts(const float *partial, float *y, long columns, int parts) {
    for (long j = 0; j < columns; j++) {
        float sum = 0.0f;
        for (int p = 0; p < parts; p++) sum += partial[p * columns + j];
        y[j] = sum;
    }
}

void column_sums(const float *x, float *y, float *partial, long rows, long columns, int parts) {
#pragma omp parallel for if (rows * columns > PARALLEL) schedule(static)
    for (int p = 0; p < parts; p++) {
        float *sum = partial + p * columns;
        memset(sum, 0, columns * sizeof(float));
        for (long i = rows * p / parts; i < rows * (p + 1) / parts; i++) {
            const float *row = x + i * columns;
#pragma omp simd
            for (long j = 0; j < columns; j++) sum[j] += row[j];
        }
    }
    add_parts(partial, y, columns, parts);
}

void stack_sums(const float *x, float *y, long stack, long rows, long columns) {
#pragma omp parallel for if (stack * rows * columns > PARALLEL) schedule(static)
    for (long s = 0; s < stack; s++) {
        float *sum = y + s * columns;
        memset(sum, 0, columns * sizeof(float));
        for (long i = s * rows; i < (s + 1) * rows; i++) {
            const float *row = x + i * columns;
#pragma omp simd
            for (long j = 0; j < columns; j++) sum[j] += row[j];
        }
    }
}

// Sum blocks in float vectors, and add the sums of blocks in double, so that long rows lose no
// precision.
enum { SUM_BLOCK = 512 };

void row_sums(const float *x, float *y, long rows, long columns) {
#pragma omp parallel for if (rows * columns > PARALLEL) schedule(static)
    for (long i = 0; i < rows; i++) {
        const float *row = x + i * columns;
        double total = 0.0;
        for (long start = 0; start < columns; start += SUM_BLOCK) {
            long stop = start + SUM_BLOCK < columns ? start + SUM_BLOCK : columns;
            float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
            for (long j = start; j < stop; j++) sum += row[j];
            total += sum;
        }
        y[i] = (float)total;
    }
}

// --- softmax cross entropy with labels of 1, 4 or 8 bytes; a width of -1 stands for uint8

static inline long label_at(const void *label, long i, int width) {
    switch (width) {
        case 8: return (long)((const int64_t *)label)[i];
        case 4: return ((const int32_t *)label)[i];
        case 1: return ((const int8_t *)label)[i];
        default: return ((const uint8_t *)label)[i];
    }
}

// For rows shorter than a few vectors: compute the exponentials of a block of rows in one loop.
enum { NARROW = 48, FEW_ROWS = 64 };

static void narrow_rows(const float *x, const void *label, long first, float *prob, float *loss,
                        long rows, long columns, int width) {
    for (long i = 0; i < rows; i++) {
        const float *row = x + i * columns;
        float top = row[0];
        for (long j = 1; j < columns; j++) top = row[j] > top ? row[j] : top;
        for (long j = 0; j < columns; j++) prob[i * columns + j] = row[j] - top;
        loss[i] = prob[i * columns + label_at(label, first + i, width)];
    }
#pragma omp simd
    for (long k = 0; k < rows * columns; k++) prob[k] = exp_(prob[k]);
    for (long i = 0; i < rows; i++) {
        float *p = prob + i * columns, sum = 0.0f;
        for (long j = 0; j < columns; j++) sum += p[j];
        loss[i] = logf(sum) - loss[i];
        float scale = 1.0f / sum;
        for (long j = 0; j < columns; j++) p[j] *= scale;
    }
}

// Return the number of labels out of range.
long bad_labels(const void *label, long rows, long columns, int width) {
    long bad = 0;
    for (long i = 0; i < rows; i++) {
        long k = label_at(label, i, width);
        bad += k < 0 || k >= columns;
    }
    return bad;
}

// Return the number of labels out of range; compute the loss only if this number is 0.
long cross_entropy(const float *x, const void *label, float *prob, float *loss, long rows,
                   long columns, int width) {
    long bad = bad_labels(label, rows, columns, width);
    if (bad) return bad;
    if (columns < NARROW) {
        for (long i = 0; i < rows; i += FEW_ROWS) {
            long n = rows - i < FEW_ROWS ? rows - i : FEW_ROWS;
            narrow_rows(x + i * columns, label, i, prob + i * columns, loss + i, n, columns, width);
        }
        return 0;
    }
#pragma omp parallel for if (rows * columns > PARALLEL) schedule(static)
    for (long i = 0; i < rows; i++) {
        const float *row = x + i * columns;
        float *p = prob + i * columns;
        float top = -INFINITY, sum = 0.0f, hit = row[label_at(label, i, width)];
#pragma omp simd reduction(max : top)
        for (long j = 0; j < columns; j++) top = row[j] > top ? row[j] : top;
#pragma omp simd reduction(+ : sum)
        for (long j = 0; j < columns; j++) {
            float e = exp_(row[j] - top);
            p[j] = e;
            sum += e;
        }
        loss[i] = logf(sum) - (hit - top);
        float scale = 1.0f / sum;
#pragma omp simd
        for (long j = 0; j < columns; j++) p[j] *= scale;
    }
    return 0;
}

long cross_entropy_grad(const float *prob, const void *label, const float *dy, float *dx,
                        long rows, long columns, int width) {
    long bad = bad_labels(label, rows, columns, width);
    if (bad) return bad;
#pragma omp parallel for if (rows * columns > PARALLEL) schedule(static)
    for (long i = 0; i < rows; i++) {
        float d = dy[i];
        long at = i * columns;
#pragma omp simd
        for (long j = 0; j < columns; j++) dx[at + j] = prob[at + j] * d;
        dx[at + label_at(label, i, width)] -= d;
    }
    return 0;
}

// --- layer normalization over rows

void layer_norm(const float *x, const float *beta, const float *gamma, float *y, float *mean,
                float *inverse, long rows, long columns, float epsilon) {
#pragma omp parallel for if (rows * columns > PARALLEL) schedule(static)
    for (long i = 0; i < rows; i++) {
        const float *row = x + i * columns;
        float *to = y + i * columns;
        float sum = 0.0f, square = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (long j = 0; j < columns; j++) sum += row[j];
        float m = sum / columns;
#pragma omp simd reduction(+ : square)
        for (long j = 0; j < columns; j++) square += (row[j] - m) * (row[j] - m);
        float r = 1.0f / sqrtf(square / columns + epsilon);
        mean[i] = m;
        inverse[i] = r;
        if (beta && gamma) {
#pragma omp simd
            for (long j = 0; j < columns; j++) to[j] = (row[j] - m) * r * gamma[j] + beta[j];
        } else {
            for (long j = 0; j < columns; j++)
                to[j] = (row[j] - m) * r * (gamma ? gamma[j] : 1.0f) + (beta ? beta[j] : 0.0f);
        }
    }
}

void layer_norm_grad(const float *dy, const float *x, const float *mean, const float *inverse,
                     float *dx, long rows, long columns) {
#pragma omp parallel for if (rows * columns > PARALLEL) schedule(static)
    for (long i = 0; i < rows; i++) {
        const float *d = dy + i * columns, *row = x + i * columns;
        float *to = dx + i * columns;
        float m = mean[i], r = inverse[i], sum = 0.0f, inner = 0.0f;
#pragma omp simd reduction(+ : sum, inner)
        for (long j = 0; j < columns; j++) {
            sum += d[j];
            inner += d[j] * (row[j] - m);
        }
        sum /= columns;
        inner *= r * r / columns;
#pragma omp simd
        for (long j = 0; j < columns; j++) to[j] = r * (d[j] - sum - (row[j] - m) * inner);
    }
}

void layer_norm_gamma_grad(const float *dy, const float *x, const float *mean,
                           const float *inverse, float *out, float *partial, long rows,
                           long columns, int parts) {
#pragma omp parallel for if (rows * columns > PARALLEL) schedule(static)
    for (int p = 0; p < parts; p++) {
        float *sum = partial + p * columns;
        memset(sum, 0, columns * sizeof(float));
        for (long i = rows * p / parts; i < rows * (p + 1) / parts; i++) {
            const float *d = dy + i * columns, *row = x + i * columns;
            float m = mean[i], r = inverse[i];
#pragma omp simd
            for (long j = 0; j < columns; j++) sum[j] += d[j] * (row[j] - m) * r;
        }
    }
    add_parts(partial, out, columns, parts);
}

// --- pixels of NHWC images that a strided convolution uses

static inline float *pixel(float *x, long i, long h, long w, long c, long oh, long ow, long sh,
                           long sw) {
    long n = i / (oh * ow), row = i / ow % oh, column = i % ow;
    return x + ((n * h + row * sh) * w + column * sw) * c;
}

void gather_pixels(float *x, float *y, long n, long h, long w, long c, long oh, long ow, long sh,
                 long sw) {
#pragma omp parallel for if (n * oh * ow * c > PARALLEL) schedule(static)
    for (long i = 0; i < n * oh * ow; i++)
        memcpy(y + i * c, pixel(x, i, h, w, c, oh, ow, sh, sw), c * sizeof(float));
}

// Write the pixels back to the places from which they were gathered; all other pixels become 0.
void scatter_pixels(float *y, float *x, long n, long h, long w, long c, long oh, long ow, long sh,
                   long sw) {
#pragma omp parallel for if (n * h * w * c > PARALLEL) schedule(static)
    for (long r = 0; r < n * h; r++) {
        float *row = x + r * w * c;
        memset(row, 0, w * c * sizeof(float));
        long at = r % h;
        if (at % sh || at / sh >= oh) continue;
        const float *from = y + (r / h * oh + at / sh) * ow * c;
        for (long j = 0; j < ow; j++) memcpy(row + j * sw * c, from + j * c, c * sizeof(float));
    }
}

// --- im2col of an NHWC image: one row per output pixel, with elements in the order (c, i, j)

void im2col(const float *x, float *y, const long *sizes) {
    long n = sizes[0], h = sizes[1], w = sizes[2], c = sizes[3];
    const long *down = sizes + 4, *across = sizes + 9;  // output, kernel, stride, dilation, padding
    long oh = down[0], ow = across[0], kh = down[1], kw = across[1], taps = kh * kw;
#pragma omp parallel for if (n * oh * ow * c * taps > PARALLEL) schedule(static)
    for (long r = 0; r < n * oh * ow; r++) {
        float *row = y + r * c * taps;
        const float *image = x + r / (oh * ow) * h * w * c;
        for (long t = 0; t < taps; t++) {
            long i = r / ow % oh * down[2] + t / kw * down[3] - down[4];
            long j = r % ow * across[2] + t % kw * across[3] - across[4];
            if (i < 0 || i >= h || j < 0 || j >= w) {
                for (long k = 0; k < c; k++) row[k * taps + t] = 0.0f;
                continue;
            }
            const float *from = image + (i * w + j) * c;
            for (long k = 0; k < c; k++) row[k * taps + t] = from[k];
        }
    }
}
