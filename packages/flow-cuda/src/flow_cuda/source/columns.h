// Column sums of a matrix: each block sums a range of rows for several adjacent columns, then the
// partial sums are added in a fixed order that depends only on the number of parts.

struct Own {
    template <class V, class T, class S>
    __device__ static V of(const T *a, const T *, const S *, const S *, i64 at, i64) {
        return load(a + at);
    }
};
struct Times {
    template <class V, class T, class S>
    __device__ static V of(const T *a, const T *b, const S *, const S *, i64 at, i64) {
        return load(a + at) * load(b + at);
    }
};
// Multiplied by the normalized other operand; rows have n elements, each row its own mean.
struct TimesNormal {
    template <class V, class T, class S>
    __device__ static V of(const T *a, const T *b, const S *mean, const S *inverse, i64 at, i64 n) {
        i64 r = at / n;
        return load(a + at) * (load(b + at) - (V)load(mean + r)) * (V)load(inverse + r);
    }
};

#define MOST_ACROSS 32

template <class How, class T, class S, class V>
FN void column_parts(const T *a, const T *b, const S *mean, const S *inverse, V *sums, i64 rows,
                     i64 columns, i64 n, i64 parts) {
    SHARED(V, kept, [MOST_THREADS]);
    i64 across = BLOCK < 2 * MOST_ACROSS ? BLOCK / 4 : MOST_ACROSS;
    i64 lanes = BLOCK / across, lane = threadIdx.x / across;
    i64 blocks = (columns + across - 1) / across, length = (rows + parts - 1) / parts;
    EACH_BLOCK(block, blocks * parts) {
        i64 column = block % blocks * across + threadIdx.x % across, part = block / blocks;
        i64 stop = part * length + length < rows ? part * length + length : rows;
        V sum = 0;
        if (column < columns) {
            for (i64 r = part * length + lane; r < stop; r += lanes) {
                sum += How::template of<V>(a, b, mean, inverse, r * columns + column, n);
            }
        }
        __syncthreads();
        kept[threadIdx.x] = sum;
        __syncthreads();
        if (lane || column >= columns) continue;
        for (i64 other = 1; other < lanes; other++) sum += kept[other * across + threadIdx.x];
        sums[part * columns + column] = sum;
    }
}

template <class V, class Y> FN void column_totals(const V *sums, Y *y, i64 columns, i64 parts) {
    EACH(j, columns) {
        V sum = 0;
        for (i64 part = 0; part < parts; part++) sum += sums[part * columns + j];
        store(y + j, sum);
    }
}
