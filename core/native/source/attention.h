// Attention of one key/value head of one row: the queries of all new positions and of all heads that share the keys.
//
// Every score and every output is one chain over head features or slots; masked slots add exact zeros. So a query's bits
// depend neither on other queries nor on how many slots are read after its own.
#pragma once

#include "vectors.h"

#define QUERY_BLOCK 48  // queries whose scores are held at once
#define SCORE_ROWS 6    // queries that are computed side by side,
#define MIXED_VECTORS (LANES / 4)  // with as many vectors of value features, so that 24 of 32 or 12 of 16 registers are sums

typedef struct {
    const void *keys, *values;  // of this row and head, [slots, head_dim]
    int is_bf16, head_dim, padded_dim;
    const void *mask;  // of this row, additive, a line per position; NULL: all slots before the end are seen
    size_t mask_stride;
    int num_positions;
} Head;

// Return the number of slots of which at least one position sees the last.
static int visible_end(const Head *head, int view_len) {
    int end = 0;
    for (int t = 0; t < head->num_positions; t++) {
        size_t line = t * head->mask_stride;
        int last = view_len;
        while (last > end && read_as(head->mask, line + last - 1, head->is_bf16) == -INFINITY) last--;
        end = last > end ? last : end;
    }
    return end;
}

// Lanes of two vectors, of which `step` by `step` blocks off the diagonal change places; LANES on are the second's.
#define LOW(LANE, STEP) ((LANE) & (STEP) ? LANES + (LANE) - (STEP) : (LANE))
#define HIGH(LANE, STEP) ((LANE) & (STEP) ? LANES + (LANE) : (LANE) + (STEP))
#define EXCHANGE(STEP) \
    for (int i = 0; i < LANES; i++) { \
        if (i & (STEP)) continue; \
        Floats a = lines[i], b = lines[i + (STEP)]; \
        lines[i] = SHUFFLE(a, b, LOW, STEP); \
        lines[i + (STEP)] = SHUFFLE(a, b, HIGH, STEP); \
    }

// Transpose a square of LANES by LANES numbers.
INLINE void transpose_square(Floats *lines) {
#pragma GCC unroll 16
    EXCHANGE(1)
#pragma GCC unroll 16
    EXCHANGE(2)
#pragma GCC unroll 16
    EXCHANGE(4)
#if LANES == 16
#pragma GCC unroll 16
    EXCHANGE(8)
#endif
}

// Write LANES keys `[LANES, head_dim]`, transposed to fp32 `[padded_dim, LANES]`.
INLINE void transpose_keys(const void *keys, size_t head_dim, int padded_dim, int is_bf16, float *to) {
    Floats lines[LANES];
    for (int d = 0; d < padded_dim; d += LANES) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) lines[i] = load_as(keys, i * head_dim + d, is_bf16);
        transpose_square(lines);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) store(to + (d + i) * LANES, lines[i]);
    }
}

// Write the scores of `count` queries for LANES transposed keys.
INLINE void score_keys(int count, const float *queries, int dim, const float *keys, float *scores, size_t stride) {
    Floats sums[SCORE_ROWS];
#pragma GCC unroll 6
    for (int i = 0; i < count; i++) sums[i] = (Floats){0};
    for (int d = 0; d < dim; d++) {
        Floats line = load(keys + d * LANES);
#pragma GCC unroll 6
        for (int i = 0; i < count; i++) sums[i] += line * queries[i * dim + d];
    }
#pragma GCC unroll 6
    for (int i = 0; i < count; i++) store(scores + i * stride, sums[i]);
}

// Write weighted sums of values for `count` queries and `vectors` times LANES features.
INLINE void mix_values(
    int count, int vectors, const float *weights, size_t stride, const void *values, size_t head_dim, int is_bf16,
    int end, float *to, int to_stride
) {
    Floats sums[SCORE_ROWS][MIXED_VECTORS];
#pragma GCC unroll 6
    for (int i = 0; i < count; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sums[i][v] = (Floats){0};
    for (int slot = 0; slot < end; slot++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            Floats value = load_as(values, slot * head_dim + v * LANES, is_bf16);
#pragma GCC unroll 6
            for (int i = 0; i < count; i++) sums[i][v] += value * weights[i * stride + slot];
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < count; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) store(to + i * to_stride + v * LANES, sums[i][v]);
}

// Turn the scores of one query for `end` slots, a multiple of LANES, into weights, in place.
INLINE void softmax(float *scores, int end, const Head *head, int position) {
    size_t line = position * head->mask_stride;
    Floats most = broadcast(-INFINITY), total = {0};
    for (int slot = 0; slot < end; slot += LANES) {
        Floats score = load(scores + slot);
        if (head->mask) score += load_as(head->mask, line + slot, head->is_bf16);
        store(scores + slot, score);
        most = maximum(score, most);  // of NaN and another number the second
    }
    float largest = max_lane(most);
    for (int slot = 0; slot < end; slot += LANES) {
        Floats weight = exponential(load(scores + slot) - largest);
        store(scores + slot, weight);
        total += weight;
    }
    float sum = sum_lanes(total), share = sum > 0 ? 1.0f / sum : 0.0f;
    for (int slot = 0; slot < end; slot += LANES) store(scores + slot, load(scores + slot) * share);
}

#define BY_COUNT(CALL) \
    switch (count) { \
        case 1: CALL(1); break; \
        case 2: CALL(2); break; \
        case 3: CALL(3); break; \
        case 4: CALL(4); break; \
        case 5: CALL(5); break; \
        default: CALL(6); \
    }

// Compute attention for `num_queries` scaled queries `[num_queries, padded_dim]`, of which query i belongs to position
// `(first + i) % num_positions`, and write outputs to `to`, as many and of the same shape.
//
// `scores` has room for QUERY_BLOCK lines of `end` slots, `keys` for one transposed block.
static void attend(
    const Head *head, const float *queries, int num_queries, int first, int end, float *scores, float *keys, float *to
) {
    const int dim = head->padded_dim, key_end = (end + LANES - 1) / LANES * LANES;
    const size_t head_dim = head->head_dim, bytes = head->is_bf16 ? sizeof(bf16) : sizeof(float);
    for (int slot = 0; slot < key_end; slot += LANES) {
        const char *block = (const char *)head->keys + slot * head_dim * bytes;
        if (head->is_bf16) transpose_keys(block, head_dim, dim, 1, keys);
        else transpose_keys(block, head_dim, dim, 0, keys);
        for (int q = 0; q < num_queries; q += SCORE_ROWS) {
            int count = num_queries - q;
#define SCORE(COUNT) score_keys(COUNT, queries + q * dim, dim, keys, scores + (size_t)q * key_end + slot, key_end)
            BY_COUNT(SCORE)
#undef SCORE
        }
    }
    for (int q = 0; q < num_queries; q++) {
        float *line = scores + (size_t)q * key_end;
        if (!head->mask)
            for (int slot = end; slot < key_end; slot++) line[slot] = -INFINITY;
        softmax(line, key_end, head, (first + q) % head->num_positions);
    }
    for (int q = 0; q < num_queries; q += SCORE_ROWS) {
        int count = num_queries - q;
        for (int d = 0; d < dim; d += MIXED_VECTORS * LANES) {
            const char *values = (const char *)head->values + d * bytes;
            int vectors = (dim - d) / LANES;
#define MIX(COUNT, VECTORS, BF16) \
    mix_values(COUNT, VECTORS, scores + (size_t)q * key_end, key_end, values, head_dim, BF16, end, to + q * dim + d, dim)
#define MIX_BF16(COUNT) MIX(COUNT, MIXED_VECTORS, 1)
#define MIX_FP32(COUNT) MIX(COUNT, MIXED_VECTORS, 0)
            if (vectors >= MIXED_VECTORS && head->is_bf16) { BY_COUNT(MIX_BF16) }
            else if (vectors >= MIXED_VECTORS) { BY_COUNT(MIX_FP32) }
            else
                for (int i = 0; i < (count < SCORE_ROWS ? count : SCORE_ROWS); i++)
                    for (int v = 0; v < vectors; v++)
                        mix_values(1, 1, scores + (size_t)(q + i) * key_end, key_end, values + v * LANES * bytes, head_dim,
                                   head->is_bf16, end, to + (q + i) * dim + d + v * LANES, dim);
        }
    }
}
