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
FN float uniform(i64 logical, u64 seed, u64 step) {
    u64 words[4] = {(u64)(logical / 8 + 1), step, 0, 0};
    philox(words, seed);
    int which = (int)(logical % 8);
    u64 word = which & 4 ? (which & 2 ? words[3] : words[2]) : (which & 2 ? words[1] : words[0]);
    return unit_float((u32)(word >> 32 * (which % 2)));
}

FN void random_mask(const i64 *step, i8 *keep, Space box, Strides whole, i64 low, u64 seed,
                    float rate) {
    EACH(i, box.size) keep[i] = rate < uniform(low + place(i, box, whole), seed, (u64)*step);
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
