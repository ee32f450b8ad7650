// Windows over up to three spatial axes: pooling, and im2col for convolution by matrix product.

struct Window { i64 size[3], kernel[3], stride[3], before[3], dilation[3], out[3]; };

// Strides of a tensor along batch, channel and spatial axes.
#define AT(strides, n, c, p) \
    ((n) * strides.s[0] + (c) * strides.s[1] + (p)[0] * strides.s[2] + (p)[1] * strides.s[3] + \
     (p)[2] * strides.s[4])

FN bool inside(const Window &w, const i64 *o, const i64 *k, i64 *p) {
    for (int d = 0; d < 3; d++) {
        p[d] = o[d] * w.stride[d] + k[d] * w.dilation[d] - w.before[d];
        if (p[d] < 0 || p[d] >= w.size[d]) return false;
    }
    return true;
}

// Index of the window in which element p is at kernel position k.
FN bool touches(const Window &w, const i64 *p, const i64 *k, i64 *o) {
    for (int d = 0; d < 3; d++) {
        i64 shifted = p[d] + w.before[d] - k[d] * w.dilation[d];
        o[d] = shifted / w.stride[d];
        if (shifted < 0 || shifted % w.stride[d] || o[d] >= w.out[d]) return false;
    }
    return true;
}

FN void tap(const Window &w, i64 i, i64 *k) {
    k[2] = i % w.kernel[2];
    k[1] = i / w.kernel[2] % w.kernel[1];
    k[0] = i / w.kernel[2] / w.kernel[1];
}
FN i64 taps(const Window &w) { return w.kernel[0] * w.kernel[1] * w.kernel[2]; }

FN i64 count_of(const Window &w, const i64 *o) {
    i64 count = 1;
    for (int d = 0; d < 3; d++) {
        i64 start = o[d] * w.stride[d] - w.before[d], stop = start + w.kernel[d];
        count *= (stop < w.size[d] ? stop : w.size[d]) - (start > 0 ? start : 0);
    }
    return count;
}

template <class T>
FN void max_pool(const T *x, T *y, Space results, Strides xs, Strides ys, Window w,
                 double lowest) {
    typedef typename In<T>::type V;
    EACH(i, results.size) {
        i64 at[8], k[3], p[3];
        unravel(i, results, at);
        bool any = false;
        V most = (V)lowest;
        for (i64 t = 0; t < taps(w); t++) {
            tap(w, t, k);
            if (!inside(w, at + 2, k, p)) continue;
            V value = load(x + AT(xs, at[0], at[1], p));
            most = any ? max_(most, value) : value;
            any = true;
        }
        store(y + AT(ys, at[0], at[1], at + 2), most);
    }
}

template <class T>
FN void avg_pool(const T *x, T *y, Space results, Strides xs, Strides ys, Window w) {
    typedef typename In<T>::type V;
    EACH(i, results.size) {
        i64 at[8], k[3], p[3];
        unravel(i, results, at);
        V sum = 0;
        for (i64 t = 0; t < taps(w); t++) {
            tap(w, t, k);
            if (inside(w, at + 2, k, p)) sum += load(x + AT(xs, at[0], at[1], p));
        }
        store(y + AT(ys, at[0], at[1], at + 2), sum / (V)count_of(w, at + 2));
    }
}

template <class V> FN bool same(V a, V b) { return a == b || (a != a && b != b); }

// The gradient goes to the first kernel position with the maximum or NaN.
template <class T>
FN void max_pool_grad(const T *x, const T *y, const T *dy, T *dx, Space elements, Strides xs,
                      Strides ys, Window w) {
    typedef typename In<T>::type V;
    EACH(i, elements.size) {
        i64 at[8], k[3], o[3], other[3], p[3];
        unravel(i, elements, at);
        V own = load(x + AT(xs, at[0], at[1], at + 2)), sum = 0;
        for (i64 t = 0; t < taps(w); t++) {
            tap(w, t, k);
            if (!touches(w, at + 2, k, o)) continue;
            i64 result = AT(ys, at[0], at[1], o);
            if (!same(load(y + result), own)) continue;
            bool first = true;
            for (i64 before = 0; before < t && first; before++) {
                tap(w, before, other);
                if (inside(w, o, other, p)) first = !same(load(x + AT(xs, at[0], at[1], p)), own);
            }
            if (first) sum += load(dy + result);
        }
        store(dx + AT(xs, at[0], at[1], at + 2), sum);
    }
}

template <class T>
FN void avg_pool_grad(const T *dy, T *dx, Space elements, Strides xs, Strides ys, Window w) {
    typedef typename In<T>::type V;
    EACH(i, elements.size) {
        i64 at[8], k[3], o[3];
        unravel(i, elements, at);
        V sum = 0;
        for (i64 t = 0; t < taps(w); t++) {
            tap(w, t, k);
            if (!touches(w, at + 2, k, o)) continue;
            sum += load(dy + AT(ys, at[0], at[1], o)) / (V)count_of(w, o);
        }
        store(dx + AT(xs, at[0], at[1], at + 2), sum);
    }
}

// columns[n, c, k, o] = x[n, c, the element at kernel position k of window o], 0 in the padding.
// Channels are in groups of ``group``; groups have stride ``apart``.
template <class U>
FN void unfold(const U *x, U *columns, Space space, Strides xs, Strides cs, i64 group, i64 apart,
               Window w) {
    EACH(i, space.size) {
        i64 at[8], p[3];
        unravel(i, space, at);
        U value = inside(w, at + 5, at + 2, p) ? x[AT(xs, at[0], at[1], p)] : (U)0;
        i64 first = at[1] / group * apart;
        at[1] %= group;
        columns[first + offset(at, space, cs)] = value;
    }
}

template <class T>
FN void fold(const T *columns, T *x, Space elements, Strides xs, Strides cs, i64 group, i64 apart,
             Window w) {
    typedef typename In<T>::type V;
    EACH(i, elements.size) {
        i64 at[8], k[3], o[3];
        unravel(i, elements, at);
        V sum = 0;
        for (i64 t = 0; t < taps(w); t++) {
            tap(w, t, k);
            if (!touches(w, at + 2, k, o)) continue;
            i64 from = at[0] * cs.s[0] + at[1] / group * apart + at[1] % group * cs.s[1];
            for (int d = 0; d < 3; d++) from += k[d] * cs.s[2 + d] + o[d] * cs.s[5 + d];
            sum += load(columns + from);
        }
        store(x + AT(xs, at[0], at[1], at + 2), sum);
    }
}
