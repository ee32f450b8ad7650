// Exact models of device instructions, for hosts.

#include <cstring>

#define MODELED
template <class To, class From> static To same_bits(From from) {
    To to;
    static_assert(sizeof to == sizeof from, "types of one size");
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline float half_to_float(unsigned short bits) {  // cvt.f32.f16
    unsigned sign = (unsigned)(bits & 0x8000) << 16, rest = bits & 0x7fff;
    if (rest > 0x7c00) return same_bits<float>(0x7fffffffu);
    if (rest == 0x7c00) return same_bits<float>(sign | 0x7f800000u);
    if (rest >= 0x400) return same_bits<float>(sign | ((rest << 13) + 0x38000000u));
    float tiny = (float)rest * 5.9604644775390625e-08f;  // 2**-24
    return sign ? -tiny : tiny;
}
static inline unsigned short float_to_half(float wide) {  // cvt.rn.f16.f32
    unsigned bits = same_bits<unsigned>(wide), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000u) return 0x7fff;
    if (rest >= 0x47800000u) return sign | 0x7c00;
    if (rest < 0x38800000u) {  // subnormal: the addition rounds to multiples of 2**-24
        float shifted = same_bits<float>(rest) + 0.5f;
        return sign | (same_bits<unsigned>(shifted) - 0x3f000000u);
    }
    rest += 0xfff + (rest >> 13 & 1);
    return sign | (rest - 0x38000000u) >> 13;
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
