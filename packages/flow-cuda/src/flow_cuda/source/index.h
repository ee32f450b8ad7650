// Gather and scatter by index.  An index out of range reads zero and adds nothing.
// ``first`` is the index of the table's first row if the device has a part of the table.

// Tables are (outer, rows, inner); indices are (count) or, if batched, (outer, count).
template <class U, class I>
FN void gather(const U *x, const I *index, U *y, i64 outer, i64 rows, i64 inner, i64 count,
               i64 first, i64 batched) {
    EACH(i, outer * count * inner) {
        i64 o = i / (count * inner), j = i / inner % count;
        i64 row = (i64)index[batched ? o * count + j : j] - first;
        y[i] = row < 0 || row >= rows ? (U)0 : x[(o * rows + row) * inner + i % inner];
    }
}

template <class T, class I, class A>
FN void segment_sum(const T *x, const I *index, A *sums, i64 outer, i64 rows, i64 inner, i64 count,
                    i64 first, i64 batched) {
    EACH(i, outer * count * inner) {
        i64 o = i / (count * inner), j = i / inner % count;
        i64 row = (i64)index[batched ? o * count + j : j] - first;
        if (row >= 0 && row < rows) add_to(sums + (o * rows + row) * inner + i % inner, (A)load(x + i));
    }
}

template <class A, class T> FN void narrow(const A *sums, T *y, i64 size) {
    EACH(i, size) store(y + i, sums[i]);
}