// A stage of a pass that multiplies all rows with a matrix, and what becomes of the products.
#pragma once

#include "panels.h"

enum { SILU, GELU_TANH, GELU };
enum { PRODUCT_SCRATCH = 2 * 16 * MAX_GROUP * PANEL * sizeof(float) };  // bytes that every thread of a stage needs

// Take `bytes` of the memory at `base`, of which `used` are taken already; parts begin at multiples of 64.
INLINE void *take_part(char *base, size_t *used, size_t bytes) {
    void *part = base + *used;
    *used += (bytes + 63) / 64 * 64;
    return part;
}

// What becomes of the products of a stage.
typedef struct {
    enum { WRITE, ADD, ACTIVATE, GATE, EMIT } kind;
    void *to;   // WRITE, ADD: fp32 [rows, width]; ACTIVATE, GATE: operands [rows, width]; EMIT: outputs [rows, width]
    int width;
    int is_bf16, activation;  // EMIT, ACTIVATE, GATE
    const int32_t *columns, *used;  // EMIT: of every panel, the first output's column, and how many are outputs
} Sink;

INLINE float silu(float x) { return x / (1.0f + expf(-x)); }

// Return x Phi(x), with the error function of Abramowitz and Stegun 7.1.26, whose error is below 1.5e-7.
INLINE Floats gelu(Floats x) {
    Floats z = maximum(x, -x) * 0.70710678f, t = 1.0f / (1.0f + 0.3275911f * z);
    Floats p = broadcast(1.061405429f);
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    Floats half_tail = 0.5f * p * t * exponential(-z * z);  // of the distribution, beyond |x|
    return maximum(x, (Floats){0}) - maximum(x, -x) * half_tail;
}

INLINE Floats activate(Floats x, int activation) {
    if (activation == GELU) return gelu(x);
    // x sigmoid(x); the tanh form of GELU is x sigmoid(2 u). Factors instead of a choice between two vectors, which GCC 12
    // compiles wrongly for AVX-512.
    float linear = activation == SILU ? 1.0f : 1.5957691216f, cubic = activation == SILU ? 0.0f : 0.071354816f;
    Floats u = x * (linear + cubic * x * x);
    return x / (1.0f + exponential(-u));
}

INLINE void add_bias(const float *bias, int rows, int width, float *y) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < width; j++) y[i * width + j] += bias[j];
}

// Hand over one line of products of `group` panels from `panel` on.
INLINE void write_line(const Sink *sink, int row, int panel, int group, const float *y) {
    const int width = group * PANEL, column = panel * PANEL;
    if (sink->kind == EMIT) {
        for (int g = 0; g < group; g++)
            for (int j = 0; j < sink->used[panel + g]; j++)
                write_as(sink->to, (size_t)row * sink->width + sink->columns[panel + g] + j, y[g * PANEL + j], sink->is_bf16);
        return;
    }
    float *to = (float *)sink->to + (size_t)row * sink->width + column;
    if (sink->kind == WRITE) memcpy(to, y, width * sizeof(float));
    else
        for (int j = 0; j < (width < sink->width - column ? width : sink->width - column); j++) to[j] += y[j];
}

// Hand over one line of activated products, times `up` if they are gates.
INLINE void write_activated(const Sink *sink, int row, int panel, int group, const float *products, const float *up) {
    size_t first = (size_t)row * sink->width + panel * PANEL;
    for (int j = 0; j < group * PANEL; j += LANES) {
        Floats value = activate(load(products + j), sink->activation);
        if (up) value *= load(up + j);
        float lanes[LANES];
        store(lanes, value);
        for (int lane = 0; lane < LANES; lane++)
            write_as(sink->to, first + j + lane, lanes[lane], operand_is_bf16(sink->is_bf16));
    }
}

// Multiply the operands of all `rows` with a matrix; with GATE the first half of its panels are gates of the second.
static void product_stage(
    Member *me, char *scratch, const Matrix *matrix, int is_bf16, int rows, const char *operands, const Sink *sink
) {
    float *y = (float *)scratch;
    const int block = block_rows(rows, is_bf16), most = panel_group(block, is_bf16);
    const int units = sink->kind == GATE ? matrix->num_panels / 2 : matrix->num_panels;
    const size_t line = matrix->inputs * operand_bytes(is_bf16);
    for (int panel, group; (group = take(me, units, most, &panel));) {
        const int width = group * PANEL;
        for (int row = 0; row < rows; row += block) {
            const int count = rows - row < block ? rows - row : block;
            float *up = y + count * width;
            multiply_block(matrix, is_bf16, panel, group, operands + row * line, count, y);
            if (matrix->bias) add_bias(matrix->bias + panel * PANEL, count, width, y);
            if (sink->kind == GATE) {
                multiply_block(matrix, is_bf16, panel + units, group, operands + row * line, count, up);
                if (matrix->bias) add_bias(matrix->bias + (panel + units) * PANEL, count, width, up);
            }
            for (int i = 0; i < count; i++)
                if (sink->kind == GATE) write_activated(sink, row + i, panel, group, y + i * width, up + i * width);
                else if (sink->kind == ACTIVATE) write_activated(sink, row + i, panel, group, y + i * width, NULL);
                else write_line(sink, row + i, panel, group, y + i * width);
        }
    }
    finish_stage(me);
}
