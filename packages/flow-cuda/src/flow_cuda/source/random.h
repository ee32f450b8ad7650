// Philox4x64-10: element i of a draw is the same on every device, and as the CPU draws it.

FN u64 high_product(u64 a, u64 b) {
#ifdef __CUDA_ARCH__
    return __umul64hi(a, b);
#else
    return (u64)((unsigned __int128)a * b >> 64);
#endif
}

FN void philox(u64 *c, u64 key) {
    u64 k0 = key, k1 = 0;
    for (int round = 0; round < 10; round++) {
        u64 a = high_product(0xD2E7470EE14C6C93ull, c[0]), al = 0xD2E7470EE14C6C93ull * c[0];
        u64 b = high_product(0xCA5A826395121157ull, c[2]), bl = 0xCA5A826395121157ull * c[2];
        u64 c0 = b ^ c[1] ^ k0, c2 = a ^ c[3] ^ k1;
        c[0] = c0;
        c[1] = bl;
        c[2] = c2;
        c[3] = al;
        k0 += 0x9E3779B97F4A7C15ull;
        k1 += 0xBB67AE8584CAA73Bull;
    }
}

// Where an element of a box lies in the logical tensor: ``whole`` has its strides, ``low`` its start.
FN float uniform(i64 logical, u64 seed, u64 step, u64 draw) {
    u64 words[4] = {(u64)(logical / 8 + 1), step, draw, 0};
    philox(words, seed);
    u32 word = (u32)(words[logical % 8 / 2] >> 32 * (logical % 2));
    return (float)(word >> 8) * 5.9604644775390625e-08f;
}

FN void random_mask(const i64 *step, i8 *keep, Space box, Strides whole, i64 low, u64 seed,
                    float rate) {
    EACH(i, box.size) keep[i] = rate < uniform(low + place(i, box, whole), seed, (u64)*step, 0);
}

template <class T, class Y>
FN void bernoulli(const i64 *step, const T *chance, Y *y, Space box, Strides whole, i64 low,
                  u64 seed) {
    EACH(i, box.size) {
        float drawn = uniform(low + place(i, box, whole), seed, (u64)*step, 0);
        store(y + i, (typename In<Y>::type)(drawn < load(chance + i)));
    }
}
