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

enum { LINE_STEP_BYTES = 4 * LANES };  // of a line, added to the sums at once: a vector of fp32, or of pairs of bf16

// A line of weights, and others after it.
typedef struct {
    const char *first;
    int size;    // inputs
    int padded;  // inputs that a row of operands has
} Lines;

// Add the products of `rows` rows with `count` lines, over the inputs of one step.
INLINE void add_line_products(
    int rows, int count, int is_bf16, const char *line, size_t stride, const char *x, size_t row_bytes,
    Floats sums[MAX_LINE_ROWS][MAX_LINES]
) {
#if DOT_LINES
    if (is_bf16) {
        __m512bh pairs[MAX_LINES];
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) pairs[i] = (__m512bh)_mm512_loadu_si512(line + i * stride);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            __m512bh operand = (__m512bh)_mm512_loadu_si512(x + r * row_bytes);
#pragma GCC unroll 8
            for (int i = 0; i < count; i++)
                sums[r][i] = (Floats)_mm512_dpbf16_ps((__m512)sums[r][i], pairs[i], operand);
        }
        return;
    }
#endif
    Floats weights[MAX_LINES];
#pragma GCC unroll 2
    for (int half = 0; half < (is_bf16 ? 2 : 1); half++) {
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) weights[i] = load_as(line + i * stride, half * LANES, is_bf16);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            Floats operand = load((const float *)(x + r * row_bytes) + half * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < count; i++) sums[r][i] += weights[i] * operand;
        }
    }
}

// Multiply `rows` rows with `count` lines from `line` on; both are constants where this is inlined, so that sums stay in
// registers. Product i of row r is written to y[r * width + i].
INLINE void multiply_lines(
    int rows, int count, int is_bf16, const Lines *lines, int line, const char *x, float *y, int width
) {
    const size_t stride = lines->size * (is_bf16 ? sizeof(bf16) : sizeof(float));
    const size_t row_bytes = lines->padded * operand_bytes(is_bf16);
    const int operand_step = LINE_STEP_BYTES * operand_bytes(is_bf16) / (is_bf16 ? sizeof(bf16) : sizeof(float));
    const char *from = lines->first + line * stride;
    Floats sums[MAX_LINE_ROWS][MAX_LINES];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) sums[r][i] = (Floats){0};
    size_t at = 0;
    for (; at + LINE_STEP_BYTES <= stride; at += LINE_STEP_BYTES, x += operand_step) {
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) __builtin_prefetch(from + at + (count + i) * stride);  // of the next lines
        add_line_products(rows, count, is_bf16, from + at, stride, x, row_bytes, sums);
    }
    if (at < stride) {  // what is left of every line, with zeros after it
        char rest[MAX_LINES][LINE_STEP_BYTES] = {0};
        for (int i = 0; i < count; i++) memcpy(rest[i], from + i * stride + at, stride - at);
        add_line_products(rows, count, is_bf16, rest[0], LINE_STEP_BYTES, x, row_bytes, sums);
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) sum_lanes_of(sums[r], count, y + r * width);
}

#define CASE(ROWS, COUNT) \
    case (ROWS): \
        for (; line + (COUNT) <= count; line += (COUNT)) \
            multiply_lines(ROWS, COUNT, is_bf16, lines, line, x, y + line, width); \
        for (; line < count; line++) multiply_lines(ROWS, 1, is_bf16, lines, line, x, y + line, width); \
        break;

// Multiply at most MAX_LINE_ROWS rows with the `count` lines of a panel.
INLINE void multiply_line_panel(
    int rows, int count, int is_bf16, const Lines *lines, const char *x, float *y, int width
) {
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
    const Matrix *matrix, int is_bf16, int panel, int group, const char *x, int rows, float *y
) {
    const int width = group * PANEL, blocks = (rows + MAX_LINE_ROWS - 1) / MAX_LINE_ROWS;
    const int most = (rows + blocks - 1) / blocks;
    const size_t row_bytes = matrix->inputs * operand_bytes(is_bf16);
    for (int g = 0; g < group; g++) {
        const Lines lines = {matrix->lines[panel + g], matrix->line_size, matrix->inputs};
        const int num_lines = matrix->num_lines[panel + g];
        for (int row = 0; row < rows; row += most) {
            const int count = rows - row < most ? rows - row : most;
            const char *operands = x + row * row_bytes;
            float *to = y + row * width + g * PANEL;
            if (is_bf16) multiply_line_panel(count, num_lines, 1, &lines, operands, to, width);
            else multiply_line_panel(count, num_lines, 0, &lines, operands, to, width);
            for (int r = 0; r < count; r++) memset(to + r * width + num_lines, 0, (PANEL - num_lines) * sizeof(float));
        }
    }
}
