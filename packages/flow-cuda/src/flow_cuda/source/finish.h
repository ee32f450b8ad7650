// Bias and activation of matrix products for which cuBLASLt has no epilogue: 0 for none, 1 for ReLU,
// 2 for GELU in its tanh approximation.
template <class T> FN void finish(T *c, const T *bias, i64 size, i64 n, i64 activation) {
    typedef typename In<T>::type V;
    EACH(i, size) {
        V value = load(c + i) + load(bias + i % n);
        if (activation == 1) value = max_(value, (V)0);
        if (activation == 2) {
            double x = (double)value, y = 0.7978845608028654 * (x + 0.044715 * x * x * x);
            value = (V)(0.5 * x * (1 + tanh(y)));
        }
        store(c + i, value);
    }
}
