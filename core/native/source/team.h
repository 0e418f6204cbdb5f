// Threads of a pass: torch's own, woken once; stages of the pass are separated by a barrier.
//
// A second pool of threads would share the cores with torch's, which spin for milliseconds after each of its
// operations. So `GOMP_parallel` of the OpenMP library that torch has loaded starts the pass, by address.
#pragma once

#include <sched.h>
#include <stdatomic.h>

#include "vectors.h"

#define MAX_THREADS 256
#define SPINS_BEFORE_YIELD 2000  // about 0.1 ms; then other processes get the core

typedef struct {
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);  // GOMP_parallel; NULL: one thread
    int (*thread_index)(void);                                       // omp_get_thread_num
    int (*num_threads)(void);                                        // omp_get_num_threads
} OpenMP;

// What a thread has taken of its share of a stage; apart from the others' in memory.
typedef struct { _Alignas(64) atomic_int taken; } Share;

typedef struct {
    atomic_int arrived, stage;
    Share shares[MAX_THREADS];
} Team;

// One thread of a team.
typedef struct { Team *team; int index, size, stage; } Member;

INLINE void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Wait until all threads have arrived; what they wrote is visible afterwards.
static void finish_stage(Member *me) {
    Team *team = me->team;
    int stage = ++me->stage;
    if (me->size == 1) {
        atomic_store_explicit(&team->shares[0].taken, 0, memory_order_relaxed);
        return;
    }
    if (atomic_fetch_add(&team->arrived, 1) == me->size - 1) {
        for (int i = 0; i < me->size; i++) atomic_store_explicit(&team->shares[i].taken, 0, memory_order_relaxed);
        atomic_store(&team->arrived, 0);
        atomic_store(&team->stage, stage);
        return;
    }
    for (int spins = 0; atomic_load(&team->stage) != stage;) {
        relax();
        if (++spins == SPINS_BEFORE_YIELD) { sched_yield(); spins = 0; }
    }
}

// Take the next of `count` units of a stage, up to `most` at once: first of this thread's own share, then of what
// others have not begun, so that a thread that lost its core holds up nobody for long.
//
// Returns the number of units taken, 0 if none are left; the first is written to `first`.
INLINE int take(Member *me, int count, int most, int *first) {
    for (int step = 0; step < me->size; step++) {
        int owner = (me->index + step) % me->size;
        int begin = (int)((int64_t)count * owner / me->size), end = (int)((int64_t)count * (owner + 1) / me->size);
        atomic_int *taken = &me->team->shares[owner].taken;
        if (begin + atomic_load_explicit(taken, memory_order_relaxed) >= end) continue;
        int start = begin + atomic_fetch_add(taken, most);
        if (start >= end) continue;
        *first = start;
        return end - start < most ? end - start : most;
    }
    return 0;
}

static Member join_team(Team *team, const OpenMP *openmp) {
    if (!openmp->parallel) return (Member){team, 0, 1, 0};
    return (Member){team, openmp->thread_index(), openmp->num_threads(), 0};
}

static void start_team(const OpenMP *openmp, int num_threads, void (*work)(void *), void *data) {
    if (openmp->parallel) openmp->parallel(work, data, num_threads, 0);
    else work(data);
}
