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

// Truncated means of integers, one block per result: sums of quotients and of rests do not overflow.
template <class T>
FN void integer_means(const T *x, T *y, Space kept, Strides outer, Space gone, Strides inner,
                      i64 count) {
    EACH_BLOCK(j, kept.size) {
        const T *from = x + place(j, kept, outer);
        i64 mean = 0, rest = 0;
        EACH_THREAD(i, gone.size) {
            i64 value = from[place(i, gone, inner)];
            mean += value / count;
            rest += value % count;
        }
        mean = over_block<Sum>(mean);
        rest = over_block<Sum>(rest);
        mean += rest / count;
        rest %= count;
        mean += (mean < 0 && rest > 0) - (mean > 0 && rest < 0);
        if (threadIdx.x == 0) y[j] = (T)mean;
    }
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

// dx[i] = dy * product of the other elements that were reduced to the same result.
template <class T>
FN void product_grad(const T *x, const T *dy, T *dx, Space kept, Strides outer, Space gone,
                     Strides inner) {
    typedef typename In<T>::type V;
    EACH(item, kept.size * gone.size) {
        i64 j = item / gone.size, own = item % gone.size, start = place(j, kept, outer);
        V rest = load(dy + j);
        for (i64 i = 0; i < gone.size; i++) {
            if (i != own) rest *= load(x + start + place(i, gone, inner));
        }
        store(dx + start + place(own, gone, inner), rest);
    }
}

// Sums up to each element of a line: one thread per line, which adds in numpy's order.
template <class T>
FN void cumulative_sums(const T *x, T *y, i64 lines, i64 n, i64 inner, i64 exclusive, i64 reverse) {
    typedef typename In<T>::type V;
    EACH(line, lines) {
        i64 start = line / inner * n * inner + line % inner;
        V sum = 0;
        for (i64 k = 0; k < n; k++) {
            i64 at = start + (reverse ? n - 1 - k : k) * inner;
            V value = load(x + at), next = k ? sum + value : value;
            store(y + at, exclusive ? sum : next);
            sum = next;
        }
    }
}
