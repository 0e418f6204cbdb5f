// Sweeps of local refinement: a window's distributions are moved to their new neighbours, and its guesses drawn again.
//
// The network is f = h + silu(W_1 h) with h = silu(sum of a table row per neighbour + b); its head is one matrix.
#pragma once

#include "products.h"

typedef struct {
    int32_t rows, window, vocab, inner, neighbours, num_recent, sweeps, is_bf16, num_threads;
    Matrix mix, lm_head;
    const float *begins;        // [inner], b
    const void *tables;         // [neighbours * table_rows, inner], one table after the other
    int64_t table_rows;         // the last row of a table is zero
    const int64_t *table_index;  // [num_ids], row of every id
    int64_t num_ids;
    const int64_t *recent;      // [rows, num_recent] tokens before the window
    const int64_t *neighbour_index;  // [window + 1, neighbours], in the recent tokens followed by the window
    const uint8_t *exists;      // [rows, window + 1, neighbours]
    const float *weights;       // [rows, window], of the features,
    const float *old_features;  // [rows, window, inner], which these are taken from
    const float *logits;        // [rows, window, vocab], to which the head of the difference is added
    const float *margins;       // [rows, window], of the filters
    const float *noise;         // [rows, window, vocab], or NULL
    float noise_scale;
    const float *temperatures;  // [rows]
    const uint8_t *is_refined;  // [rows, window]
    int64_t *ids;               // [rows, window], in and out
    void *features;             // [rows, window + 1, inner], of the last guesses
} Refinement;

typedef struct {
    const Refinement *refinement;
    const OpenMP *openmp;
    char *operands, *head_operands, *scratch;
    float *hidden, *mixed, *scores;
    Team team;
} RefinementRun;

static size_t lay_out_refinement(const Refinement *r, char *base, RefinementRun *run) {
    size_t items = (size_t)r->rows * (r->window + 1), used = 0;
    run->operands = take_part(base, &used, items * r->mix.inputs * operand_bytes(r->is_bf16));
    run->head_operands = take_part(base, &used, items * r->lm_head.inputs * operand_bytes(r->is_bf16));
    run->hidden = take_part(base, &used, items * r->inner * sizeof(float));
    run->mixed = take_part(base, &used, items * r->mix.num_panels * PANEL * sizeof(float));
    run->scores = take_part(base, &used, items * r->lm_head.num_panels * PANEL * sizeof(float));
    run->scratch = take_part(base, &used, (size_t)PRODUCT_SCRATCH * r->num_threads);
    return used;
}

// Return the row of all tables that stands for a neighbour of a position.
INLINE int64_t neighbour_row(const Refinement *r, int row, int position, int neighbour) {
    int64_t line = (int64_t)position * r->neighbours + neighbour, none = (neighbour + 1) * r->table_rows - 1;
    if (!r->exists[(int64_t)row * (r->window + 1) * r->neighbours + line]) return none;
    int64_t place = r->neighbour_index[line];
    int64_t id = place < r->num_recent ? r->recent[row * r->num_recent + place]
                                       : r->ids[row * r->window + place - r->num_recent];
    return neighbour * r->table_rows + r->table_index[id < r->num_ids ? id : r->num_ids - 1];
}

// Compute h at all positions, and as operands of W_1.
static void read_neighbours(RefinementRun *run, Member *me) {
    const Refinement *r = run->refinement;
    const int inputs = r->mix.inputs, operand_bf16 = operand_is_bf16(r->is_bf16);
    for (int item; take(me, r->rows * (r->window + 1), 1, &item);) {
        float *hidden = run->hidden + (size_t)item * r->inner;
        memcpy(hidden, r->begins, r->inner * sizeof(float));
        for (int k = 0; k < r->neighbours; k++) {
            size_t from = neighbour_row(r, item / (r->window + 1), item % (r->window + 1), k) * r->inner;
            for (int i = 0; i < r->inner; i++) hidden[i] += read_as(r->tables, from + i, r->is_bf16);
        }
        for (int i = 0; i < inputs; i++) {
            float value = i < r->inner ? silu(hidden[i]) : 0.0f;
            if (i < r->inner) hidden[i] = value;
            write_as(run->operands, (size_t)item * inputs + i, value, operand_bf16);
        }
    }
    finish_stage(me);
}

// Compute f at all positions; write the change of features within the window as operands of the head.
static void mix_features(RefinementRun *run, Member *me) {
    const Refinement *r = run->refinement;
    const int inputs = r->lm_head.inputs, width = r->mix.num_panels * PANEL, operand_bf16 = operand_is_bf16(r->is_bf16);
    for (int item; take(me, r->rows * (r->window + 1), 1, &item);) {
        const int row = item / (r->window + 1), position = item % (r->window + 1);
        const size_t guess = (size_t)row * r->window + position;
        for (int i = 0; i < inputs; i++) {
            float change = 0.0f;
            if (i < r->inner) {
                float feature = run->hidden[(size_t)item * r->inner + i] + silu(run->mixed[(size_t)item * width + i]);
                write_as(r->features, (size_t)item * r->inner + i, feature, r->is_bf16);
                if (position < r->window) change = feature * r->weights[guess] - r->old_features[guess * r->inner + i];
            }
            if (position < r->window) write_as(run->head_operands, guess * inputs + i, change, operand_bf16);
        }
    }
    finish_stage(me);
}

// Draw the guesses of the window from the refined distributions.
static void draw_guesses(RefinementRun *run, Member *me) {
    const Refinement *r = run->refinement;
    const int width = r->lm_head.num_panels * PANEL;
    for (int guess; take(me, r->rows * r->window, 1, &guess);) {
        if (!r->is_refined[guess]) continue;
        float *scores = run->scores + (size_t)guess * width;
        const float *logits = r->logits + (size_t)guess * r->vocab, share = 1.0f / r->temperatures[guess / r->window];
        const float *noise = r->noise ? r->noise + (size_t)guess * r->vocab : NULL;
        float highest = -INFINITY;
        for (int v = 0; v < r->vocab; v++) {
            scores[v] = logits[v] + scores[v] * share;
            highest = scores[v] > highest ? scores[v] : highest;
        }
        const float threshold = highest + r->margins[guess];
        float best = -INFINITY;
        int64_t id = 0;
        for (int v = 0; v < r->vocab; v++) {
            float score = scores[v] < threshold ? -INFINITY : noise ? scores[v] + noise[v] * r->noise_scale : scores[v];
            if (score > best) { best = score; id = v; }
        }
        r->ids[guess] = id;
    }
    finish_stage(me);
}

static void refinement_thread(void *data) {
    RefinementRun *run = data;
    Member me = join_team(&run->team, run->openmp);
    const Refinement *r = run->refinement;
    char *scratch = run->scratch + (size_t)me.index * PRODUCT_SCRATCH;
    const Sink mixed = {.kind = WRITE, .to = run->mixed, .width = r->mix.num_panels * PANEL};
    const Sink scores = {.kind = WRITE, .to = run->scores, .width = r->lm_head.num_panels * PANEL};
    for (int sweep = 0; sweep <= r->sweeps; sweep++) {
        if (sweep) {
            product_stage(&me, scratch, &r->lm_head, r->is_bf16, r->rows * r->window, run->head_operands, &scores);
            draw_guesses(run, &me);
        }
        read_neighbours(run, &me);
        product_stage(&me, scratch, &r->mix, r->is_bf16, r->rows * (r->window + 1), run->operands, &mixed);
        mix_features(run, &me);
    }
}

size_t EXPORT(refinement_bytes)(const Refinement *refinement) {
    RefinementRun run;
    return lay_out_refinement(refinement, NULL, &run);
}

// Refine a window in `memory` of `refinement_bytes` bytes, aligned to 64.
void EXPORT(run_refinement)(const Refinement *refinement, const OpenMP *openmp, char *memory) {
    RefinementRun run = {.refinement = refinement, .openmp = openmp};
    lay_out_refinement(refinement, memory, &run);
    start_team(openmp, refinement->num_threads, refinement_thread, &run);
}
