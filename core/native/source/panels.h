// Products with weights in panels of 32 outputs.
//
// A panel that was laid out for this library holds, for every input k, the weights of its 32 outputs side by side; in
// bf16 for every pair of inputs, with the two weights of an output next to each other, as the tiles of AMX and dot
// products of AVX-512 read them. Inputs are padded to a multiple of 32 and outputs to whole panels, with zeros.
//
// A panel may also be at most 32 lines of a weight as torch keeps it (`lines.h`).
#pragma once

#include "team.h"

#if defined(USE_AMX) || defined(USE_DOT_PRODUCTS)
#include <immintrin.h>
#define BF16_OPERANDS 1  // what bf16 weights are multiplied with is rounded to bf16
#else
#define BF16_OPERANDS 0
#endif

#define PANEL 32
#define PANEL_VECTORS (PANEL / LANES)
#if defined(__AVX512F__)
#define MAX_BLOCK_ROWS 14  // 28 of 32 registers are sums
#define MAX_SUMS 28
#else
#define MAX_BLOCK_ROWS 3  // 12 of 16
#define MAX_SUMS 12
#endif
#define MAX_GROUP 4  // panels that a few rows are multiplied with at once, so that enough sums run side by side

typedef struct {
    const char *panels;  // NULL: panels are lines
    const float *bias;  // per output of all panels, or NULL
    int32_t num_panels, inputs;  // inputs are padded
    const char *const *lines;  // per panel, its first line [line_size]; others follow it
    const int32_t *num_lines;  // per panel
    int32_t line_size;  // inputs without padding
} Matrix;

INLINE int operand_is_bf16(int is_bf16) { return is_bf16 && BF16_OPERANDS; }
INLINE size_t operand_bytes(int is_bf16) { return operand_is_bf16(is_bf16) ? sizeof(bf16) : sizeof(float); }
INLINE const char *panel_at(const Matrix *matrix, int panel, int is_bf16) {
    return matrix->panels + (size_t)panel * PANEL * matrix->inputs * (is_bf16 ? sizeof(bf16) : sizeof(float));
}

// Multiply `rows` rows with `group` panels; both are constants where this is inlined, so that sums stay in registers.
INLINE void multiply_fused(int rows, int group, int is_bf16, const Matrix *matrix, int panel, const float *x, float *y) {
    enum { STEP_BYTES = PANEL * sizeof(float) };  // one input in fp32, two in bf16
    Floats sums[MAX_BLOCK_ROWS][MAX_GROUP * PANEL_VECTORS];
    const char *weights[MAX_GROUP];
#pragma GCC unroll 4
    for (int g = 0; g < group; g++) weights[g] = panel_at(matrix, panel + g, is_bf16);
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int v = 0; v < group * PANEL_VECTORS; v++) sums[i][v] = (Floats){0};
    const int inputs = matrix->inputs;
    for (int k = 0; k < inputs; k += is_bf16 ? 2 : 1) {
        size_t offset = (size_t)(is_bf16 ? k / 2 : k) * STEP_BYTES;
#pragma GCC unroll 4
        for (int g = 0; g < group; g++) {
            const float *lines = (const float *)(weights[g] + offset);
            __builtin_prefetch(lines + 512);
            __builtin_prefetch(lines + 512 + 16);
            Floats even[PANEL_VECTORS], odd[PANEL_VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < PANEL_VECTORS; v++) {
                even[v] = load(lines + v * LANES);
                if (!is_bf16) continue;
                odd[v] = (Floats)((Bits)even[v] & 0xffff0000u);
                even[v] = (Floats)((Bits)even[v] << 16);
            }
#pragma GCC unroll 14
            for (int i = 0; i < rows; i++) {
                Floats operand = broadcast(x[(size_t)i * inputs + k]);
#pragma GCC unroll 4
                for (int v = 0; v < PANEL_VECTORS; v++) sums[i][g * PANEL_VECTORS + v] += even[v] * operand;
                if (!is_bf16) continue;
                operand = broadcast(x[(size_t)i * inputs + k + 1]);
#pragma GCC unroll 4
                for (int v = 0; v < PANEL_VECTORS; v++) sums[i][g * PANEL_VECTORS + v] += odd[v] * operand;
            }
        }
    }
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int v = 0; v < group * PANEL_VECTORS; v++) store(y + (i * group * PANEL_VECTORS + v) * LANES, sums[i][v]);
}

#define CASE(ROWS, GROUP) \
    case (ROWS) * 8 + (GROUP): multiply_fused(ROWS, GROUP, is_bf16, matrix, panel, x, y); return;

// Multiply a block of at most MAX_BLOCK_ROWS rows by fused multiply-adds: fp32 operands.
INLINE void multiply_block_fused(
    const Matrix *matrix, int is_bf16, int panel, int group, const float *x, int rows, float *y
) {
    switch (rows * 8 + group) {
        CASE(1, 1) CASE(1, 2) CASE(1, 3) CASE(1, 4) CASE(2, 1) CASE(2, 2) CASE(2, 3) CASE(2, 4)
#if MAX_BLOCK_ROWS > 2
        CASE(3, 1) CASE(3, 2) CASE(3, 3) CASE(3, 4) CASE(4, 1) CASE(4, 2) CASE(4, 3) CASE(5, 1) CASE(5, 2)
        CASE(6, 1) CASE(6, 2) CASE(7, 1) CASE(7, 2) CASE(8, 1) CASE(9, 1) CASE(10, 1) CASE(11, 1) CASE(12, 1) CASE(13, 1) CASE(14, 1)
#endif
    }
}

#undef CASE

#include "lines.h"

#if defined(USE_AMX)

#define MAX_TILE_ROWS 16

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((packed)) TileConfig;

// Multiply a block of at most 16 rows by tiles of 16 outputs and 32 inputs.
static void multiply_block_tiles(const Matrix *matrix, int panel, int group, const bf16 *x, int rows, float *y) {
    TileConfig config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.row_bytes[tile] = 64;
        config.rows[tile] = tile < 5 ? rows : 16;  // 0 to 3 are sums, 4 holds operands, 5 to 7 weights
    }
    _tile_loadconfig(&config);
    const int inputs = matrix->inputs, width = group * PANEL;
    for (int g = 0; g < group; g += 2) {
        const char *first = panel_at(matrix, panel + g, 1), *second = g + 1 < group ? panel_at(matrix, panel + g + 1, 1) : first;
        _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
        for (int k = 0; k < inputs; k += 32) {
            size_t offset = (size_t)k * PANEL * sizeof(bf16);
            for (int line = 0; line < 32; line++) {
                __builtin_prefetch(first + offset + 4096 + 64 * line);
                __builtin_prefetch(second + offset + 4096 + 64 * line);
            }
            _tile_loadd(4, x + k, inputs * sizeof(bf16));
            _tile_loadd(5, first + offset, 128); _tile_dpbf16ps(0, 4, 5);
            _tile_loadd(6, first + offset + 64, 128); _tile_dpbf16ps(1, 4, 6);
            _tile_loadd(7, second + offset, 128); _tile_dpbf16ps(2, 4, 7);
            _tile_loadd(5, second + offset + 64, 128); _tile_dpbf16ps(3, 4, 5);
        }
        float *to = y + g * PANEL;
        _tile_stored(0, to, width * sizeof(float)); _tile_stored(1, to + 16, width * sizeof(float));
        if (g + 1 < group) {
            _tile_stored(2, to + 32, width * sizeof(float)); _tile_stored(3, to + 48, width * sizeof(float));
        }
    }
}

#elif defined(USE_DOT_PRODUCTS)

// Multiply `rows` rows with `group` panels by dot products of pairs of inputs.
INLINE void multiply_dots(int rows, int group, const Matrix *matrix, int panel, const bf16 *x, float *y) {
    __m512 sums[MAX_BLOCK_ROWS][MAX_GROUP * PANEL_VECTORS];
    const char *weights[MAX_GROUP];
#pragma GCC unroll 4
    for (int g = 0; g < group; g++) weights[g] = panel_at(matrix, panel + g, 1);
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int v = 0; v < group * PANEL_VECTORS; v++) sums[i][v] = _mm512_setzero_ps();
    const int inputs = matrix->inputs;
    for (int k = 0; k < inputs; k += 2) {
        size_t offset = (size_t)k * PANEL * sizeof(bf16);
#pragma GCC unroll 4
        for (int g = 0; g < group; g++)
#pragma GCC unroll 2
            for (int v = 0; v < PANEL_VECTORS; v++) {
                __builtin_prefetch(weights[g] + offset + 2048 + 64 * v);
                __m512bh line = (__m512bh)_mm512_loadu_si512(weights[g] + offset + 64 * v);
#pragma GCC unroll 14
                for (int i = 0; i < rows; i++) {
                    int32_t pair;
                    memcpy(&pair, x + (size_t)i * inputs + k, sizeof pair);
                    __m512 *sum = &sums[i][g * PANEL_VECTORS + v];
                    *sum = _mm512_dpbf16_ps(*sum, line, (__m512bh)_mm512_set1_epi32(pair));
                }
            }
    }
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int v = 0; v < group * PANEL_VECTORS; v++)
            _mm512_storeu_ps(y + (i * group * PANEL_VECTORS + v) * LANES, sums[i][v]);
}

#define CASE(ROWS, GROUP) case (ROWS) * 8 + (GROUP): multiply_dots(ROWS, GROUP, matrix, panel, x, y); return;

static void multiply_block_dots(const Matrix *matrix, int panel, int group, const bf16 *x, int rows, float *y) {
    switch (rows * 8 + group) {
        CASE(1, 1) CASE(1, 2) CASE(1, 3) CASE(1, 4) CASE(2, 1) CASE(2, 2) CASE(2, 3) CASE(2, 4)
        CASE(3, 1) CASE(3, 2) CASE(3, 3) CASE(3, 4) CASE(4, 1) CASE(4, 2) CASE(4, 3) CASE(5, 1) CASE(5, 2)
        CASE(6, 1) CASE(6, 2) CASE(7, 1) CASE(7, 2) CASE(8, 1) CASE(9, 1) CASE(10, 1) CASE(11, 1) CASE(12, 1) CASE(13, 1) CASE(14, 1)
    }
}

#undef CASE
#endif

// Return how many rows are multiplied at once, the `rows` of a pass in blocks of nearly equal size.
INLINE int block_rows(int rows, int is_bf16) {
#if defined(USE_AMX)
    int most = is_bf16 ? MAX_TILE_ROWS : MAX_BLOCK_ROWS;
#else
    int most = MAX_BLOCK_ROWS;
    (void)is_bf16;
#endif
    int blocks = (rows + most - 1) / most;
    return (rows + blocks - 1) / blocks;
}

// Return how many panels blocks of `rows` rows are multiplied with at once.
INLINE int panel_group(int rows, int is_bf16) {
#if defined(USE_AMX)
    if (is_bf16) return MAX_GROUP;
#else
    (void)is_bf16;
#endif
    int group = MAX_SUMS / (PANEL_VECTORS * rows);
    return group < 1 ? 1 : group > MAX_GROUP ? MAX_GROUP : group;
}

// Multiply operands `[rows, inputs]` with `group` panels, without bias, to `[rows, group * PANEL]`.
static void multiply_block(
    const Matrix *matrix, int is_bf16, int panel, int group, const void *x, int rows, float *y
) {
    if (matrix->lines) { multiply_block_lines(matrix, is_bf16, panel, group, x, rows, y); return; }
    if (!is_bf16) { multiply_block_fused(matrix, 0, panel, group, x, rows, y); return; }
#if defined(USE_AMX)
    multiply_block_tiles(matrix, panel, group, x, rows, y);
#elif defined(USE_DOT_PRODUCTS)
    multiply_block_dots(matrix, panel, group, x, rows, y);
#else
    multiply_block_fused(matrix, 1, panel, group, x, rows, y);
#endif
}
