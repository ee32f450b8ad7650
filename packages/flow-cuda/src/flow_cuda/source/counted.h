// Outputs whose length is known only at run time, padded with zeros.  Include after order.h
// and the row updates that codegen/updates.py writes.

// Number of nonzero elements per part.
template <class T> FN void count_parts(const T *x, i32 *sums, i64 n, i64 parts) {
    EACH_BLOCK(block, parts) {
        PART_OF_ROW(block)
        i32 count = 0;
        for (i64 i = start + threadIdx.x; i < stop; i += BLOCK) count += load(x + i) != 0;
        count = over_block<Sum>(count);
        if (threadIdx.x == 0) sums[part] = count;
    }
}

// Exclusive scan: number of nonzero elements before each element, and in total.
template <class T, class I>
FN void find_places(const T *x, const i32 *sums, i32 *places, I *total, i64 n, i64 parts) {
    EACH_BLOCK(block, parts) {
        PART_OF_ROW(block)
        i32 base = 0, all;
        EACH_THREAD(i, part) base += sums[i];
        base = over_block<Sum>(base);
        for (i64 tile = start; tile < stop; tile += BLOCK) {
            i64 i = tile + threadIdx.x;
            i32 before = before_in_block((i32)(i < stop && load(x + i) != 0), &all);
            if (i < stop) places[i] = base + before;
            base += all;
        }
        if (part == parts - 1 && threadIdx.x == 0) *total = base;
    }
}

template <class T, class I>
FN void argwhere(const T *x, const i32 *places, I *rows, Space space) {
    EACH(i, space.size) {
        if (load(x + i) == 0) continue;
        i64 at[8];
        unravel(i, space, at);
        for (int axis = 0; axis < (int)space.rank; axis++) {
            rows[places[i] * space.rank + axis] = (I)at[axis];
        }
    }
}

// Zeroes all but the first ``size`` rows of an axis; ``first`` is the index of the first local row.
template <class U, class I>
FN void keep_first(const U *x, const I *size, U *y, i64 outer, i64 rows, i64 inner, i64 first) {
    EACH(i, outer * rows * inner) y[i] = i / inner % rows + first < (i64)*size ? x[i] : (U)0;
}

// --- unique values, in order of first appearance

template <class K> FN i64 first_equal(const K *sorted, i64 n, K key) {
    i64 low = 0, high = n;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (sorted[middle] < key) low = middle + 1; else high = middle;
    }
    return low;
}

template <class K> FN i64 behind_equal(const K *sorted, i64 n, K key) {
    i64 low = 0, high = n;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (sorted[middle] <= key) low = middle + 1; else high = middle;
    }
    return low;
}

template <class K> FN void mark_first(const K *sorted, const i32 *order, i8 *marks, i64 n) {
    EACH(i, n) marks[order[i]] = i == 0 || sorted[i] != sorted[i - 1];
}

template <class U, class K, class I>
FN void list_distinct(const U *x, const K *sorted, const i32 *order, const i32 *places, U *y,
                      I *index, I *count, i64 n) {
    EACH(i, n) {
        i64 head = first_equal(sorted, n, sorted[i]);
        i32 place = places[order[head]];
        if (index) index[order[i]] = place;
        if (i != head) continue;
        y[place] = x[order[i]];
        if (count) count[place] = (I)(behind_equal(sorted, n, sorted[i]) - i);
    }
}

template <class T, class K>
FN void sum_equal(const T *x, const K *sorted, const i32 *order, const i32 *places, T *y, i64 n,
                  i64 inner) {
    typedef typename In<T>::type V;
    EACH(item, n * inner) {
        i64 i = item / inner, column = item % inner;
        if (i && sorted[i] == sorted[i - 1]) continue;
        V sum = 0;
        for (i64 j = i; j < n && sorted[j] == sorted[i]; j++) {
            sum += load(x + order[j] * inner + column);
        }
        store(y + places[order[i]] * inner + column, sum);
    }
}

// --- updates of indexed rows

template <class Rule, class W, class G, class S, class I, class K>
FN void update_rows(W *w, const I *index, const G *g, const float *rate, S *m, S *v,
                    const K *sorted, const i32 *order, i64 n, i64 inner, i64 rows, i64 first,
                    double scale, double decay, double a, double b, double c) {
    typedef typename In<W>::type V;
    EACH(item, n * inner) {
        i64 i = item / inner, column = item % inner, row = (i64)index[order[i]] - first;
        if ((i && sorted[i] == sorted[i - 1]) || row < 0 || row >= rows) continue;
        V sum = 0;
        for (i64 j = i; j < n && sorted[j] == sorted[i]; j++) {
            sum += (V)load(g + order[j] * inner + column);
        }
        i64 at = row * inner + column;
        V one = m ? (V)load(m + at) : (V)0, two = v ? (V)load(v + at) : (V)0;
        V next = Rule::of((V)load(w + at), sum, &one, &two, *rate, scale, decay, a, b, c);
        store(w + at, next);
        if (m) store(m + at, one);
        if (v) store(v + at, two);
    }
}

// --- token encoding: pairs (token, number) in a hash table with linear probing

template <class I> FN i64 token_place(I token, i64 capacity, i64 step) {
    u64 key = (u64)(i64)token + (u64)step;
    return (i64)(key % (u64)capacity);
}

// Numbers of the tokens in the table, -1 for others.
template <class I> FN void known_tokens(const I *table, const I *x, I *y, i64 n, i64 capacity) {
    EACH(i, n) {
        I number = x[i] ? -1 : 0;
        for (i64 step = 0; number < 0 && step < capacity; step++) {
            const I *pair = table + 2 * token_place(x[i], capacity, step);
            if (pair[0] == 0) break;
            if (pair[0] == x[i]) number = pair[1];
        }
        y[i] = number;
    }
}

// A single thread numbers the other tokens in order; -1 if the table is full.
template <class I> FN void new_tokens(I *table, I *size, const I *x, I *y, i64 n, i64 capacity) {
    if (first_item()) return;
    for (i64 i = 0; i < n; i++) {
        for (i64 step = 0; y[i] < 0 && step < capacity; step++) {
            I *pair = table + 2 * token_place(x[i], capacity, step);
            if (pair[0] == 0) {
                pair[0] = x[i];
                pair[1] = *size += 1;
            }
            if (pair[0] == x[i]) y[i] = pair[1];
        }
    }
}
