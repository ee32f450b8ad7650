// Reductions along an axis, one block per row.  Row r of a tensor (outer, n, inner) starts at
// element r / inner * n * inner + r % inner; its elements have stride ``inner``.

FN i64 row_start(i64 r, i64 n, i64 inner) { return r / inner * n * inner + r % inner; }

template <class T> FN typename In<T>::type largest_of(const T *x, i64 n, i64 inner) {
    typedef typename In<T>::type V;
    V most = -infinity<V>();
    EACH_THREAD(i, n) most = max_(most, load(x + i * inner));
    return over_block<Largest>(most);
}

template <class T> FN typename In<T>::type exp_sum(const T *x, i64 n, i64 inner,
                                                   typename In<T>::type most) {
    typedef typename In<T>::type V;
    V sum = 0;
    EACH_THREAD(i, n) sum += exp_(load(x + i * inner) - most);
    return over_block<Sum>(sum);
}

template <class T> FN void softmax(const T *x, T *y, i64 rows, i64 n, i64 inner) {
    typedef typename In<T>::type V;
    EACH_BLOCK(r, rows) {
        i64 start = row_start(r, n, inner);
        V most = largest_of(x + start, n, inner), sum = exp_sum(x + start, n, inner, most);
        EACH_THREAD(i, n) {
            i64 at = start + i * inner;
            store(y + at, exp_(load(x + at) - most) / sum);
        }
    }
}

template <class T> FN void log_softmax(const T *x, T *y, i64 rows, i64 n, i64 inner) {
    typedef typename In<T>::type V;
    EACH_BLOCK(r, rows) {
        i64 start = row_start(r, n, inner);
        V most = largest_of(x + start, n, inner);
        V less = log_(exp_sum(x + start, n, inner, most));
        EACH_THREAD(i, n) {
            i64 at = start + i * inner;
            store(y + at, load(x + at) - most - less);
        }
    }
}

template <class T> FN void softmax_grad(const T *y, const T *dy, T *dx, i64 rows, i64 n, i64 inner) {
    typedef typename In<T>::type V;
    EACH_BLOCK(r, rows) {
        i64 start = row_start(r, n, inner);
        V sum = 0;
        EACH_THREAD(i, n) sum += load(y + start + i * inner) * load(dy + start + i * inner);
        sum = over_block<Sum>(sum);
        EACH_THREAD(i, n) {
            i64 at = start + i * inner;
            store(dx + at, load(y + at) * (load(dy + at) - sum));
        }
    }
}

template <class T>
FN void log_softmax_grad(const T *y, const T *dy, T *dx, i64 rows, i64 n, i64 inner) {
    typedef typename In<T>::type V;
    EACH_BLOCK(r, rows) {
        i64 start = row_start(r, n, inner);
        V sum = 0;
        EACH_THREAD(i, n) sum += load(dy + start + i * inner);
        sum = over_block<Sum>(sum);
        EACH_THREAD(i, n) {
            i64 at = start + i * inner;
            store(dx + at, load(dy + at) - exp_(load(y + at)) * sum);
        }
    }
}

// Labels out of range give NaN, since a kernel cannot raise an error.
template <class T, class L>
FN void sparse_loss(const T *x, const L *label, T *prob, T *loss, i64 rows, i64 n) {
    typedef typename In<T>::type V;
    EACH_BLOCK(r, rows) {
        const T *row = x + r * n;
        i64 want = (i64)label[r];
        V at_label = want < 0 || want >= n ? not_a_number<V>() : load(row + want);
        V most = largest_of(row, n, 1), sum = exp_sum(row, n, 1, most);
        EACH_THREAD(i, n) store(prob + r * n + i, exp_(load(row + i) - most) / sum);
        if (threadIdx.x == 0) store(loss + r, log_(sum) + most - at_label);
    }
}

template <class T, class L>
FN void sparse_loss_grad(const T *prob, const L *label, const T *dy, T *dx, i64 rows, i64 n) {
    typedef typename In<T>::type V;
    EACH(i, rows * n) {
        V hit = i % n == (i64)label[i / n];
        store(dx + i, load(dy + i / n) * (load(prob + i) - hit));
    }
}

template <class T>
FN void dense_loss(const T *x, const T *label, T *prob, T *loss, i64 rows, i64 n) {
    typedef typename In<T>::type V;
    EACH_BLOCK(r, rows) {
        const T *row = x + r * n;
        V most = largest_of(row, n, 1), sum = exp_sum(row, n, 1, most), less = log_(sum), total = 0;
        EACH_THREAD(i, n) {
            V now = load(row + i) - most;
            total += load(label + r * n + i) * (less - now);
            store(prob + r * n + i, exp_(now) / sum);
        }
        total = over_block<Sum>(total);
        if (threadIdx.x == 0) store(loss + r, total);
    }
}

template <class T>
FN void dense_loss_grad(const T *prob, const T *label, const T *dy, T *dx, i64 rows, i64 n) {
    EACH_BLOCK(r, rows) {
        EACH_THREAD(i, n) {
            i64 at = r * n + i;
            store(dx + at, load(dy + r) * (load(prob + at) - load(label + at)));
        }
    }
}

template <class T, class L>
FN void entropy(const T *x, const L *label, T *loss, i64 rows, i64 n) {
    typedef typename In<T>::type V;
    EACH(r, rows) {
        i64 want = (i64)label[r];
        V at_label = want < 0 || want >= n ? not_a_number<V>() : load(x + r * n + want);
        store(loss + r, -log_(max_(at_label, (V)1e-20)));
    }
}

template <class T, class L>
FN void entropy_grad(const T *x, const L *label, const T *dy, T *dx, i64 rows, i64 n) {
    typedef typename In<T>::type V;
    EACH(i, rows * n) {
        bool hit = i % n == (i64)label[i / n];
        store(dx + i, hit ? -load(dy + i / n) / max_(load(x + i), (V)1e-20) : (V)0);
    }
}

template <class T>
FN void l2_normalize(const T *x, T *y, T *squares, i64 rows, i64 n, i64 inner, double epsilon) {
    typedef typename In<T>::type V;
    EACH_BLOCK(r, rows) {
        i64 start = row_start(r, n, inner);
        V sum = 0;
        EACH_THREAD(i, n) sum += load(x + start + i * inner) * load(x + start + i * inner);
        sum = over_block<Sum>(sum);
        V below = sqrt_(max_(sum, (V)epsilon));
        EACH_THREAD(i, n) store(y + start + i * inner, load(x + start + i * inner) / below);
        if (threadIdx.x == 0) store(squares + r, sum);
    }
}

template <class T>
FN void l2_normalize_grad(const T *dy, const T *y, const T *squares, T *dx, i64 rows, i64 n,
                          i64 inner, double epsilon) {
    typedef typename In<T>::type V;
    EACH_BLOCK(r, rows) {
        i64 start = row_start(r, n, inner);
        V sum = 0, square = load(squares + r);
        EACH_THREAD(i, n) sum += load(y + start + i * inner) * load(dy + start + i * inner);
        sum = over_block<Sum>(sum);
        if (square < (V)epsilon) sum = 0;
        V below = sqrt_(max_(square, (V)epsilon));
        EACH_THREAD(i, n) {
            i64 at = start + i * inner;
            store(dx + at, (load(dy + at) - sum * load(y + at)) / below);
        }
    }
}
