// Philox4x64-10: element i of a draw is the same on every device and on the CPU.

FN void philox(u64 *c, u64 key) {
    u64 k0 = key, k1 = 0;
    for (int round = 0; round < 10; round++) {
        u64 a = __umul64hi(0xD2E7470EE14C6C93ull, c[0]), al = 0xD2E7470EE14C6C93ull * c[0];
        u64 b = __umul64hi(0xCA5A826395121157ull, c[2]), bl = 0xCA5A826395121157ull * c[2];
        u64 c0 = b ^ c[1] ^ k0, c2 = a ^ c[3] ^ k1;
        c[0] = c0;
        c[1] = bl;
        c[2] = c2;
        c[3] = al;
        k0 += 0x9E3779B97F4A7C15ull;
        k1 += 0xBB67AE8584CAA73Bull;
    }
}

FN float unit_float(u32 word) { return (float)(word >> 8) * 5.9604644775390625e-08f; }

// Index of a box element in the logical tensor: ``whole`` has its strides, ``low`` the box's start.
FN float uniform(i64 logical, u64 seed, u64 step, u64 draw) {
    u64 words[4] = {(u64)(logical / 8 + 1), step, draw, 0};
    philox(words, seed);
    int which = (int)(logical % 8);
    u64 word = which & 4 ? (which & 2 ? words[3] : words[2]) : (which & 2 ? words[1] : words[0]);
    return unit_float((u32)(word >> 32 * (which % 2)));
}

FN void random_mask(const i64 *step, i8 *keep, Space box, Strides whole, i64 low, u64 seed,
                    float rate) {
    EACH(i, box.size) keep[i] = rate < uniform(low + place(i, box, whole), seed, (u64)*step, 0);
}

// The same for adjacent elements from ``low`` on, a multiple of eight: each block of Philox gives
// the eight elements of a thread.
FN void random_mask_row(const i64 *step, i8 *keep, i64 size, i64 low, u64 seed, float rate) {
    EACH(block, (size + 7) / 8) {
        u64 words[4] = {(u64)(low / 8 + block + 1), (u64)*step, 0, 0};
        philox(words, seed);
        Pack<i8, 8> pack;
        _Pragma("unroll") for (int k = 0; k < 8; k++) {
            pack.each[k] = rate < unit_float((u32)(words[k / 2] >> 32 * (k % 2)));
        }
        if (block * 8 + 8 <= size) {
            store_pack(keep + block * 8, pack);
        } else {
            _Pragma("unroll") for (int k = 0; k < 8; k++) {
                if (block * 8 + k < size) keep[block * 8 + k] = pack.each[k];
            }
        }
    }
}

template <class T, class Y>
FN void bernoulli(const i64 *step, const T *chance, Y *y, Space box, Strides whole, i64 low,
                  u64 seed) {
    EACH(i, box.size) {
        float drawn = uniform(low + place(i, box, whole), seed, (u64)*step, 0);
        store(y + i, (typename In<Y>::type)(drawn < load(chance + i)));
    }
}

// Keys whose sort order is a permutation: 48 random bits, truncated as on the CPU.
FN void permutation_keys(const i64 *step, u64 *keys, i64 count, u64 seed, i64 cut) {
    EACH(i, count) {
        u64 high = (u64)(uniform(i, seed, (u64)*step, 0) * 16777216.0f);
        u64 low = (u64)(uniform(i, seed, (u64)*step, 1) * 16777216.0f);
        keys[i] = (high << 24 | low) >> cut;
    }
}

// --- class sampling: a range's labels come first, then the classes with the lowest random keys

template <class L> FN void mark_labels(const L *label, i32 *marks, i64 count, i64 rows, i64 first) {
    EACH(i, count) {
        i64 row = (i64)label[i] - first;
        if (row >= 0 && row < rows) atomicMax(marks + row, 1);
    }
}

FN void class_keys(const i64 *step, const i32 *marks, u32 *keys, i64 rows, i64 first, u64 seed) {
    EACH(i, rows) {
        float drawn = uniform(first + i, seed, (u64)*step, 0);
        keys[i] = marks[i] ? 0 : bits_as<u32>(drawn) + 1;
    }
}

template <class L>
FN void sampled_classes(const i32 *order, L *chosen, i64 ranges, i64 size, i64 share, i64 first) {
    EACH(i, ranges * share) {
        i64 range = i / share;
        chosen[i] = (L)(first + range * size + order[range * size + i % share]);
    }
}

// Positions of labels in the sample: the distinct labels of a range, in ascending order.  Labels
// beyond the range's share get -1, since a kernel cannot raise an error.
template <class L>
FN void sampled_places(const L *label, L *place, i64 count, i64 size, i64 share) {
    EACH(i, count) {
        i64 own = (i64)label[i], range = own / size, rank = 0;
        for (i64 j = 0; j < count; j++) {
            i64 other = (i64)label[j];
            if (other >= own || other / size != range) continue;
            bool seen = false;
            for (i64 k = 0; k < j && !seen; k++) seen = label[k] == label[j];
            rank += !seen;
        }
        place[i] = (L)(rank < share ? range * share + rank : -1);
    }
}

// Scatters the sampled rows to their classes; rows of classes outside of the range are dropped.
template <class U, class L>
FN void put_sampled(const U *dy, const L *chosen, U *dx, i64 ranges, i64 size, i64 share, i64 inner,
                    i64 first) {
    EACH(i, ranges * share * inner) {
        i64 own = i / inner, range = own / share, row = (i64)chosen[own] - first;
        if (row >= range * size && row < (range + 1) * size) dx[row * inner + i % inner] = dy[i];
    }
}
