// A product by itself.
#pragma once

#include "products.h"

// `inputs` [rows, used_inputs] and `outputs` [rows, width] in the type of the weights.
typedef struct {
    Matrix matrix;
    int32_t is_bf16, rows, used_inputs, width, num_threads;
    const int32_t *columns, *used;  // see Sink
    const void *inputs;
    void *outputs;
} Product;

typedef struct {
    const Product *product;
    const OpenMP *openmp;
    char *operands, *scratch;
    Team team;
} ProductRun;

static void product_thread(void *data) {
    ProductRun *run = data;
    const Product *product = run->product;
    Member me = join_team(&run->team, run->openmp);
    const int is_bf16 = product->is_bf16, inputs = product->matrix.inputs, operand_bf16 = operand_is_bf16(is_bf16);
    for (int row; take(&me, product->rows, 1, &row);)
        for (int i = 0; i < inputs; i++) {
            size_t from = (size_t)row * product->used_inputs + i;
            float value = i < product->used_inputs ? read_as(product->inputs, from, is_bf16) : 0.0f;
            write_as(run->operands, (size_t)row * inputs + i, value, operand_bf16);
        }
    finish_stage(&me);
    Sink sink = {.kind = EMIT, .to = product->outputs, .width = product->width, .is_bf16 = is_bf16,
                 .columns = product->columns, .used = product->used};
    product_stage(&me, run->scratch + (size_t)me.index * PRODUCT_SCRATCH, &product->matrix, is_bf16, product->rows,
                  run->operands, &sink);
}

static size_t lay_out_product(const Product *product, char *base, ProductRun *run) {
    size_t used = 0;
    run->operands = take_part(base, &used, (size_t)product->rows * product->matrix.inputs * operand_bytes(product->is_bf16));
    run->scratch = take_part(base, &used, (size_t)PRODUCT_SCRATCH * product->num_threads);
    return used;
}

size_t EXPORT(product_bytes)(const Product *product) {
    ProductRun run;
    return lay_out_product(product, NULL, &run);
}

// Run a product in `memory` of `product_bytes` bytes, aligned to 64.
void EXPORT(run_product)(const Product *product, const OpenMP *openmp, char *memory) {
    ProductRun run = {.product = product, .openmp = openmp};
    lay_out_product(product, memory, &run);
    start_team(openmp, product->num_threads, product_thread, &run);
}
