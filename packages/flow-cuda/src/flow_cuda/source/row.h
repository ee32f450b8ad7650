// Rows of n elements: in registers of the threads of a warp (N vectors of W elements per thread), or,
// if N is 0, read from memory by the threads of a block each time.  Elements of vectors are adjacent;
// if W is 1, elements have stride ``inner``.

// Hides from the compiler which bits of a number are 0: it would not add constants to addresses.
FN u32 unknown(u32 x) {
#ifndef MODELED
    asm("" : "+r"(x));
#endif
    return x;
}

// Orders what the threads of a warp have read before what they write; blocks have barriers.
FN void after_reads() {
#ifndef MODELED
    __syncwarp();
#endif
}

template <class T, int N, int W> struct Row {
    typedef typename In<T>::type V;
    typedef Pack<V, W> Vector;
    const T *from;
    i64 n, inner, first;
    Vector kept[N ? N : 1];

    __device__ __forceinline__ Row(const T *from, i64 n, i64 inner)
        : from(from), n(n), inner(inner), first(unknown(threadIdx.x % LANES * W)) {
        UNROLL for (int k = 0; k < N; k++) {
            if (has(k)) kept[k] = read(place(k));
        }
    }
    __device__ __forceinline__ i64 place(int k) const { return first + k * (i64)(LANES * W); }
    __device__ __forceinline__ bool has(int k) const {
        return (k + 1) * (i64)(LANES * W) <= n || place(k) < n;
    }
    __device__ __forceinline__ Vector read(i64 i) const {
        Pack<T, W> pack = load_pack<W>(from + i * inner);
        Vector made;
        UNROLL for (int j = 0; j < W; j++) made.each[j] = load(pack.each + j);
        return made;
    }
};

template <class T, int W> FN Pack<typename In<T>::type, W> &vector_of(Row<T, 0, W> &row, int, i64 i) {
    return row.kept[0] = row.read(i);
}
template <class T, int N, int W>
FN Pack<typename In<T>::type, W> &vector_of(Row<T, N, W> &row, int k, i64) {
    return row.kept[k];
}

// Writes elements that the kernel does not read again, because the compiler does not know that memory
// changes here; it may split an assignment.
template <int N, class T> FN void write_pack(T *to, const Pack<T, N> &pack) {
#ifndef MODELED
    if constexpr (sizeof pack == 16) {
        union { Pack<T, N> pack; u32 word[4]; } bits = {pack};
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                     :: "l"(to), "r"(bits.word[0]), "r"(bits.word[1]), "r"(bits.word[2]),
                        "r"(bits.word[3]));
        return;
    }
#endif
    store_pack(to, pack);
}

// Calls f(index of the first element, a vector of each row) for all vectors.
template <class F, class T, int W, class... More>
FN void each_vector(F f, Row<T, 0, W> &row, More &...more) {
    LOOP(i, threadIdx.x * W, row.n, BLOCK * W) {
        f(i, vector_of(row, 0, i), vector_of(more, 0, i)...);
    }
}
template <class F, class T, int N, int W, class... More>
FN void each_vector(F f, Row<T, N, W> &row, More &...more) {
    UNROLL for (int k = 0; k < N; k++) {
        i64 i = row.place(k);
        if (row.has(k)) f(i, vector_of(row, k, i), vector_of(more, k, i)...);
    }
}
// Calls f(an element of each row).
template <class F, class T, int N, int W, class... More>
FN void each_of(F f, Row<T, N, W> &row, More &...more) {
    each_vector([&](i64, auto &...vectors) {
        UNROLL for (int j = 0; j < W; j++) f(vectors.each[j]...);
    }, row, more...);
}
// Writes f(an element of each row) to a row.
template <class F, class T, int N, int W, class... More>
FN void write_row(T *to, F f, Row<T, N, W> &row, More &...more) {
    each_vector([&](i64 i, auto &...vectors) {
        Pack<T, W> made;
        UNROLL for (int j = 0; j < W; j++) store(made.each + j, f(vectors.each[j]...));
        write_pack(to + i * row.inner, made);
    }, row, more...);
}

// The number of a warp in its block.  The exchange tells the compiler that a warp never diverges.
#ifdef MODELED
FN u32 own_warp() { return threadIdx.x / LANES; }
#else
FN u32 own_warp() { return __shfl_sync(0xffffffffu, threadIdx.x / WARP, 0); }
#endif

#define FIRST_ROW(N) (N ? (i64)blockIdx.x * (BLOCK / LANES) + own_warp() : (i64)blockIdx.x)
#define EACH_ROW(N, r, rows) \
    LOOP(r, FIRST_ROW(N), rows, N ? (i64)gridDim.x * (BLOCK / LANES) : (i64)gridDim.x)
// Whether a thread is the first one of those that share a row.
#define LEADS(N) ((N ? threadIdx.x % LANES : threadIdx.x) == 0)

// Numbers that are NaN are left out.
struct Most {
    __device__ static float of(float a, float b) { return fmaxf(a, b); }
    __device__ static double of(double a, double b) { return fmax(a, b); }
};
template <class How, int N, class V> FN V over_row(V value) {
    if constexpr (N > 0) return over_warp<How>(value);
    else return over_block<How>(value);
}
