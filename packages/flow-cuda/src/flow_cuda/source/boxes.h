// Elementwise reductions of array boxes.

// y = a op b over one index space; op: 0 is sum, 1 is maximum, 2 is minimum.
template <class T>
FN void combine(const T *a, const T *b, T *y, i64 how, Space space, Strides sa, i64 fa, Strides sb,
                i64 fb, Strides sy, i64 fy) {
    typedef typename In<T>::type V;
    EACH(i, space.size) {
        i64 at[8];
        unravel(i, space, at);
        V left = load(a + fa + offset(at, space, sa)), right = load(b + fb + offset(at, space, sb));
        store(y + fy + offset(at, space, sy),
              how == 0 ? (V)(left + right) : how == 1 ? max_(left, right) : min_(left, right));
    }
}
