// Vectors of floats as wide as a register, in the compiler's own notation, so that one source serves every instruction
// set.
//
// Sums must not depend on how many rows share a pass. Therefore every output is one chain of fused multiply-adds in a
// fixed order, and only how many chains run side by side depends on the shape.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// Every source file is compiled once per instruction set, whose name its exported functions end with.
#define JOIN(NAME, SET) NAME##_##SET
#define NAMED(NAME, SET) JOIN(NAME, SET)
#define EXPORT(NAME) __attribute__((visibility("default"))) NAMED(NAME, INSTRUCTION_SET)

#define INLINE static inline __attribute__((always_inline))
#if defined(__AVX512F__)
#define LANES 16
#else
#define LANES 8
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef uint16_t bf16;  // the upper half of a float

INLINE int round_up(int count, int multiple) { return (count + multiple - 1) / multiple * multiple; }
INLINE Floats load(const float *from) { Floats v; memcpy(&v, from, sizeof v); return v; }
INLINE void store(float *to, Floats v) { memcpy(to, &v, sizeof v); }

INLINE Floats broadcast(float v) {  // not `value + (Floats){0}`, an addition that compilers keep because of -0
#if LANES == 16
    return (Floats){v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v};
#else
    return (Floats){v, v, v, v, v, v, v, v};
#endif
}

// Return the larger of two values, lane by lane; the second if one of them is NaN.
INLINE Floats maximum(Floats a, Floats b) {
    Ints larger = a > b;
    return (Floats)(((Ints)a & larger) | ((Ints)b & ~larger));
}

INLINE float widen(bf16 value) {
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

// Return the nearest bf16, the even one if two are equally near; NaN stays NaN.
INLINE bf16 narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return (bf16)(bits >> 16 | 0x40);
    return (bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

INLINE Floats load_bf16(const bf16 *from) {
#if defined(__AVX512F__)  // of __builtin_convertvector compilers make twice as many instructions
    Bits wide = (Bits)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from));
#elif defined(__AVX2__)
    Bits wide = (Bits)_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)from));
#else
    Halves halves;
    memcpy(&halves, from, sizeof halves);
    Bits wide = __builtin_convertvector(halves, Bits);
#endif
    return (Floats)(wide << 16);
}

// Read LANES numbers of a type that is known when the function is inlined.
INLINE Floats load_as(const void *from, size_t index, int is_bf16) {
    return is_bf16 ? load_bf16((const bf16 *)from + index) : load((const float *)from + index);
}

INLINE float read_as(const void *from, size_t index, int is_bf16) {
    return is_bf16 ? widen(((const bf16 *)from)[index]) : ((const float *)from)[index];
}

INLINE void write_as(void *to, size_t index, float value, int is_bf16) {
    if (is_bf16) ((bf16 *)to)[index] = narrow(value);
    else ((float *)to)[index] = value;
}

// Add all lanes, in a fixed order.
INLINE float sum_lanes(Floats v) {
    float lanes[LANES];
    store(lanes, v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

// Shuffle two vectors: lane i of the result is lane OF(i, STEP) of them, of which LANES on are the second's.
#define EIGHT(OF, FIRST, STEP) \
    OF(FIRST, STEP), OF(FIRST + 1, STEP), OF(FIRST + 2, STEP), OF(FIRST + 3, STEP), OF(FIRST + 4, STEP), \
    OF(FIRST + 5, STEP), OF(FIRST + 6, STEP), OF(FIRST + 7, STEP)
#if LANES == 16
#define EACH(OF, STEP) EIGHT(OF, 0, STEP), EIGHT(OF, 8, STEP)
#else
#define EACH(OF, STEP) EIGHT(OF, 0, STEP)
#endif
#if defined(__clang__)
#define SHUFFLE(A, B, OF, STEP) __builtin_shufflevector(A, B, EACH(OF, STEP))
#else
#define SHUFFLE(A, B, OF, STEP) __builtin_shuffle(A, B, (Ints){EACH(OF, STEP)})
#endif

#define FIRST_HALF(LANE, HALF) ((LANE) / (HALF) * 2 * (HALF) + (LANE) % (HALF))
#define SECOND_HALF(LANE, HALF) (FIRST_HALF(LANE, HALF) + (HALF))
#define FOLD(HALF) return SHUFFLE(a, b, FIRST_HALF, HALF) + SHUFFLE(a, b, SECOND_HALF, HALF)

// Fold two vectors of segments of twice `half` lanes: add the second half of every segment to its first. The segments of
// the result are those of `a`, then those of `b`.
INLINE Floats fold_segments(Floats a, Floats b, int half) {
    switch (half) {
        case 1: FOLD(1);
        case 2: FOLD(2);
        case 4: FOLD(4);
#if LANES == 16
        case 8: FOLD(8);
#endif
    }
    __builtin_unreachable();
}

// Add all lanes of every one of `count` vectors, a power of two that is known when the function is inlined, in the order
// of `sum_lanes`.
INLINE void sum_lanes_of(const Floats *vectors, int count, float *sums) {
    Floats folded[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < count; i++) folded[i] = vectors[i];
    int left = count;
#pragma GCC unroll 4
    for (int half = LANES / 2; half; half /= 2) {
        if (left == 1) {
            folded[0] = fold_segments(folded[0], folded[0], half);
            continue;
        }
        left /= 2;
#pragma GCC unroll 8
        for (int i = 0; i < left; i++) folded[i] = fold_segments(folded[2 * i], folded[2 * i + 1], half);
    }
    memcpy(sums, folded, count * sizeof(float));
}

INLINE float max_lane(Floats v) {
    float lanes[LANES];
    store(lanes, v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    return lanes[0];
}

// Return e^x within two units in the last place; 0 below -87, which covers -inf, and a large number above 88.
INLINE Floats exponential(Floats x) {
    const float lowest = -87.0f, highest = 88.0f;
    Ints is_normal = x >= lowest;
    Floats low = broadcast(lowest), high = broadcast(highest);
    x = maximum(x, low);
    x = -maximum(-x, -high);
    // x = n ln 2 + r; adding and subtracting 1.5 * 2^23 rounds to the nearest integer
    Floats shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    Floats r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    // coefficients of Cephes' expf (Moshier)
    Floats p = broadcast(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    Ints scale = ((Ints)shifted - 0x4b400000 + 127) << 23;
    return (Floats)((Ints)(p * (Floats)scale) & is_normal);
}
