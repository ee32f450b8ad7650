// Layer and batch normalization.  T: activations, P: parameters, A: statistics; N and W: see row.h.

template <class T, int N, int W, class P, class A, bool has_gamma, bool has_beta>
FN void layer_norm(const T *x, const P *beta, const P *gamma, T *y, A *mean, A *inverse, i64 rows,
                   i64 n, i64 params, double epsilon) {
    typedef typename In<T>::type V;
    V share = (V)1 / (V)n;
    EACH_ROW(N, r, rows) {
        Row<T, N, W> row(x + r * n, n, 1);
        V sum = 0, squares = 0;
        each_of([&](V x) { sum += x; }, row);
        V center = over_row<Sum, N>(sum) * share;
        each_of([&](V x) { squares = fma_(x - center, x - center, squares); }, row);
        V scale = inverse_root_(over_row<Sum, N>(squares) * share + (V)epsilon);
        i64 shift = params > n ? r % (params / n) * n : 0;
        each_vector([&](i64 i, Pack<V, W> &v) {
            i64 at = params < n ? i % params : i + shift;
            UNROLL for (int j = 0; j < W; j++) v.each[j] = (v.each[j] - center) * scale;
            Pack<P, W> g, b;
            if constexpr (has_gamma) g = load_pack<W>(gamma + at);
            if constexpr (has_beta) b = load_pack<W>(beta + at);
            UNROLL for (int j = 0; j < W; j++) {
                V &value = v.each[j];
                if constexpr (has_gamma && has_beta) {
                    value = fma_(value, (V)load(g.each + j), (V)load(b.each + j));
                } else if constexpr (has_gamma) {
                    value *= (V)load(g.each + j);
                } else if constexpr (has_beta) {
                    value += (V)load(b.each + j);
                }
            }
            Pack<T, W> made;
            UNROLL for (int j = 0; j < W; j++) store(made.each + j, v.each[j]);
            write_pack(y + r * n + i, made);
        }, row);
        if (LEADS(N)) {
            store(mean + r, center);
            store(inverse + r, scale);
        }
    }
}

template <class T, int N, int W, class A>
FN void layer_norm_grad(const T *dy, const T *x, const A *mean, const A *inverse, T *dx, i64 rows,
                        i64 n) {
    typedef typename In<T>::type V;
    V share = (V)1 / (V)n;
    EACH_ROW(N, r, rows) {
        V center = (V)load(mean + r), scale = (V)load(inverse + r), sum = 0, product = 0;
        Row<T, N, W> given(dy + r * n, n, 1), row(x + r * n, n, 1);
        each_of([&](V d, V x) {
            sum += d;
            product += d * (x - center) * scale;
        }, given, row);
        sum = over_row<Sum, N>(sum) * share;
        product = over_row<Sum, N>(product) * share;
        write_row(dx + r * n, [&](V d, V x) {
            return scale * (d - sum - (x - center) * scale * product);
        }, given, row);
    }
}

// Index of a channel's elements in a tensor (outer, channels, inner).
#define CHANNEL(i, c) ((i) / inner * channels * inner + (c) * inner + (i) % inner)

template <class T, class P, class A>
FN void batch_norm(const T *x, P *moving_mean, P *moving_variance, const P *gamma, const P *beta,
                   T *y, A *mean, A *inverse, i64 outer, i64 channels, i64 inner, i64 training,
                   double epsilon, double momentum) {
    typedef typename In<T>::type V;
    i64 count = outer * inner;
    EACH_BLOCK(c, channels) {
        V center = (V)load(moving_mean + c), variance = (V)load(moving_variance + c);
        if (training) {
            V sum = 0, squares = 0;
            EACH_THREAD(i, count) sum += load(x + CHANNEL(i, c));
            center = over_block<Sum>(sum) / (V)count;
            EACH_THREAD(i, count) {
                V off = load(x + CHANNEL(i, c)) - center;
                squares += off * off;
            }
            variance = over_block<Sum>(squares) / (V)count;
        }
        V scale = (V)1 / sqrt_(variance + (V)epsilon);
        V factor = scale * (V)load(gamma + c), shift = (V)load(beta + c);
        EACH_THREAD(i, count) {
            i64 at = CHANNEL(i, c);
            store(y + at, (load(x + at) - center) * factor + shift);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            store(mean + c, center);
            store(inverse + c, scale);
            if (training) {
                V keep = (V)momentum, part = (V)(1 - momentum);
                V unbiased = count > 1 ? variance * (V)count / (V)(count - 1) : variance;
                store(moving_mean + c, (V)load(moving_mean + c) * keep + center * part);
                store(moving_variance + c, (V)load(moving_variance + c) * keep + unbiased * part);
            }
        }
    }
}

template <class T, class P, class A>
FN void batch_norm_grad(const T *x, const T *dy, const A *mean, const A *inverse, const P *gamma,
                        T *dx, P *d_gamma, P *d_beta, i64 outer, i64 channels, i64 inner,
                        i64 training) {
    typedef typename In<T>::type V;
    i64 count = outer * inner;
    EACH_BLOCK(c, channels) {
        V center = (V)load(mean + c), scale = (V)load(inverse + c), sum = 0, product = 0;
        EACH_THREAD(i, count) {
            i64 at = CHANNEL(i, c);
            V d = load(dy + at);
            sum += d;
            product += d * (load(x + at) - center) * scale;
        }
        sum = over_block<Sum>(sum);
        product = over_block<Sum>(product);
        V factor = scale * (V)load(gamma + c);
        V less = training ? sum / (V)count : (V)0, slope = training ? product / (V)count : (V)0;
        EACH_THREAD(i, count) {
            i64 at = CHANNEL(i, c);
            V normal = (load(x + at) - center) * scale;
            store(dx + at, (load(dy + at) - less - normal * slope) * factor);
        }
        if (threadIdx.x == 0) {
            store(d_beta + c, sum);
            store(d_gamma + c, product);
        }
    }
}
