/* Jobs of many short steps that wait for one another, on the pool: no thread sleeps or is woken between two steps.
 *
 * Owns who runs which part of a step, and the wait between steps. A thread keeps the part it began with, so what that part reads stays in
 * its caches, but takes any other that nobody has begun: the pool promises no number of threads, and with one alone the job ends too. A
 * part is waited for only once someone runs it. Must not contain the cut into parts: that is the caller's. */
#if defined(__linux__)
#define _GNU_SOURCE
#else
#define _POSIX_C_SOURCE 200809L
#endif
#include "threads.h"

#include <sched.h>
#include <stdatomic.h>

enum { PATIENCE = 4000 }; /* looks before a waiter offers its core, which a thread that it waits for may need */

/* Counters that different threads raise stand on lines of their own. */
typedef struct counter {
    _Atomic ptrdiff_t n;
    char rest[128 - sizeof(ptrdiff_t)];
} counter;

typedef struct job {
    om_step_fn *task;
    void *context;
    ptrdiff_t steps, parts;
    counter *counters; /* of each group: parts done, over all steps; then, of each part, steps that it was begun for */
} job;

static inline void wait_briefly(int looks) {
    if (looks >= PATIENCE) sched_yield();
#if defined(__x86_64__)
    else __builtin_ia32_pause();
#elif defined(__aarch64__)
    else __asm__ volatile("isb");
#endif
}

static void run_steps(void *context, ptrdiff_t piece) {
    const job *j = context;
    const ptrdiff_t at = piece / j->parts, own = piece % j->parts;
    counter *done = &j->counters[at * (j->parts + 1)], *begun = done + 1;
    ptrdiff_t step = atomic_load_explicit(&done->n, memory_order_acquire) / j->parts; /* who comes late joins where the others are */
    for (; step < j->steps; step++) {
        for (ptrdiff_t i = 0; i < j->parts; i++) {
            const ptrdiff_t part = (own + i) % j->parts;
            ptrdiff_t expected = step;
            if (!atomic_compare_exchange_strong_explicit(&begun[part].n, &expected, step + 1, memory_order_relaxed, memory_order_relaxed)) continue;
            j->task(j->context, at, step, part);
            atomic_fetch_add_explicit(&done->n, 1, memory_order_release);
        }
        for (int looks = 0; atomic_load_explicit(&done->n, memory_order_acquire) < (step + 1) * j->parts; looks += looks < PATIENCE) wait_briefly(looks);
    }
}

void om_parallel_steps(om_step_fn *task, void *context, ptrdiff_t groups, ptrdiff_t steps, ptrdiff_t parts) {
    counter room[2 * OM_MOST_STEPPERS];
    job j = {.task = task, .context = context, .steps = steps, .parts = parts, .counters = room};
    for (ptrdiff_t i = 0; i < groups * (parts + 1); i++) atomic_init(&room[i].n, 0);
    om_parallel(run_steps, &j, groups * parts);
}
