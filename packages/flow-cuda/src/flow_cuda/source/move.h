// Data movement by element size: U is an unsigned integer type.

// Transposes matrices by tiles in shared memory, so that reads and writes are coalesced.
#define TILE 32
template <class U> FN void turn(const U *x, U *y, i64 count, i64 rows, i64 columns) {
    SHARED(U, tile, [TILE][TILE + 1]);
    i64 down = (rows + TILE - 1) / TILE, across = (columns + TILE - 1) / TILE;
    EACH_BLOCK(t, count * down * across) {
        i64 matrix = t / (down * across) * rows * columns;
        i64 row = t / across % down * TILE, column = t % across * TILE;
        __syncthreads();
        EACH_THREAD(i, TILE * TILE) {
            i64 r = row + i / TILE, c = column + i % TILE;
            if (r < rows && c < columns) tile[i / TILE][i % TILE] = x[matrix + r * columns + c];
        }
        __syncthreads();
        EACH_THREAD(i, TILE * TILE) {
            i64 r = row + i % TILE, c = column + i / TILE;
            if (r < rows && c < columns) y[matrix + c * rows + r] = tile[i % TILE][i / TILE];
        }
    }
}

FN void copy_two(const float *a, const float *b, float *to_a, float *to_b, i64 size) {
    EACH(i, size) {
        to_a[i] = a[i];
        to_b[i] = b[i];
    }
}

template <class U> FN void fill(U *y, i64 size, u64 bits) { EACH(i, size) y[i] = (U)bits; }

template <class T> FN void count_up(T *y, i64 size, double start, double delta) {
    EACH(i, size) store(y + i, (typename In<T>::type)(start + (double)i * delta));
}

template <class U, class I>
FN void one_hot(const I *index, U *y, i64 size, i64 classes, i64 first, u64 on, u64 off) {
    EACH(i, size) y[i] = (U)((i64)index[i / classes] == first + i % classes ? on : off);
}

template <class T>
FN void tril(const T *x, T *y, i64 size, i64 rows, i64 columns, i64 diagonal, double scale,
             double value) {
    typedef typename In<T>::type V;
    EACH(i, size) {
        i64 row = i / columns % rows, column = i % columns;
        store(y + i, column - row <= diagonal ? (V)(load(x + i) * (V)scale) : (V)value);
    }
}

FN i64 reflected(i64 i, i64 n) { return i < 0 ? -i : i >= n ? 2 * (n - 1) - i : i; }

template <class U>
FN void reflect(const U *x, U *y, i64 planes, i64 h, i64 w, i64 left, i64 top, i64 oh, i64 ow) {
    EACH(i, planes * oh * ow) {
        i64 plane = i / (oh * ow), row = i / ow % oh, column = i % ow;
        y[i] = x[(plane * h + reflected(row - top, h)) * w + reflected(column - left, w)];
    }
}

template <class T>
FN void reflect_grad(const T *dy, T *dx, i64 planes, i64 h, i64 w, i64 left, i64 top, i64 oh,
                     i64 ow) {
    typedef typename In<T>::type V;
    EACH(i, planes * h * w) {
        i64 plane = i / (h * w), row = i / w % h, column = i % w;
        V sum = 0;
        for (i64 a = 0; a < 3; a++) {
            i64 r = a == 0 ? row : a == 1 ? -row : 2 * (h - 1) - row;
            if ((a && r == row) || r + top < 0 || r + top >= oh) continue;
            for (i64 b = 0; b < 3; b++) {
                i64 c = b == 0 ? column : b == 1 ? -column : 2 * (w - 1) - column;
                if ((b && c == column) || c + left < 0 || c + left >= ow) continue;
                sum += load(dy + (plane * oh + r + top) * ow + c + left);
            }
        }
        store(dx + i, sum);
    }
}

// y[first + offset in b] += x[offset in a], over one index space.
template <class T> FN void add_box(const T *x, T *y, Space space, Strides a, Strides b, i64 first) {
    EACH(i, space.size) {
        i64 at[8];
        unravel(i, space, at);
        T *to = y + first + offset(at, space, b);
        store(to, load(to) + load(x + offset(at, space, a)));
    }
}

// Reads the oldest entry of a ring buffer and overwrites it; the first value fills all entries.
template <class U> FN void take_turn(const U *x, U *ring, const i64 *count, U *y, i64 n, i64 size) {
    EACH(i, n) {
        i64 place = *count % size;
        U *oldest = ring + (place < 0 ? place + size : place) * n + i;
        for (i64 k = 0; k < size && !*count; k++) ring[k * n + i] = x[i];
        y[i] = *oldest;
        *oldest = x[i];
    }
}
