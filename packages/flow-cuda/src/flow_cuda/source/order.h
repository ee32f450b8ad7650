// Unsigned integer keys that are ordered like the numbers, and a stable radix sort of them.

// NaN is the largest number, and zeros of both signs are equal.
FN u32 key_of(float x) {
    if (x != x) return 0xffffffffu;
    u32 bits = bits_as<u32>(x == 0 ? 0.0f : x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
FN u64 key_of(double x) {
    if (x != x) return 0xffffffffffffffffull;
    u64 bits = bits_as<u64>(x == 0 ? 0.0 : x);
    return bits >> 63 ? ~bits : bits | 0x8000000000000000ull;
}
FN u32 key_of(i8 x) { return (u8)x ^ 0x80u; }
FN u32 key_of(u8 x) { return x; }
FN u32 key_of(bool x) { return x; }
FN u32 key_of(i32 x) { return (u32)x ^ 0x80000000u; }
FN u64 key_of(i64 x) { return (u64)x ^ 0x8000000000000000ull; }

// Index of the first maximum of each row.
template <class T, class K> FN void argmax(const T *x, i32 *out, i64 rows, i64 n) {
    EACH_BLOCK(r, rows) {
        K most = 0;
        EACH_THREAD(i, n) most = max_(most, (K)key_of(load(x + r * n + i)));
        most = over_block<Largest>(most);
        i64 place = n;
        EACH_THREAD(i, n) {
            if (i < place && (K)key_of(load(x + r * n + i)) == most) place = i;
        }
        place = over_block<Least>(place);
        if (threadIdx.x == 0) out[r] = (i32)place;
    }
}

// --- sorting, with ``parts`` ranges of keys

#define DIGITS 256
#define RANGE_OF(part) \
    i64 length = (n + parts - 1) / parts, start = part * length; \
    i64 stop = start + length < n ? start + length : n;

template <class T, class K> FN void keys_of(const T *x, K *keys, i64 n) {
    EACH(i, n) keys[i] = key_of(load(x + i));
}

template <class K> FN int digit(K key, i64 shift) { return (int)(key >> shift & (DIGITS - 1)); }

// Exclusive scan over the threads of a block.
template <class V> FN V before_in_block(V value) {
    SHARED(V, sums, [MOST_THREADS]);
    u32 own = threadIdx.x;
    __syncthreads();
    sums[own] = value;
    __syncthreads();
    for (u32 step = 1; step < BLOCK; step *= 2) {
        V other = own >= step ? sums[own - step] : (V)0;
        __syncthreads();
        sums[own] += other;
        __syncthreads();
    }
    return sums[own] - value;
}

// Histogram of digits per part: counts[digit, part].
template <class K> FN void count_digits(const K *keys, u32 *counts, i64 n, i64 parts, i64 shift) {
    SHARED(u32, found, [DIGITS]);
    EACH_BLOCK(part, parts) {
        RANGE_OF(part)
        __syncthreads();
        EACH_THREAD(d, DIGITS) found[d] = 0;
        __syncthreads();
        for (i64 i = start + threadIdx.x; i < stop; i += BLOCK) {
            atomicAdd(&found[digit(keys[i], shift)], 1u);
        }
        __syncthreads();
        EACH_THREAD(d, DIGITS) counts[d * parts + part] = found[d];
    }
}

// Scans the counts to the first position of each digit of each part.
FN void place_digits(u32 *counts, i64 size) {
    i64 length = (size + BLOCK - 1) / BLOCK;
    EACH_BLOCK(only, 1) {
        i64 start = threadIdx.x * length, stop = start + length < size ? start + length : size;
        u32 sum = 0;
        for (i64 i = start; i < stop; i++) sum += counts[i];
        u32 place = before_in_block(sum);
        for (i64 i = start; i < stop; i++) {
            u32 count = counts[i];
            counts[i] = place;
            place += count;
        }
    }
}

// Scatters keys by one digit; without ``order``, keys are in their original positions.
template <class K>
FN void move_digits(const K *keys, const i32 *order, K *to_keys, i32 *to_order, const u32 *counts,
                    i64 n, i64 parts, i64 shift) {
    SHARED(u32, next, [DIGITS]);
    SHARED(int, digits, [MOST_THREADS]);
    EACH_BLOCK(part, parts) {
        RANGE_OF(part)
        __syncthreads();
        EACH_THREAD(d, DIGITS) next[d] = counts[d * parts + part];
        for (i64 tile = start; tile < stop; tile += BLOCK) {
            i64 i = tile + threadIdx.x;
            int own = i < stop ? digit(keys[i], shift) : -1;
            __syncthreads();
            digits[threadIdx.x] = own;
            __syncthreads();
            u32 place = own < 0 ? 0 : next[own];
            for (u32 t = 0; t < threadIdx.x; t++) place += digits[t] == own;
            __syncthreads();
            if (own < 0) continue;
            atomicAdd(&next[own], 1u);
            to_keys[place] = keys[i];
            to_order[place] = order ? order[i] : (i32)i;
        }
    }
}

// --- slots of experts

// A block gives the slots of an expert of a group to its choices, in order: those of all tokens for
// the first choice, then for the next ones.
template <class I>
FN void expert_slots(const I *chosen, i32 *slots, i32 *tokens, i32 *load, i64 groups, i64 choices,
                     i64 count, i64 experts, i64 capacity) {
    EACH_BLOCK(b, groups * experts) {
        i64 group = b / experts, expert = b % experts, held = 0;
        for (i64 choice = 0; choice < choices; choice++) {
            i64 row = (group * choices + choice) * count, before = held;
            for (i64 tile = 0; tile < count; tile += BLOCK) {
                i64 token = tile + threadIdx.x;
                bool inside = token < count;
                i64 found = inside ? (i64)chosen[row + token] : expert + 1;
                u32 own = found == expert;
                i64 place = held + before_in_block(own);
                held += over_block<Sum>(own);
                bool fits = place < capacity;
                if (own) slots[row + token] = fits ? (i32)(expert * capacity + place) : -1;
                if (own && fits) tokens[b * capacity + place] = (i32)token;
                bool unknown = found < 0 || found >= experts;
                if (inside && unknown && expert == 0) slots[row + token] = -1;
            }
            if (threadIdx.x == 0) load[(group * choices + choice) * experts + expert] = (i32)(held - before);
        }
        for (i64 i = held + threadIdx.x; i < capacity; i += BLOCK) tokens[b * capacity + i] = -1;
    }
}

// --- updates of indexed rows.  Include after the row updates that codegen/updates.py writes.

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
