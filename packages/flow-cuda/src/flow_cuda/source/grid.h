// Quantization and upsampling.

// Scale and zero point from a value range.
template <class T, class V>
FN void put_grid(V high, V low, T *scale, T *zero, bool symmetric, V levels) {
    if (symmetric) {
        store(scale, high / levels);
        store(zero, (V)0);
        return;
    }
    V step = (high - low) / levels;
    store(scale, step);
    store(zero, -(low / step));
}

template <class T>
FN void observe(const T *x, T *scale, T *zero, i64 rows, i64 n, i64 symmetric, double levels) {
    typedef typename In<T>::type V;
    EACH_BLOCK(r, rows) {
        V high = -infinity<V>(), low = infinity<V>();
        EACH_THREAD(i, n) {
            high = max_(high, load(x + r * n + i));
            low = min_(low, load(x + r * n + i));
        }
        high = over_block<Largest>(high);
        low = over_block<Least>(low);
        if (symmetric) high = max_(abs_(high), abs_(low));
        if (threadIdx.x == 0) put_grid(high, low, scale + r, zero + r, symmetric, (V)levels);
    }
}

template <class V> FN V averaged(V mean, V now, V momentum) {
    return mean == (V)0 ? now : mean * momentum + now * ((V)1 - momentum);
}

// Updates the moving averages of maximum and minimum up to step ``last``; -1 for never.
template <class T>
FN void observe_moving(const T *x, const i64 *step, T *moving_high, T *moving_low, T *scale, T *zero,
                       i64 n, i64 symmetric, double levels, i64 training, i64 last,
                       double momentum) {
    typedef typename In<T>::type V;
    EACH_BLOCK(only, 1) {
        V high = -infinity<V>(), low = infinity<V>();
        EACH_THREAD(i, training ? n : 0) {
            high = max_(high, load(x + i));
            low = min_(low, load(x + i));
        }
        high = over_block<Largest>(high);
        low = over_block<Least>(low);
        if (threadIdx.x) continue;
        V above = load(moving_high), below = load(moving_low);
        if (training && *step <= last) {
            if (symmetric) high = max_(abs_(high), abs_(low));
            above = averaged(above, high, (V)momentum);
            below = symmetric ? above : averaged(below, low, (V)momentum);
            store(moving_high, above);
            store(moving_low, below);
        }
        put_grid(above, below, scale, zero, symmetric, (V)levels);
    }
}

// Rounds to the nearest quantized value, per ``inner`` elements; ties round away from zero.
template <class T>
FN void fake_quantization(const T *x, const T *scale, const T *zero, T *y, i64 size, i64 inner,
                          i64 symmetric, double levels) {
    typedef typename In<T>::type V;
    EACH(i, size) {
        V step = load(scale + i / inner), off = symmetric ? (V)0 : load(zero + i / inner);
        V place = load(x + i) / step + off;
        place = place < (V)0 ? ceil_(place - (V)0.5) : floor_(place + (V)0.5);
        place = clip_(place, symmetric ? -(V)levels : (V)0, (V)levels);
        store(y + i, (place - off) * step);
    }
}

// --- upsampling

// Source elements of an output position on an axis of size n: ``low``, and its neighbor's weight.
struct Seen { i64 low, high; double part; };

FN Seen seen_from(i64 p, i64 n, double scale, bool bilinear) {
    double center = (p + 0.5) / scale - (bilinear ? 0.5 : 0.0), most = (double)(n - 1);
    center = center < 0 ? 0 : center;
    if (bilinear) center = center > most ? most : center;
    Seen seen;
    seen.low = (i64)floor(center);
    if (seen.low > n - 1) seen.low = n - 1;
    seen.high = seen.low + 1 < n ? seen.low + 1 : n - 1;
    seen.part = bilinear ? center - (double)seen.low : 0.0;
    return seen;
}

FN double weight(const Seen &seen, i64 i) {
    return (seen.low == i ? 1 - seen.part : 0.0) + (seen.high == i ? seen.part : 0.0);
}

template <class T>
FN void upsample(const T *x, T *y, i64 planes, i64 h, i64 w, i64 oh, i64 ow, double tall, double wide,
                 i64 bilinear) {
    typedef typename In<T>::type V;
    EACH(i, planes * oh * ow) {
        const T *from = x + i / (oh * ow) * h * w;
        Seen row = seen_from(i / ow % oh, h, tall, bilinear);
        Seen column = seen_from(i % ow, w, wide, bilinear);
        V left = load(from + row.low * w + column.low) * (V)(1 - row.part) +
                 load(from + row.high * w + column.low) * (V)row.part;
        V right = load(from + row.low * w + column.high) * (V)(1 - row.part) +
                  load(from + row.high * w + column.high) * (V)row.part;
        store(y + i, left * (V)(1 - column.part) + right * (V)column.part);
    }
}

// The first and the last output position that may read element i.
FN i64 first_seeing(i64 i, double scale) {
    i64 p = (i64)floor(((double)i - 0.5) * scale) - 1;
    return i == 0 || p < 0 ? 0 : p;
}
FN i64 last_seeing(i64 i, i64 n, i64 out, double scale) {
    i64 p = (i64)ceil(((double)i + 1.5) * scale);
    return i == n - 1 || p > out - 1 ? out - 1 : p;
}

template <class T>
FN void upsample_grad(const T *dy, T *dx, i64 planes, i64 h, i64 w, i64 oh, i64 ow, double tall,
                      double wide, i64 bilinear) {
    typedef typename In<T>::type V;
    EACH(i, planes * h * w) {
        const T *from = dy + i / (h * w) * oh * ow;
        i64 row = i / w % h, column = i % w;
        i64 low = first_seeing(column, wide), high = last_seeing(column, w, ow, wide);
        V sum = 0;
        for (i64 p = first_seeing(row, tall); p <= last_seeing(row, h, oh, tall); p++) {
            double own = weight(seen_from(p, h, tall, bilinear), row);
            if (own == 0) continue;
            V part = 0;
            for (i64 q = low; q <= high; q++) {
                double share = weight(seen_from(q, w, wide, bilinear), column);
                if (share != 0) part += load(from + p * ow + q) * (V)share;
            }
            sum += part * (V)own;
        }
        store(dx + i, sum);
    }
}
