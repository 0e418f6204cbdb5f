// Products with weights as torch keeps them, a line of inputs per output, which need no second copy.
//
// Every output is a sum per lane, over the inputs of that lane in order, and then over the lanes. So its bits depend
// neither on the number of rows nor on how many outputs are computed side by side.

#if defined(USE_DOT_PRODUCTS) || defined(USE_AMX)  // processors with AMX have dot products of bf16
#define DOT_LINES 1
#else
#define DOT_LINES 0
#endif
#define MAX_LINES 8  // outputs that are computed side by side
#if defined(__AVX512F__)
#define MAX_LINE_ROWS 6
#else
#define MAX_LINE_ROWS 3
#endif

// Multiply `rows` rows with `count` lines; both are constants where this is inlined, so that sums stay in registers.
// Output i of row r is written to y[r * width + i].
INLINE void multiply_lines(
    int rows, int count, int is_bf16, const char *line, int inputs, const void *x, float *y, int width
) {
    const size_t size = is_bf16 ? sizeof(bf16) : sizeof(float), stride = inputs * size;
    Floats sums[MAX_LINE_ROWS][MAX_LINES];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) sums[r][i] = (Floats){0};
    const int step = is_bf16 && DOT_LINES ? 2 * LANES : LANES;
    for (int k = 0; k < inputs; k += step) {
#if DOT_LINES
        __m512bh pairs[MAX_LINES];
#endif
        Floats weights[MAX_LINES];
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) {
            const char *from = line + i * stride + k * size;
            __builtin_prefetch(from + count * stride);  // the same inputs of the next lines
#if DOT_LINES
            if (is_bf16) pairs[i] = (__m512bh)_mm512_loadu_si512(from);
            else
#endif
            weights[i] = load_as(from, 0, is_bf16);
        }
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
#if DOT_LINES
            if (is_bf16) {
                __m512bh operand = (__m512bh)_mm512_loadu_si512((const bf16 *)x + (size_t)r * inputs + k);
#pragma GCC unroll 8
                for (int i = 0; i < count; i++)
                    sums[r][i] = (Floats)_mm512_dpbf16_ps((__m512)sums[r][i], pairs[i], operand);
                continue;
            }
#endif
            Floats operand = load((const float *)x + (size_t)r * inputs + k);
#pragma GCC unroll 8
            for (int i = 0; i < count; i++) sums[r][i] += weights[i] * operand;
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) sum_lanes_of(sums[r], count, y + r * width);
}

#define CASE(ROWS, COUNT) \
    case (ROWS): \
        for (; line + (COUNT) <= lines; line += (COUNT)) \
            multiply_lines(ROWS, COUNT, is_bf16, first + line * stride, inputs, x, y + line, width); \
        for (; line < lines; line++) \
            multiply_lines(ROWS, 1, is_bf16, first + line * stride, inputs, x, y + line, width); \
        break;

// Multiply at most MAX_LINE_ROWS rows with all lines of a panel.
INLINE void multiply_line_panel(
    int rows, int is_bf16, const char *first, int lines, int inputs, const void *x, float *y, int width
) {
    const size_t stride = inputs * (is_bf16 ? sizeof(bf16) : sizeof(float));
    int line = 0;
    switch (rows) {
#if defined(__AVX512F__)
        CASE(1, 8) CASE(2, 8) CASE(3, 8) CASE(4, 4) CASE(5, 4) CASE(6, 4)
#else
        CASE(1, 8) CASE(2, 4) CASE(3, 2)
#endif
    }
}

#undef CASE

// Multiply operands `[rows, inputs]` with `group` panels of lines, without bias, to `[rows, group * PANEL]`.
static void multiply_block_lines(
    const Matrix *matrix, int is_bf16, int panel, int group, const void *x, int rows, float *y
) {
    const int width = group * PANEL, inputs = matrix->inputs;
    const int blocks = (rows + MAX_LINE_ROWS - 1) / MAX_LINE_ROWS, most = (rows + blocks - 1) / blocks;
    const size_t row_bytes = inputs * operand_bytes(is_bf16);
    for (int g = 0; g < group; g++) {
        const int lines = matrix->num_lines[panel + g];
        for (int row = 0; row < rows; row += most) {
            const int count = rows - row < most ? rows - row : most;
            const char *operands = (const char *)x + row * row_bytes;
            float *to = y + row * width + g * PANEL;
            if (is_bf16) multiply_line_panel(count, 1, matrix->lines[panel + g], lines, inputs, operands, to, width);
            else multiply_line_panel(count, 0, matrix->lines[panel + g], lines, inputs, operands, to, width);
            for (int r = 0; r < count; r++) memset(to + r * width + lines, 0, (PANEL - lines) * sizeof(float));
        }
    }
}
