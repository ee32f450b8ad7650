// Reductions along an axis; N and W: see row.h, and one block per row where there are none.  Row r of a tensor (outer, n, inner) starts at
// element r / inner * n * inner + r % inner; its elements have stride ``inner``.

FN i64 row_start(i64 r, i64 n, i64 inner) { return r / inner * n * inner + r % inner; }

// The largest number of a row, and the sum of exp(x - most).  A NaN makes the sum NaN.
template <class T, int N, int W> FN typename In<T>::type largest_of(Row<T, N, W> &row) {
    typedef typename In<T>::type V;
    V most = -infinity<V>();
    each_of([&](V x) { most = Most::of(most, x); }, row);
    return over_row<Most, N>(most);
}
template <class T, int N, int W, class V> FN V exp_sum(Row<T, N, W> &row, V most) {
    V sum = 0;
    each_of([&](V x) { sum += exp_(x - most); }, row);
    return over_row<Sum, N>(sum);
}

template <class T, int N, int W> FN void softmax(const T *x, T *y, i64 rows, i64 n, i64 inner) {
    typedef typename In<T>::type V;
    EACH_ROW(N, r, rows) {
        i64 start = row_start(r, n, inner);
        Row<T, N, W> row(x + start, n, inner);
        V most = largest_of(row), sum = 0;
        each_of([&](V &x) { sum += x = exp_(x - most); }, row);
        V scale = reciprocal_(over_row<Sum, N>(sum));
        write_row(y + start, [&](V x) { return (N ? x : exp_(x - most)) * scale; }, row);
    }
}

template <class T, int N, int W> FN void log_softmax(const T *x, T *y, i64 rows, i64 n, i64 inner) {
    typedef typename In<T>::type V;
    EACH_ROW(N, r, rows) {
        i64 start = row_start(r, n, inner);
        Row<T, N, W> row(x + start, n, inner);
        V most = largest_of(row), less = log_(exp_sum(row, most));
        write_row(y + start, [&](V x) { return x - most - less; }, row);
    }
}

template <class T, int N, int W>
FN void softmax_grad(const T *y, const T *dy, T *dx, i64 rows, i64 n, i64 inner) {
    typedef typename In<T>::type V;
    EACH_ROW(N, r, rows) {
        i64 start = row_start(r, n, inner);
        Row<T, N, W> row(y + start, n, inner), given(dy + start, n, inner);
        V sum = 0;
        each_of([&](V p, V d) { sum += p * d; }, row, given);
        sum = over_row<Sum, N>(sum);
        write_row(dx + start, [&](V p, V d) { return p * (d - sum); }, row, given);
    }
}

template <class T, int N, int W>
FN void log_softmax_grad(const T *y, const T *dy, T *dx, i64 rows, i64 n, i64 inner) {
    typedef typename In<T>::type V;
    EACH_ROW(N, r, rows) {
        i64 start = row_start(r, n, inner);
        Row<T, N, W> row(y + start, n, inner), given(dy + start, n, inner);
        V sum = 0;
        each_of([&](V d) { sum += d; }, given);
        sum = over_row<Sum, N>(sum);
        write_row(dx + start, [&](V p, V d) { return d - exp_(p) * sum; }, row, given);
    }
}

// Labels out of range give NaN, since a kernel cannot raise an error.
template <class T, int N, int W, class L>
FN void sparse_loss(const T *x, const L *label, T *prob, T *loss, i64 rows, i64 n) {
    typedef typename In<T>::type V;
    EACH_ROW(N, r, rows) {
        i64 want = (i64)label[r];
        V at_label = want < 0 || want >= n ? not_a_number<V>() : load(x + r * n + want);
        Row<T, N, W> row(x + r * n, n, 1);
        V most = largest_of(row), sum = 0;
        each_of([&](V &x) { sum += x = exp_(x - most); }, row);
        sum = over_row<Sum, N>(sum);
        V scale = reciprocal_(sum);
        if (N) after_reads();  // prob may overwrite x, of which each thread reads an element
        write_row(prob + r * n, [&](V x) { return (N ? x : exp_(x - most)) * scale; }, row);
        if (LEADS(N)) store(loss + r, log_(sum) + most - at_label);
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

template <class T, int N, int W>
FN void dense_loss(const T *x, const T *label, T *prob, T *loss, i64 rows, i64 n) {
    typedef typename In<T>::type V;
    EACH_ROW(N, r, rows) {
        Row<T, N, W> row(x + r * n, n, 1), labels(label + r * n, n, 1);
        V most = largest_of(row), sum = exp_sum(row, most), less = log_(sum), total = 0;
        each_of([&](V x, V wanted) { total += wanted * (less - (x - most)); }, row, labels);
        V scale = reciprocal_(sum);
        write_row(prob + r * n, [&](V x) { return exp_(x - most) * scale; }, row);
        total = over_row<Sum, N>(total);
        if (LEADS(N)) store(loss + r, total);
    }
}

template <class T, int N, int W>
FN void dense_loss_grad(const T *prob, const T *label, const T *dy, T *dx, i64 rows, i64 n) {
    typedef typename In<T>::type V;
    EACH_ROW(N, r, rows) {
        Row<T, N, W> row(prob + r * n, n, 1), labels(label + r * n, n, 1);
        V scale = load(dy + r);
        write_row(dx + r * n, [&](V p, V wanted) { return scale * (p - wanted); }, row, labels);
    }
}
