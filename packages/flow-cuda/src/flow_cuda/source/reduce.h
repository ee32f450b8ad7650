// Reductions.  Map: applied to elements first; How: combines two results.

struct Plain { template <class V> __device__ static V of(V x) { return x; } };
// Squares are computed in the type of their sum, which may be wider.
struct Squared { template <class A, class V> __device__ static A of(V x) { return (A)x * (A)x; } };
struct NotFinite { template <class A, class V> __device__ static A of(V x) { return (A)!is_finite(x); } };
struct NotZero { template <class V> __device__ static V of(V x) { return (V)(x != (V)0); } };

// The result of an empty reduction.
template <class How, class V> struct Nothing { __device__ static V is() { return (V)0; } };
template <class V> struct Nothing<Product, V> { __device__ static V is() { return (V)1; } };
template <class V> struct Nothing<All, V> { __device__ static V is() { return (V)1; } };
template <class V, bool most> struct End;
#define ENDS(V, low, high) \
    template <> struct End<V, false> { __device__ static V is() { return low; } }; \
    template <> struct End<V, true> { __device__ static V is() { return high; } };
ENDS(float, -infinity<float>(), infinity<float>())
ENDS(double, -infinity<double>(), infinity<double>())
ENDS(i8, -128, 127)
ENDS(u8, 0, 255)
ENDS(i32, -2147483647 - 1, 2147483647)
ENDS(i64, -9223372036854775807ll - 1, 9223372036854775807ll)
ENDS(bool, false, true)
template <class V> struct Nothing<Largest, V> {
    __device__ static V is() { return End<V, false>::is(); }
};
template <class V> struct Nothing<Least, V> { __device__ static V is() { return End<V, true>::is(); } };

// One thread per result.  V: the computation type.
template <class How, class Map, class T, class Y, class V = typename In<T>::type>
FN void reduce(const T *x, Y *y, Space kept, Strides outer, Space gone, Strides inner) {
    EACH(j, kept.size) {
        const T *from = x + place(j, kept, outer);
        V result = Nothing<How, V>::is();
        for (i64 i = 0; i < gone.size; i++) {
            result = (V)How::of(result, (V)Map::of((V)load(from + place(i, gone, inner))));
        }
        store(y + j, result);
    }
}

// One block per result.
template <class How, class Map, class T, class Y, class V = typename In<T>::type>
FN void reduce_wide(const T *x, Y *y, Space kept, Strides outer, Space gone, Strides inner) {
    EACH_BLOCK(j, kept.size) {
        const T *from = x + place(j, kept, outer);
        V result = Nothing<How, V>::is();
        EACH_THREAD(i, gone.size) {
            result = (V)How::of(result, (V)Map::of((V)load(from + place(i, gone, inner))));
        }
        result = over_block<How>(result);
        if (threadIdx.x == 0) store(y + j, result);
    }
}

// Means from sums.
template <class V, class Y> FN void quotients(const V *sums, Y *y, i64 size, V count) {
    EACH(j, size) store(y + j, sums[j] / count);
}

// A sum of all elements in two steps: first ``parts`` partial sums, regardless of the grid size.
template <class Map, class T, class A>
FN void partial_sums(const T *x, A *sums, i64 size, i64 parts) {
    i64 length = (size + parts - 1) / parts;
    EACH_BLOCK(part, parts) {
        i64 stop = part * length + length;
        if (stop > size) stop = size;
        A sum = 0;
        for (i64 i = part * length + threadIdx.x; i < stop; i += BLOCK) {
            sum += Map::template of<A>(load(x + i));
        }
        sum = over_block<Sum>(sum);
        if (threadIdx.x == 0) sums[part] = sum;
    }
}

template <class A, class Y> FN void total(const A *sums, Y *y, i64 parts) {
    if (blockIdx.x) return;
    A sum = 0;
    EACH_THREAD(i, parts) sum += sums[i];
    sum = over_block<Sum>(sum);
    if (threadIdx.x == 0) store(y, sum);
}
