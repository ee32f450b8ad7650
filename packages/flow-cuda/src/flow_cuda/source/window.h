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

// --- pooling, of tensors (outer, three spatial axes, inner).  W: the adjacent elements of the inner
// axis that one instruction moves; ``inner`` counts such vectors.  U: the type of indices.  K: how far to
// unroll loops over a window; the compiler unrolls a loop completely if K is its number of iterations.

template <class U> struct Signed { typedef i64 type; };
template <> struct Signed<u32> { typedef i32 type; };

template <class U> struct Place {
    U outer, inner;
    typename Signed<U>::type at[3];
};

template <class U> FN Place<U> place_of(U i, const i64 *sizes, i64 inner) {
    Place<U> found;
    found.inner = i % (U)inner;
    i /= (U)inner;
    UNROLL for (int d = 2; d >= 0; d--) {
        found.at[d] = i % (U)sizes[d];
        i /= (U)sizes[d];
    }
    found.outer = i;
    return found;
}

template <class S> FN S spatial(S a, S b, S c, const i64 *sizes) {
    return (a * (S)sizes[1] + b) * (S)sizes[2] + c;
}

#define WINDOW(k, count) _Pragma("unroll K") for (S k = 0; k < (S)(count); k++)

// The index of a window's first element in the spatial axes; it may be in the padding.
template <class S> FN S first_of(const Window &w, const S *o) {
    S at[3];
    UNROLL for (int d = 0; d < 3; d++) at[d] = o[d] * (S)w.stride[d] - (S)w.before[d];
    return spatial(at[0], at[1], at[2], w.size);
}

template <class S> FN bool within(const Window &w, int axis, S o, S k) {
    S p = o * (S)w.stride[axis] - (S)w.before[axis] + k;
    return p >= 0 && p < (S)w.size[axis];
}

// Calls f(distance from the first element) for each element of window o, in ascending order.
template <int K, class S, class F> FN void each_element(const Window &w, const S *o, F f) {
    WINDOW(i, w.kernel[0]) {
        if (!within(w, 0, o[0], i)) continue;
        WINDOW(j, w.kernel[1]) {
            if (!within(w, 1, o[1], j)) continue;
            WINDOW(k, w.kernel[2]) if (within(w, 2, o[2], k)) f(spatial(i, j, k, w.size));
        }
    }
}

// The window whose element k along an axis is element p; -1 if there is none.
template <class S> FN S window_with(const Window &w, int axis, S p, S k) {
    S shifted = p + (S)w.before[axis] - k, o = shifted / (S)w.stride[axis];
    return shifted < 0 || shifted % (S)w.stride[axis] || o >= (S)w.out[axis] ? -1 : o;
}

// Calls f(coordinates of a window) for each window that has element p.
template <int K, class S, class F> FN void each_window(const Window &w, const S *p, F f) {
    S o[3];
    WINDOW(a, w.kernel[0]) {
        if ((o[0] = window_with(w, 0, p[0], a)) < 0) continue;
        WINDOW(b, w.kernel[1]) {
            if ((o[1] = window_with(w, 1, p[1], b)) < 0) continue;
            WINDOW(c, w.kernel[2]) {
                if ((o[2] = window_with(w, 2, p[2], c)) >= 0) f(o);
            }
        }
    }
}

template <class S> FN S elements_of(const Window &w, const S *o) {
    S count = 1;
    UNROLL for (int d = 0; d < 3; d++) {
        S start = o[d] * (S)w.stride[d] - (S)w.before[d], stop = start + (S)w.kernel[d];
        count *= (stop < (S)w.size[d] ? stop : (S)w.size[d]) - (start > 0 ? start : 0);
    }
    return count;
}

#define SPATIAL(sizes) ((U)sizes[0] * (U)sizes[1] * (U)sizes[2])
// Of an element of x, whose index in the spatial axes is ``at``.
#define START(x, outer, at, own) \
    ((x) + (i64)(S)(((outer) * SPATIAL(w.size) + (U)(at)) * (U)inner + (own)) * W)

template <class T, int W, class U, int K>
FN void max_pool(const T *x, T *y, i64 outer, i64 inner, Window w) {
    typedef typename In<T>::type V;
    typedef typename Signed<U>::type S;
    EACH_INDEX(U, i, (U)outer * SPATIAL(w.out) * (U)inner) {
        Place<U> o = place_of(i, w.out, inner);
        const T *from = START(x, o.outer, first_of(w, o.at), o.inner);
        V most[W];
        UNROLL for (int j = 0; j < W; j++) most[j] = lowest<V>();
        each_element<K>(w, o.at, [&](S p) {
            Pack<T, W> pack = load_pack<W>(from + (i64)p * inner * W);
            UNROLL for (int j = 0; j < W; j++) most[j] = largest_(most[j], load(pack.each + j));
        });
        Pack<T, W> made;
        UNROLL for (int j = 0; j < W; j++) store(made.each + j, most[j]);
        store_pack(y + i * W, made);
    }
}

template <class T, int W, class U, int K>
FN void avg_pool(const T *x, T *y, i64 outer, i64 inner, Window w) {
    typedef typename In<T>::type V;
    typedef typename Signed<U>::type S;
    EACH_INDEX(U, i, (U)outer * SPATIAL(w.out) * (U)inner) {
        Place<U> o = place_of(i, w.out, inner);
        const T *from = START(x, o.outer, first_of(w, o.at), o.inner);
        V sum[W] = {}, count = (V)elements_of(w, o.at);
        each_element<K>(w, o.at, [&](S p) {
            Pack<T, W> pack = load_pack<W>(from + (i64)p * inner * W);
            UNROLL for (int j = 0; j < W; j++) sum[j] += load(pack.each + j);
        });
        Pack<T, W> made;
        UNROLL for (int j = 0; j < W; j++) store(made.each + j, sum[j] / count);
        store_pack(y + i * W, made);
    }
}

template <class V> FN bool same(V a, V b) { return a == b || (a != a && b != b); }

// The gradient goes to the first element of a window that is its maximum or NaN.
template <class T, int W, class U, int K>
FN void max_pool_grad(const T *x, const T *y, const T *dy, T *dx, i64 outer, i64 inner, Window w) {
    typedef typename In<T>::type V;
    typedef typename Signed<U>::type S;
    EACH_INDEX(U, i, (U)outer * SPATIAL(w.size) * (U)inner) {
        Place<U> p = place_of(i, w.size, inner);
        S own = spatial(p.at[0], p.at[1], p.at[2], w.size);
        Pack<T, W> values = load_pack<W>(x + i * W), made;
        V sum[W] = {};
        each_window<K>(w, p.at, [&](const S *o) {
            U at = (p.outer * SPATIAL(w.out) + (U)spatial(o[0], o[1], o[2], w.out)) * (U)inner;
            Pack<T, W> most = load_pack<W>(y + (at + p.inner) * W);
            bool hit[W];
            UNROLL for (int j = 0; j < W; j++) {
                hit[j] = same(load(most.each + j), load(values.each + j));
            }
            S first = first_of(w, o);
            const T *from = START(x, p.outer, first, p.inner);
            each_element<K>(w, o, [&](S q) {
                if (first + q >= own) return;
                Pack<T, W> other = load_pack<W>(from + (i64)q * inner * W);
                UNROLL for (int j = 0; j < W; j++) {
                    hit[j] = hit[j] && !same(load(other.each + j), load(values.each + j));
                }
            });
            Pack<T, W> given = load_pack<W>(dy + (at + p.inner) * W);
            UNROLL for (int j = 0; j < W; j++) if (hit[j]) sum[j] += load(given.each + j);
        });
        UNROLL for (int j = 0; j < W; j++) store(made.each + j, sum[j]);
        store_pack(dx + i * W, made);
    }
}

template <class T, int W, class U, int K>
FN void avg_pool_grad(const T *dy, T *dx, i64 outer, i64 inner, Window w) {
    typedef typename In<T>::type V;
    typedef typename Signed<U>::type S;
    EACH_INDEX(U, i, (U)outer * SPATIAL(w.size) * (U)inner) {
        Place<U> p = place_of(i, w.size, inner);
        V sum[W] = {};
        each_window<K>(w, p.at, [&](const S *o) {
            U at = (p.outer * SPATIAL(w.out) + (U)spatial(o[0], o[1], o[2], w.out)) * (U)inner;
            Pack<T, W> given = load_pack<W>(dy + (at + p.inner) * W);
            V count = (V)elements_of(w, o);
            UNROLL for (int j = 0; j < W; j++) sum[j] += load(given.each + j) / count;
        });
        Pack<T, W> made;
        UNROLL for (int j = 0; j < W; j++) store(made.each + j, sum[j]);
        store_pack(dx + i * W, made);
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

template <class C, class T>
FN void fold(const C *columns, T *x, Space elements, Strides xs, Strides cs, i64 group, i64 apart,
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
