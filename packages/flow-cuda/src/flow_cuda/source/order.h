// Stable sorting by unsigned integer keys that are ordered like the numbers.  Short rows are
// sorted by rank; long rows by radix sort, with ``parts`` per row.

// NaN sorts last, and zeros of both signs are equal.
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

template <class T, class K> FN void keys_of(const T *x, K *keys, i64 size, i64 descending) {
    EACH(i, size) {
        K key = key_of(load(x + i));
        keys[i] = descending ? (K)~key : key;
    }
}

template <class K>
FN void rank_keys(const K *keys, K *sorted, i32 *order, i64 rows, i64 n) {
    EACH(i, rows * n) {
        i64 start = i / n * n, own = i % n, rank = 0;
        K key = keys[i];
        for (i64 j = 0; j < n; j++) {
            K other = keys[start + j];
            rank += other < key || (other == key && j < own);
        }
        sorted[start + rank] = key;
        order[start + rank] = (i32)own;
    }
}

// --- long rows

#define DIGITS 256
#define PART_OF_ROW(block) \
    i64 row = (block) / parts, part = (block) % parts, length = (n + parts - 1) / parts; \
    i64 start = part * length, stop = start + length < n ? start + length : n;

template <class K> FN int digit(K key, i64 shift) { return (int)(key >> shift & (DIGITS - 1)); }

// Exclusive scan over the threads of a block, and the total.
template <class V> FN V before_in_block(V value, V *total) {
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
    *total = sums[BLOCK - 1];
    return sums[own] - value;
}

// Histogram of digits per part: counts[row, digit, part].
template <class K>
FN void count_digits(const K *keys, u32 *counts, i64 rows, i64 n, i64 parts, i64 shift) {
    SHARED(u32, found, [DIGITS]);
    EACH_BLOCK(block, rows * parts) {
        PART_OF_ROW(block)
        __syncthreads();
        EACH_THREAD(d, DIGITS) found[d] = 0;
        __syncthreads();
        for (i64 i = start + threadIdx.x; i < stop; i += BLOCK) {
            atomicAdd(&found[digit(keys[row * n + i], shift)], 1u);
        }
        __syncthreads();
        EACH_THREAD(d, DIGITS) counts[(row * DIGITS + d) * parts + part] = found[d];
    }
}

// Scans the counts to the first position of each digit of each part in its row.
FN void place_digits(u32 *counts, i64 rows, i64 size) {
    i64 length = (size + BLOCK - 1) / BLOCK;
    EACH_BLOCK(row, rows) {
        u32 *own = counts + row * size, sum = 0, all;
        i64 start = threadIdx.x * length, stop = start + length < size ? start + length : size;
        for (i64 i = start; i < stop; i++) sum += own[i];
        u32 place = before_in_block(sum, &all);
        for (i64 i = start; i < stop; i++) {
            u32 count = own[i];
            own[i] = place;
            place += count;
        }
    }
}

// Scatters keys by one digit; without ``order``, keys are in their original positions.
template <class K>
FN void move_digits(const K *keys, const i32 *order, K *to_keys, i32 *to_order, const u32 *counts,
                    i64 rows, i64 n, i64 parts, i64 shift) {
    SHARED(u32, next, [DIGITS]);
    SHARED(int, digits, [MOST_THREADS]);
    EACH_BLOCK(block, rows * parts) {
        PART_OF_ROW(block)
        __syncthreads();
        EACH_THREAD(d, DIGITS) next[d] = counts[(row * DIGITS + d) * parts + part];
        for (i64 tile = start; tile < stop; tile += BLOCK) {
            i64 i = tile + threadIdx.x, at = row * n + i;
            int own = i < stop ? digit(keys[at], shift) : -1;
            __syncthreads();
            digits[threadIdx.x] = own;
            __syncthreads();
            u32 place = own < 0 ? 0 : next[own];
            for (u32 t = 0; t < threadIdx.x; t++) place += digits[t] == own;
            __syncthreads();
            if (own < 0) continue;
            atomicAdd(&next[own], 1u);
            to_keys[row * n + place] = keys[at];
            to_order[row * n + place] = order ? order[at] : (i32)i;
        }
    }
}

// --- uses of an order

FN void take_order(const i32 *order, i32 *out, i64 rows, i64 n, i64 kept) {
    EACH(i, rows * kept) out[i] = order[i / kept * n + i % kept];
}

template <class U>
FN void take_sorted(const U *x, const i32 *order, U *y, i64 rows, i64 n) {
    EACH(i, rows * n) y[i] = x[i / n * n + order[i]];
}

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

// 0 for targets out of range, and for rows with non-finite values.
template <class T, class I>
FN void in_top_k(const I *targets, const T *x, i8 *out, i64 rows, i64 n, i64 k) {
    EACH_BLOCK(r, rows) {
        i64 want = (i64)targets[r], beaten = 0;
        bool valid = want >= 0 && want < n;
        EACH_THREAD(i, n) {
            bool finite = is_finite(load(x + r * n + i));
            bool above = valid && load(x + r * n + i) > load(x + r * n + want);
            beaten += finite ? above : n + k;
        }
        beaten = over_block<Sum>(beaten);
        if (threadIdx.x == 0) out[r] = valid && beaten < k;
    }
}
