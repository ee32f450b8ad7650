// Epilogues of matrix products that cuBLASLt does not fuse.  Eight adjacent elements of a row
// share a byte of a mask, the first one in the lowest bit.

FN double gelu_tanh(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }
FN double gelu_tanh_slope(double x) {
    double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

// Bias and activation: 0 for none, 1 for ReLU, 2 for GELU.
template <class T>
FN void finish(T *c, const T *bias, u8 *mask, T *numbers, i64 m, i64 n, i64 lead, i64 activation) {
    typedef typename In<T>::type V;
    i64 bytes = (n + 7) / 8;
    EACH(i, m * bytes) {
        i64 row = i / bytes, byte = i % bytes;
        int bits = 0;
        for (i64 j = byte * 8; j < n && j < byte * 8 + 8; j++) {
            V value = load(c + row * n + j) + load(bias + j);
            bits |= (value > (V)0) << j % 8;
            if (numbers) store(numbers + row * lead + j, value);
            if (activation == 1) value = max_(value, (V)0);
            if (activation == 2) value = (V)gelu_tanh((double)value);
            store(c + row * n + j, value);
        }
        if (mask) mask[row * lead / 8 + byte] = (u8)bits;
    }
}

template <class T>
FN void finish_grad(T *c, const u8 *mask, const T *numbers, i64 m, i64 n, i64 lead) {
    typedef typename In<T>::type V;
    EACH(i, m * n) {
        i64 row = i / n, j = i % n;
        V slope = mask ? (V)(mask[(row * lead + j) / 8] >> j % 8 & 1)
                       : (V)gelu_tanh_slope((double)load(numbers + row * lead + j));
        store(c + i, load(c + i) * slope);
    }
}
