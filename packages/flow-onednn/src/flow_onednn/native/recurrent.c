
// Recurrent layers over sequences of shape (batch, steps, features); source.c precedes this file.
// The library multiplies the states of a position by the recurrent weight; one loop per sample does
// the rest. A launch is one parallel region, in which a call of the library uses one thread:
// products have parts of a fixed number of columns, so that bits do not depend on the number of
// threads. Results may overwrite the first input. `own` is scratch memory for an operand or the
// result of the product of one position.

typedef int (*Sgemm)(char, char, int64_t, int64_t, int64_t, float, const float *, int64_t,
                     const float *, int64_t, float, float *, int64_t);

// The k-th position, the one before it, and where the states before it are.
typedef struct { long t, before, stride; } Place;

enum { COLUMNS = 64 };

// Within a parallel region: c = beta c + a b of m rows, n columns and k terms, where b has the rows
// or, transposed, the columns of the product of `stride` elements each.
#define PRODUCT(bad, transposed, m, n, k, a, lda, b, stride, beta, c, ldc) \
    _Pragma("omp for schedule(static) reduction(| : bad)") \
    for (long j_ = 0; j_ < (n); j_ += COLUMNS) \
        bad |= ((Sgemm)sgemm)('N', (transposed) ? 'T' : 'N', m, \
                              (n) - j_ < COLUMNS ? (n) - j_ : COLUMNS, k, 1.0f, a, lda, \
                              (b) + ((transposed) ? j_ * (stride) : j_), stride, beta, (c) + j_, \
                              ldc);

static inline Place place(long k, long steps, long units, int reverse) {
    long t = reverse ? steps - 1 - k : k;
    return (Place){t, reverse ? t + 1 : t - 1, k ? steps * units : units};
}

int lstm_forward(void *sgemm, const float *parts, const float *recurrent, const float *h,
                 const float *c, float *gates, float *out, float *memory, long batch, long steps,
                 long units, int reverse) {
    long rows = 4 * units;
    int bad = 0;
    if (gates != parts) memcpy(gates, parts, batch * steps * rows * sizeof(float));
#pragma omp parallel
    for (long k = 0; k < steps; k++) {
        Place p = place(k, steps, units, reverse);
        const float *h0 = k ? out + p.before * units : h, *c0 = k ? memory + p.before * units : c;
        PRODUCT(bad, 1, batch, rows, units, h0, p.stride, recurrent, units, 1.0f,
                gates + p.t * rows, steps * rows)
#pragma omp for schedule(static)
        for (long b = 0; b < batch; b++) {
            long at = b * steps + p.t;
            float *i = gates + at * rows, *f = i + units, *g = f + units, *o = g + units;
            const float *earlier = c0 + b * p.stride;
            float *cell = memory + at * units, *hidden = out + at * units;
#pragma omp simd
            for (long j = 0; j < units; j++) {
                i[j] = sigmoid_(i[j]);
                f[j] = sigmoid_(f[j]);
                g[j] = tanh_(g[j]);
                o[j] = sigmoid_(o[j]);
                cell[j] = f[j] * earlier[j] + i[j] * g[j];
                hidden[j] = o[j] * tanh_(cell[j]);
            }
        }
    }
    return bad;
}

// The loop over the units of a sample; constants for the absent gradients let it be vectorized.
static inline __attribute__((always_inline)) void lstm_unit_gradients(
    const float *i, const float *earlier, const float *cell, const float *dout,
    const float *dmemory, const float *dgates, float *d, float *dh, float *dc, long units) {
    const float *f = i + units, *g = f + units, *o = g + units;
#pragma omp simd
    for (long j = 0; j < units; j++) {
        float tanh = tanh_(cell[j]), up = dh[j] + dout[j];
        float down = dc[j] + up * o[j] * (1.0f - tanh * tanh);
        if (dmemory) down += dmemory[j];
        float di = down * g[j], df = down * earlier[j], dg = down * i[j], d_o = up * tanh;
        if (dgates) {
            di += dgates[j];
            df += dgates[units + j];
            dg += dgates[2 * units + j];
            d_o += dgates[3 * units + j];
        }
        dc[j] = down * f[j];
        d[j] = di * (i[j] * (1.0f - i[j]));
        d[units + j] = df * (f[j] * (1.0f - f[j]));
        d[2 * units + j] = dg * (1.0f - g[j] * g[j]);
        d[3 * units + j] = d_o * (o[j] * (1.0f - o[j]));
    }
}

int lstm_backward(void *sgemm, const float *gates, const float *recurrent, const float *c,
                  const float *memory, const float *dout, const float *dmemory,
                  const float *dgates, float *dparts, float *dh, float *dc, float *own, long batch,
                  long steps, long units, int reverse) {
    long rows = 4 * units;
    int bad = 0;
    memset(dh, 0, batch * units * sizeof(float));
    memset(dc, 0, batch * units * sizeof(float));
#pragma omp parallel
    for (long k = steps - 1; k >= 0; k--) {
        Place p = place(k, steps, units, reverse);
        const float *c0 = k ? memory + p.before * units : c;
#pragma omp for schedule(static)
        for (long b = 0; b < batch; b++) {
            long at = b * steps + p.t;
            const float *a = gates + at * rows, *up = dout + at * units, *c1 = c0 + b * p.stride;
            const float *cell = memory + at * units;
            float *d = own + b * rows, *dh1 = dh + b * units, *dc1 = dc + b * units;
            if (dgates)
                lstm_unit_gradients(a, c1, cell, up, dmemory + at * units, dgates + at * rows, d,
                                    dh1, dc1, units);
            else if (dmemory)
                lstm_unit_gradients(a, c1, cell, up, dmemory + at * units, 0, d, dh1, dc1, units);
            else
                lstm_unit_gradients(a, c1, cell, up, 0, 0, d, dh1, dc1, units);
            memcpy(dparts + at * rows, d, rows * sizeof(float));
        }
        PRODUCT(bad, 0, batch, units, rows, own, rows, recurrent, units, 0.0f, dh, units)
    }
    return bad;
}

int gru_forward(void *sgemm, const float *parts, const float *recurrent, const float *h,
                const float *bias, float *gates, float *out, float *memory, float *own, long batch,
                long steps, long units, int reverse) {
    long rows = 3 * units;
    int bad = 0;
#pragma omp parallel
    for (long k = 0; k < steps; k++) {
        Place p = place(k, steps, units, reverse);
        const float *h0 = k ? out + p.before * units : h;
#pragma omp for schedule(static)
        for (long b = 0; b < batch; b++)
            if (bias) memcpy(own + b * rows, bias, rows * sizeof(float));
        PRODUCT(bad, 1, batch, rows, units, h0, p.stride, recurrent, units, bias ? 1.0f : 0.0f, own,
                rows)
#pragma omp for schedule(static)
        for (long b = 0; b < batch; b++) {
            long at = b * steps + p.t;
            const float *x = parts + at * rows, *product = own + b * rows;
            const float *earlier = h0 + b * p.stride;
            float *a = gates + at * rows, *hidden = out + at * units, *kept = memory + at * units;
#pragma omp simd
            for (long j = 0; j < units; j++) {
                float r = sigmoid_(x[j] + product[j]);
                float z = sigmoid_(x[units + j] + product[units + j]);
                float n = tanh_(x[2 * units + j] + r * product[2 * units + j]);
                kept[j] = product[2 * units + j];
                a[j] = r;
                a[units + j] = z;
                a[2 * units + j] = n;
                hidden[j] = n + z * (earlier[j] - n);
            }
        }
    }
    return bad;
}

static inline __attribute__((always_inline)) void gru_unit_gradients(
    const float *r, const float *earlier, const float *kept, const float *dout,
    const float *dmemory, const float *dgates, float *d, float *products, float *dh, long units) {
    const float *z = r + units, *n = z + units;
#pragma omp simd
    for (long j = 0; j < units; j++) {
        float up = dh[j] + dout[j];
        float dz = up * (earlier[j] - n[j]), dn = up * (1.0f - z[j]), dr = 0.0f;
        if (dgates) {
            dr = dgates[j];
            dz += dgates[units + j];
            dn += dgates[2 * units + j];
        }
        dn *= 1.0f - n[j] * n[j];
        dr = (dr + dn * kept[j]) * (r[j] * (1.0f - r[j]));
        dz *= z[j] * (1.0f - z[j]);
        float dm = dn * r[j];
        if (dmemory) dm += dmemory[j];
        dh[j] = up * z[j];
        d[j] = products[j] = dr;
        d[units + j] = products[units + j] = dz;
        d[2 * units + j] = dn;
        products[2 * units + j] = dm;
    }
}

int gru_backward(void *sgemm, const float *gates, const float *recurrent, const float *h,
                 const float *memory, const float *out, const float *dout, const float *dmemory,
                 const float *dgates, float *dparts, float *down, float *dh, float *own, long batch,
                 long steps, long units, int reverse) {
    long rows = 3 * units;
    int bad = 0;
    memset(dh, 0, batch * units * sizeof(float));
#pragma omp parallel
    for (long k = steps - 1; k >= 0; k--) {
        Place p = place(k, steps, units, reverse);
        const float *h0 = k ? out + p.before * units : h;
#pragma omp for schedule(static)
        for (long b = 0; b < batch; b++) {
            long at = b * steps + p.t;
            const float *a = gates + at * rows, *up = dout + at * units, *h1 = h0 + b * p.stride;
            const float *kept = memory + at * units;
            float *d = dparts + at * rows, *products = own + b * rows, *dh1 = dh + b * units;
            if (dgates)
                gru_unit_gradients(a, h1, kept, up, dmemory + at * units, dgates + at * rows, d,
                                   products, dh1, units);
            else if (dmemory)
                gru_unit_gradients(a, h1, kept, up, dmemory + at * units, 0, d, products, dh1,
                                   units);
            else
                gru_unit_gradients(a, h1, kept, up, 0, 0, d, products, dh1, units);
            memcpy(down + at * rows, products, rows * sizeof(float));
        }
        PRODUCT(bad, 0, batch, units, rows, own, rows, recurrent, units, 1.0f, dh, units)
    }
    return bad;
}
