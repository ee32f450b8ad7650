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
