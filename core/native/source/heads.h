// A draft tree of fixed shape, grown level by level with Hydra heads: h + W_k silu(V_k [h, e_0, …]) and the LM head.
//
// Terms of V are sums over inputs: those of the hidden state come in, those of tokens are rows of tables.
#pragma once

#include "products.h"

// One level of the shape, equal in all batch rows.
typedef struct {
    Matrix mix;             // W of the level's head
    const void *table;      // [vocab, later heads * inner], what a token of this level adds to the next heads; or NULL
    int32_t ranks;          // children that are ranked of every frontier node of the level before
    int32_t nodes;          // of this level,
    const int32_t *ranked;  // which of all ranked children they are,
    int32_t frontier;       // how many of them have children,
    const int32_t *expanded;  // which ones,
    const int32_t *parents;   // and their parents among the frontier nodes of the level before
} TreeLevel;

typedef struct {
    int32_t rows, branches, levels, depth, hidden, inner, vocab, is_bf16, num_threads, total_nodes, max_frontier;
    const TreeLevel *tree;  // [depth]; there may be more heads, `levels`
    Matrix lm_head;
    const void *hidden_states;  // [rows, branches, hidden]
    const void *projected;      // [rows, branches, levels * inner], terms of V for hidden state and root
    const float *factors;       // [rows], of logits
    const float *biases;        // summand of processed logits, noise included
    int64_t bias_row_stride, bias_level_stride;
    const float *guidance;      // [rows], scale; with one branch it is not read
    const int64_t *ids;         // [vocab], token ids of the LM head's outputs; NULL: their indices
    int64_t *tokens;            // [rows, total_nodes], level by level
    float *values;              // [rows, total_nodes], processed logits with noise
} Heads;

typedef struct {
    const Heads *heads;
    const OpenMP *openmp;
    char *operands, *scratch;
    float *predicted, *logits, *terms[2];
    Team team;
} HeadsRun;

INLINE int head_items(const Heads *heads) { return heads->rows * heads->max_frontier * heads->branches; }

static size_t lay_out_heads(const Heads *heads, char *base, HeadsRun *run) {
    size_t items = head_items(heads), used = 0;
    const Matrix *mix = &heads->tree[0].mix;
    size_t widest = mix->inputs > heads->lm_head.inputs ? mix->inputs : heads->lm_head.inputs;
    run->operands = take_part(base, &used, items * widest * operand_bytes(heads->is_bf16));
    run->predicted = take_part(base, &used, items * mix->num_panels * PANEL * sizeof(float));
    run->logits = take_part(base, &used, items * heads->lm_head.num_panels * PANEL * sizeof(float));
    run->terms[0] = take_part(base, &used, items * heads->levels * heads->inner * sizeof(float));
    run->terms[1] = take_part(base, &used, items * heads->levels * heads->inner * sizeof(float));
    run->scratch = take_part(base, &used, (size_t)PRODUCT_SCRATCH * heads->num_threads);
    return used;
}

// Write silu of the next head's terms, of which a line has `left` heads', as operands of W.
static void activate_terms(HeadsRun *run, Member *me, const float *terms, int items, int left, const Matrix *mix) {
    const Heads *heads = run->heads;
    const int operand_bf16 = operand_is_bf16(heads->is_bf16);
    for (int item; take(me, items, 1, &item);)
        for (int i = 0; i < mix->inputs; i++) {
            float x = i < heads->inner ? terms[(size_t)item * left * heads->inner + i] : 0.0f;
            write_as(run->operands, (size_t)item * mix->inputs + i, silu(x), operand_bf16);
        }
    finish_stage(me);
}

// Write hidden state plus W's product as operands of the LM head. Items are rows, then branches, then frontier nodes.
static void add_hidden(HeadsRun *run, Member *me, int items, int frontier, const Matrix *mix) {
    const Heads *heads = run->heads;
    const int inputs = heads->lm_head.inputs, width = mix->num_panels * PANEL;
    for (int item; take(me, items, 1, &item);)
        for (int i = 0; i < inputs; i++) {
            size_t state = (size_t)(item / frontier) * heads->hidden + i;
            float x = i < heads->hidden ? read_as(heads->hidden_states, state, heads->is_bf16) + run->predicted[(size_t)item * width + i] : 0.0f;
            write_as(run->operands, (size_t)item * inputs + i, x, operand_is_bf16(heads->is_bf16));
        }
    finish_stage(me);
}

// Keep the `ranks` highest of `vocab` scores, in descending order; of equal ones the first.
static void rank_children(const float *scores, int vocab, int ranks, float *best, int *index) {
    for (int r = 0; r < ranks; r++) { best[r] = -INFINITY; index[r] = 0; }
    for (int first = 0; first < vocab; first += LANES) {
        int count = vocab - first < LANES ? vocab - first : LANES;
        if (count == LANES && !(max_lane(load(scores + first)) > best[ranks - 1])) continue;  // as in most vectors
        for (int i = first; i < first + count; i++) {
            if (!(scores[i] > best[ranks - 1])) continue;
            int r = ranks - 1;
            for (; r > 0 && scores[i] > best[r - 1]; r--) { best[r] = best[r - 1]; index[r] = index[r - 1]; }
            best[r] = scores[i];
            index[r] = i;
        }
    }
}

// Combine the logits of all branches of one frontier node, and process them, into the line of the first branch.
static float *score_children(const HeadsRun *run, int row, int level, int frontier, int node) {
    const Heads *heads = run->heads;
    const size_t width = heads->lm_head.num_panels * PANEL, stride = frontier * width;
    float *first = run->logits + ((size_t)row * heads->branches * frontier + node) * width;
    const float *bias = heads->biases + row * heads->bias_row_stride + level * heads->bias_level_stride;
    const float factor = heads->factors[row], scale = heads->branches > 1 ? heads->guidance[row] : 1.0f;
    for (int v = 0; v < heads->vocab; v++) {
        float logit = first[v];
        if (scale != 1.0f) {  // at 1 guidance is the first branch
            logit = first[(heads->branches - 1) * stride + v];
            for (int branch = 0; branch + 1 < heads->branches; branch++)
                logit += scale * (first[branch * stride + v] - first[(branch + 1) * stride + v]);
        }
        first[v] = logit * factor + bias[v];
    }
    return first;
}

// Choose the nodes of a level in all rows, and add what their tokens mean to the terms of the next one.
static void choose_nodes(HeadsRun *run, Member *me, int level, int frontier, int first_node) {
    const Heads *heads = run->heads;
    const TreeLevel *shape = &heads->tree[level];
    const int inner = heads->inner, left = heads->levels - level;
    const float *terms = run->terms[level % 2];
    float *next_terms = run->terms[(level + 1) % 2];
    for (int row; take(me, heads->rows, 1, &row);) {
        float best[frontier * shape->ranks];
        int index[frontier * shape->ranks];
        for (int node = 0; node < frontier; node++)
            rank_children(score_children(run, row, level, frontier, node), heads->vocab, shape->ranks,
                          best + node * shape->ranks, index + node * shape->ranks);
        int64_t *tokens = heads->tokens + (size_t)row * heads->total_nodes + first_node;
        for (int node = 0; node < shape->nodes; node++) {
            int child = index[shape->ranked[node]];
            tokens[node] = heads->ids ? heads->ids[child] : child;
            heads->values[(size_t)row * heads->total_nodes + first_node + node] = best[shape->ranked[node]];
        }
        const size_t size = (size_t)(left - 1) * inner;
        for (int branch = 0; branch < heads->branches; branch++)
            for (int f = 0; f < shape->frontier; f++) {
                const size_t line = (size_t)row * heads->branches + branch;
                const float *from = terms + (line * frontier + shape->parents[f]) * left * inner + inner;
                float *to = next_terms + (line * shape->frontier + f) * size;
                const size_t entry = tokens[shape->expanded[f]] * size;
                for (size_t i = 0; i < size; i++) to[i] = from[i] + read_as(shape->table, entry + i, heads->is_bf16);
            }
    }
    finish_stage(me);
}

static void heads_thread(void *data) {
    HeadsRun *run = data;
    Member me = join_team(&run->team, run->openmp);
    const Heads *heads = run->heads;
    const int is_bf16 = heads->is_bf16, lines = heads->rows * heads->branches;
    char *scratch = run->scratch + (size_t)me.index * PRODUCT_SCRATCH;
    const size_t line = (size_t)heads->levels * heads->inner;
    for (int row; take(&me, lines, 1, &row);)
        for (size_t i = row * line; i < (row + 1) * line; i++) run->terms[0][i] = read_as(heads->projected, i, is_bf16);
    finish_stage(&me);
    int frontier = 1, first_node = 0;
    for (int level = 0; level < heads->depth; level++) {
        const TreeLevel *shape = &heads->tree[level];
        const int items = lines * frontier;
        Sink predicted = {.kind = WRITE, .to = run->predicted, .width = shape->mix.num_panels * PANEL};
        Sink logits = {.kind = WRITE, .to = run->logits, .width = heads->lm_head.num_panels * PANEL};
        activate_terms(run, &me, run->terms[level % 2], items, heads->levels - level, &shape->mix);
        product_stage(&me, scratch, &shape->mix, is_bf16, items, run->operands, &predicted);
        add_hidden(run, &me, items, frontier, &shape->mix);
        product_stage(&me, scratch, &heads->lm_head, is_bf16, items, run->operands, &logits);
        choose_nodes(run, &me, level, frontier, first_node);
        first_node += shape->nodes;
        frontier = shape->frontier;
    }
}

size_t EXPORT(heads_bytes)(const Heads *heads) {
    HeadsRun run;
    return lay_out_heads(heads, NULL, &run);
}

// Grow a tree in `memory` of `heads_bytes` bytes, aligned to 64.
void EXPORT(run_heads)(const Heads *heads, const OpenMP *openmp, char *memory) {
    HeadsRun run = {.heads = heads, .openmp = openmp};
    lay_out_heads(heads, memory, &run);
    start_team(openmp, heads->num_threads, heads_thread, &run);
}
