// A pass of a pre-norm decoder over new positions of all rows: norms, projections, rotation, attention, MLP. Between
// attention and MLP there may be attention to fixed keys, such as those of a sound.
#pragma once

#include "attention.h"
#include "products.h"

enum { NO_NORM, RMS_NORM, LAYER_NORM };
enum { DONE, SLOT_OUT_OF_RANGE };

typedef struct {
    int32_t kind;
    float epsilon;
    const float *weight, *bias;
} Norm;

typedef struct {
    Norm input_norm, mlp_norm, query_norm, key_norm;
    Matrix qkv, output, up, down;  // `up`: of a gated MLP the gates, then what they are multiplied with
    Norm cross_norm;
    Matrix cross_query, cross_output;  // without panels: there is no attention to fixed keys
} Layer;

typedef struct {
    int32_t num_layers, hidden, heads, kv_heads, head_dim, is_bf16, activation, is_gated;
    float scaling;
    const Layer *layers;
    Norm final_norm;
} Decoder;

// A row is a row of the KV cache; all have as many new positions.
typedef struct {
    int32_t rows, positions, first_row, view_len, num_slots, num_threads;
    const void *inputs;          // [rows, positions, hidden] embeddings
    const float *cosines, *sines;  // [rows, positions, head_dim], the first half of the sines negated; NULL: none
    const void *mask;            // additive, [rows, …, view_len]; a line per position
    int64_t mask_row_stride, mask_stride;
    const int64_t *slots;        // [rows, positions], where keys and values are written
    void *const *keys, *const *values;  // per layer [all rows, kv_heads, num_slots, head_dim]
    void *outputs;               // [rows, positions, hidden]
    int32_t num_fixed, fixed_slots;  // fixed keys of a row, and how many it has room for
    void *const *fixed_keys, *const *fixed_values;  // per layer [all rows, kv_heads, fixed_slots, head_dim]
} Pass;

typedef struct {
    float *hidden, *qkv;
    char *operands, *gated;  // what the next product multiplies; of the MLP's second one
    int *ends;       // per row, slots that are read
    char *scratch;   // of every thread
    size_t scratch_bytes;
} Buffers;

typedef struct {
    const Decoder *decoder;
    const Pass *pass;
    const OpenMP *openmp;
    Buffers buffers;
    Team team;
} Run;

INLINE int num_tokens(const Pass *pass) { return pass->rows * pass->positions; }

// What one thread needs beside shared buffers: a block of a product, or the parts of attention.
static size_t scratch_bytes(const Decoder *decoder, const Pass *pass) {
    size_t product = 2 * 16 * MAX_GROUP * PANEL;
    size_t dim = round_up(decoder->head_dim, LANES), queries = pass->positions * (decoder->heads / decoder->kv_heads);
    size_t block = queries < QUERY_BLOCK ? queries : QUERY_BLOCK;
    size_t most_keys = pass->view_len > pass->num_fixed ? pass->view_len : pass->num_fixed;
    size_t attention = dim * (2 * block + LANES) + block * round_up(most_keys, LANES);
    return ((product > attention ? product : attention) * sizeof(float) + 127) / 64 * 64;
}

// Lay buffers out from `base` on; returns their size.
static size_t lay_out(const Decoder *decoder, const Pass *pass, char *base, Buffers *buffers) {
    size_t tokens = num_tokens(pass), used = 0;
    const Layer *layer = decoder->layers;
    size_t widest = layer->qkv.inputs > layer->output.inputs ? layer->qkv.inputs : layer->output.inputs;
    buffers->hidden = take_part(base, &used, tokens * decoder->hidden * sizeof(float));
    buffers->qkv = take_part(base, &used, tokens * layer->qkv.num_panels * PANEL * sizeof(float));
    buffers->operands = take_part(base, &used, tokens * widest * operand_bytes(decoder->is_bf16));
    buffers->gated = take_part(base, &used, tokens * layer->down.inputs * operand_bytes(decoder->is_bf16));
    buffers->ends = take_part(base, &used, pass->rows * sizeof(int));
    buffers->scratch_bytes = scratch_bytes(decoder, pass);
    buffers->scratch = take_part(base, &used, buffers->scratch_bytes * pass->num_threads);
    return used;
}

// Return a head of a row in keys and values `[all rows, kv_heads, num_slots, head_dim]`, without a mask.
static Head find_head(const Run *run, const char *keys, const char *values, int num_slots, int row, int kv_head) {
    const Decoder *decoder = run->decoder;
    const size_t bytes = decoder->is_bf16 ? sizeof(bf16) : sizeof(float);
    size_t first = ((size_t)(run->pass->first_row + row) * decoder->kv_heads + kv_head) * num_slots * decoder->head_dim;
    return (Head){
        .keys = keys + first * bytes,
        .values = values + first * bytes,
        .is_bf16 = decoder->is_bf16,
        .head_dim = decoder->head_dim,
        .padded_dim = round_up(decoder->head_dim, LANES),
        .num_positions = run->pass->positions,
    };
}

static Head cached_head(const Run *run, int index, int row, int kv_head) {
    const Pass *pass = run->pass;
    Head head = find_head(run, pass->keys[index], pass->values[index], pass->num_slots, row, kv_head);
    head.mask = (const char *)pass->mask + row * pass->mask_row_stride * (head.is_bf16 ? sizeof(bf16) : sizeof(float));
    head.mask_stride = pass->mask_stride;
    return head;
}

static Head fixed_head(const Run *run, int index, int row, int kv_head) {
    const Pass *pass = run->pass;
    return find_head(run, pass->fixed_keys[index], pass->fixed_values[index], pass->fixed_slots, row, kv_head);
}

// Sum `size` numbers of one line, or their squares' distances from `mean`, in a fixed order.
INLINE float sum_line(const float *from, int size) {
    Floats total = {0};
    int i = 0;
    for (; i + LANES <= size; i += LANES) total += load(from + i);
    float sum = sum_lanes(total);
    for (; i < size; i++) sum += from[i];
    return sum;
}

INLINE float sum_squares(const float *from, int size, float mean) {
    Floats total = {0};
    int i = 0;
    for (; i + LANES <= size; i += LANES) {
        Floats distance = load(from + i) - mean;
        total += distance * distance;
    }
    float sum = sum_lanes(total);
    for (; i < size; i++) sum += (from[i] - mean) * (from[i] - mean);
    return sum;
}

// Normalise `size` numbers to the line at `to`, in bf16 or fp32; both may be the same.
INLINE void normalize(const Norm *norm, const float *from, int size, void *to, int to_bf16) {
    float mean = norm->kind == LAYER_NORM ? sum_line(from, size) / size : 0.0f;
    float scale = norm->kind == NO_NORM ? 1.0f : 1.0f / sqrtf(sum_squares(from, size, mean) / size + norm->epsilon);
    for (int i = 0; i < size; i++) {
        float value = (from[i] - mean) * scale;
        value = norm->weight ? value * norm->weight[i] : value;
        write_as(to, i, norm->bias ? value + norm->bias[i] : value, to_bf16);
    }
}

// Read the inputs of a pass as fp32, and count the slots that every row reads.
static void read_inputs(Run *run, Member *me) {
    const Decoder *decoder = run->decoder;
    const Pass *pass = run->pass;
    for (int row; take(me, pass->rows, 1, &row);) {
        size_t count = (size_t)pass->positions * decoder->hidden, first = row * count;
        for (size_t i = 0; i < count; i++)
            run->buffers.hidden[first + i] = read_as(pass->inputs, first + i, decoder->is_bf16);
        Head head = cached_head(run, 0, row, 0);
        run->buffers.ends[row] = visible_end(&head, pass->view_len);
    }
    finish_stage(me);
}

// Normalise the residual stream to `to`: the operands of the next product, or the outputs of the pass.
static void norm_stage(Run *run, Member *me, const Norm *norm, void *to, int stride, int to_bf16) {
    const int size = run->decoder->hidden;
    const size_t bytes = to_bf16 ? sizeof(bf16) : sizeof(float);
    for (int token; take(me, num_tokens(run->pass), 1, &token);) {
        char *line = (char *)to + (size_t)token * stride * bytes;
        const float *hidden = run->buffers.hidden + (size_t)token * size;
        if (to_bf16) normalize(norm, hidden, size, line, 1);
        else normalize(norm, hidden, size, line, 0);
        memset(line + size * bytes, 0, (stride - size) * bytes);
    }
    finish_stage(me);
}

// Normalise one head of a token, rotate it by the token's angles if there are any, and write it to `to`.
INLINE void rotate(const Pass *pass, const Norm *norm, const float *from, int dim, size_t token, float *to) {
    float head[dim];
    if (norm->kind == NO_NORM) memcpy(head, from, dim * sizeof(float));
    else normalize(norm, from, dim, head, 0);
    if (!pass->cosines) {
        memcpy(to, head, dim * sizeof(float));
        return;
    }
    const float *cosines = pass->cosines + token * dim, *sines = pass->sines + token * dim;
    const int half = dim / 2;
    for (int i = 0; i < dim; i++) to[i] = head[i] * cosines[i] + head[i < half ? i + half : i - half] * sines[i];
}

// Write a number, 0 if it is not finite or rounded to infinity.
INLINE void write_finite(void *to, size_t index, float value, int is_bf16) {
    float stored = is_bf16 ? widen(narrow(value)) : value;
    write_as(to, index, isfinite(stored) ? stored : 0.0f, is_bf16);
}

// Write the keys and values of a row's new positions to the cache, 0 for what is not finite: a masked slot must add 0.
static void store_keys(Run *run, int index, int row, int kv_head) {
    const Decoder *decoder = run->decoder;
    const Pass *pass = run->pass;
    const Layer *layer = &decoder->layers[index];
    const int dim = decoder->head_dim, width = layer->qkv.num_panels * PANEL;
    const int key_column = round_up(decoder->heads * dim, PANEL);
    const int value_column = key_column + round_up(decoder->kv_heads * dim, PANEL);
    const size_t first_slot = ((size_t)(pass->first_row + row) * decoder->kv_heads + kv_head) * pass->num_slots;
    for (int t = 0; t < pass->positions; t++) {
        size_t token = (size_t)row * pass->positions + t, to = (first_slot + pass->slots[token]) * dim;
        const float *line = run->buffers.qkv + token * width, *value = line + value_column + kv_head * dim;
        float key[dim];
        rotate(pass, &layer->key_norm, line + key_column + kv_head * dim, dim, token, key);
        for (int i = 0; i < dim; i++) {
            write_finite(pass->keys[index], to + i, key[i], decoder->is_bf16);
            write_finite(pass->values[index], to + i, value[i], decoder->is_bf16);
        }
    }
}

// What one kind of attention reads and writes.
typedef struct {
    int is_cross;
    int query_width, output_width;  // numbers of a line of the projection that holds the queries, and of the operands
} Attention;

// Write `count` scaled queries `[count, padded_dim]`: all positions of the first head of a group, then of the next.
static void read_queries(
    const Run *run, int index, const Attention *attention, int row, int kv_head, int first, int count, float *queries
) {
    const Decoder *decoder = run->decoder;
    const int dim = decoder->head_dim, padded = round_up(dim, LANES), positions = run->pass->positions;
    const int group = decoder->heads / decoder->kv_heads;
    memset(queries, 0, (size_t)count * padded * sizeof(float));
    for (int q = 0; q < count; q++) {
        size_t token = (size_t)row * positions + (first + q) % positions;
        const int column = (kv_head * group + (first + q) / positions) * dim;
        const float *from = run->buffers.qkv + token * attention->query_width + column;
        float *query = queries + q * padded;
        if (attention->is_cross) memcpy(query, from, dim * sizeof(float));
        else rotate(run->pass, &decoder->layers[index].query_norm, from, dim, token, query);
        for (int i = 0; i < dim; i++) query[i] *= decoder->scaling;
    }
}

// Attend with all queries of a unit, a key/value head of a row; keys of new positions are stored before.
static void attention_stage(Run *run, Member *me, int index, const Attention *attention) {
    const Decoder *decoder = run->decoder;
    const Pass *pass = run->pass;
    const int dim = decoder->head_dim, padded = round_up(dim, LANES), group = decoder->heads / decoder->kv_heads;
    const int inputs = attention->output_width, positions = pass->positions;
    float *queries = (float *)(run->buffers.scratch + me->index * run->buffers.scratch_bytes);
    const int most = positions * group < QUERY_BLOCK ? positions * group : QUERY_BLOCK;
    float *attended = queries + most * padded, *keys = attended + most * padded, *scores = keys + padded * LANES;
    for (int unit; take(me, pass->rows * decoder->kv_heads, 1, &unit);) {
        const int row = unit / decoder->kv_heads, kv_head = unit % decoder->kv_heads;
        if (!attention->is_cross) store_keys(run, index, row, kv_head);
        Head head = attention->is_cross ? fixed_head(run, index, row, kv_head) : cached_head(run, index, row, kv_head);
        const int end = attention->is_cross ? pass->num_fixed : run->buffers.ends[row];
        for (int first = 0; first < positions * group; first += most) {
            int count = positions * group - first < most ? positions * group - first : most;
            read_queries(run, index, attention, row, kv_head, first, count, queries);
            attend(&head, queries, count, first, end, scores, keys, attended);
            for (int q = 0; q < count; q++) {
                size_t token = (size_t)row * positions + (first + q) % positions;
                int column = (kv_head * group + (first + q) / positions) * dim;
                for (int i = 0; i < dim; i++)
                    write_as(run->buffers.operands, token * inputs + column + i, attended[q * padded + i],
                             operand_is_bf16(decoder->is_bf16));
            }
        }
        if (kv_head) continue;
        const size_t bytes = operand_bytes(decoder->is_bf16), used = decoder->heads * dim;
        for (int t = 0; t < positions; t++)
            memset(run->buffers.operands + (((size_t)row * positions + t) * inputs + used) * bytes, 0, (inputs - used) * bytes);
    }
    finish_stage(me);
}

// What every thread of a pass does.
static void decode_thread(void *data) {
    Run *run = data;
    Member me = join_team(&run->team, run->openmp);
    const Decoder *decoder = run->decoder;
    const Buffers *buffers = &run->buffers;
    const int is_bf16 = decoder->is_bf16, operand_bf16 = operand_is_bf16(is_bf16), tokens = num_tokens(run->pass);
    char *scratch = buffers->scratch + me.index * buffers->scratch_bytes, *operands = buffers->operands;
    const Sink residual = {.kind = ADD, .to = buffers->hidden, .width = decoder->hidden};
    read_inputs(run, &me);
    for (int index = 0; index < decoder->num_layers; index++) {
        const Layer *layer = &decoder->layers[index];
        const Attention to_cache = {0, layer->qkv.num_panels * PANEL, layer->output.inputs};
        const Attention to_fixed = {1, layer->cross_query.num_panels * PANEL, layer->cross_output.inputs};
        Sink qkv = {.kind = WRITE, .to = buffers->qkv, .width = to_cache.query_width};
        Sink cross_query = {.kind = WRITE, .to = buffers->qkv, .width = to_fixed.query_width};
        Sink activated = {.kind = decoder->is_gated ? GATE : ACTIVATE, .to = buffers->gated, .width = layer->down.inputs,
                          .is_bf16 = is_bf16, .activation = decoder->activation};
        norm_stage(run, &me, &layer->input_norm, operands, layer->qkv.inputs, operand_bf16);
        product_stage(&me, scratch, &layer->qkv, is_bf16, tokens, operands, &qkv);
        attention_stage(run, &me, index, &to_cache);
        product_stage(&me, scratch, &layer->output, is_bf16, tokens, operands, &residual);
        if (layer->cross_query.num_panels) {
            norm_stage(run, &me, &layer->cross_norm, operands, layer->cross_query.inputs, operand_bf16);
            product_stage(&me, scratch, &layer->cross_query, is_bf16, tokens, operands, &cross_query);
            attention_stage(run, &me, index, &to_fixed);
            product_stage(&me, scratch, &layer->cross_output, is_bf16, tokens, operands, &residual);
        }
        norm_stage(run, &me, &layer->mlp_norm, operands, layer->up.inputs, operand_bf16);
        product_stage(&me, scratch, &layer->up, is_bf16, tokens, operands, &activated);
        product_stage(&me, scratch, &layer->down, is_bf16, tokens, buffers->gated, &residual);
    }
    norm_stage(run, &me, &decoder->final_norm, run->pass->outputs, decoder->hidden, is_bf16);
}

// Return the bytes of memory that a pass needs beside its arguments.
size_t EXPORT(pass_bytes)(const Decoder *decoder, const Pass *pass) {
    Buffers buffers;
    return lay_out(decoder, pass, NULL, &buffers);
}

// Run a pass in `memory` of `pass_bytes` bytes, aligned to 64. Returns DONE, or SLOT_OUT_OF_RANGE before anything is written.
int EXPORT(run_pass)(const Decoder *decoder, const Pass *pass, const OpenMP *openmp, char *memory) {
    for (int i = 0; i < num_tokens(pass); i++)
        if (pass->slots[i] < 0 || pass->slots[i] >= pass->num_slots) return SLOT_OUT_OF_RANGE;
    Run run = {.decoder = decoder, .pass = pass, .openmp = openmp};
    lay_out(decoder, pass, memory, &run.buffers);
    start_team(openmp, pass->num_threads, decode_thread, &run);
    return DONE;
}
