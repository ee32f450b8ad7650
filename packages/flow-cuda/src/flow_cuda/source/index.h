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
template <class T, class A> FN void widen(const T *x, A *sums, i64 size) {
    EACH(i, size) sums[i] = (A)load(x + i);
}

// Along one axis of a space: ``others`` are the table's strides along the other axes.
template <class U, class I>
FN void dim_gather(const U *x, const I *index, U *y, Space space, Strides others, i64 step, i64 rows,
                   i64 first) {
    EACH(i, space.size) {
        i64 row = (i64)index[i] - first;
        y[i] = row < 0 || row >= rows ? (U)0 : x[place(i, space, others) + row * step];
    }
}

template <class T, class I, class A>
FN void dim_scatter(const T *x, const I *index, A *sums, Space space, Strides others, i64 step,
                    i64 rows, i64 first) {
    EACH(i, space.size) {
        i64 row = (i64)index[i] - first;
        if (row >= 0 && row < rows) add_to(sums + place(i, space, others) + row * step, (A)load(x + i));
    }
}

// Positions (count, depth) in a table whose first ``depth`` axes are ``table``; -1 if out of range.
template <class I>
FN i64 position(const I *index, const Space &table, const Strides &steps, const Strides &first) {
    i64 at = 0;
    for (int axis = 0; axis < (int)table.rank; axis++) {
        i64 here = (i64)index[axis] - first.s[axis];
        if (here < 0 || here >= table.n[axis]) return -1;
        at += here * steps.s[axis];
    }
    return at;
}

template <class U, class I>
FN void gather_nd(const U *x, const I *index, U *y, i64 count, i64 inner, Space table, Strides steps,
                  Strides first) {
    EACH(i, count * inner) {
        i64 at = position(index + i / inner * table.rank, table, steps, first);
        y[i] = at < 0 ? (U)0 : x[at + i % inner];
    }
}

// Of several updates of a slice, the last one wins: ``winners`` has its number, -1 if there is none.
template <class I>
FN void scatter_nd_claim(const I *index, i32 *winners, i64 count, i64 inner, Space table,
                         Strides steps, Strides first) {
    EACH(i, count) {
        i64 at = position(index + i * table.rank, table, steps, first);
        if (at >= 0) atomicMax(winners + at / inner, (i32)i);
    }
}

template <class U>
FN void scatter_nd_write(const U *x, const i32 *winners, U *y, i64 size, i64 inner) {
    EACH(i, size) {
        i32 winner = winners[i / inner];
        if (winner >= 0) y[i] = x[(i64)winner * inner + i % inner];
    }
}

template <class T, class I, class A>
FN void scatter_nd_add(const T *x, const I *index, A *sums, i64 count, i64 inner, Space table,
                       Strides steps, Strides first) {
    EACH(i, count * inner) {
        i64 at = position(index + i / inner * table.rank, table, steps, first);
        if (at >= 0) add_to(sums + at + i % inner, (A)load(x + i));
    }
}
