/* One small pool for the process: sleeping workers, one job at a time; each thread has its own run of pieces, then takes from the others'.
 *
 * Owns thread start, place, wake, join and fork; knows nothing about kernels or sizes. Not OpenMP, whose runtimes hang in a forked
 * child and clash when a process loads two of them. Must not contain work cutting: that is the caller's, by shape alone. */
#if defined(__linux__)
#define _GNU_SOURCE /* CPU sets */
#else
#define _POSIX_C_SOURCE 200809L /* sigset_t under -std=c11 */
#endif
#include "threads.h"
#include "cpu.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

enum {
    MOST_THREADS = 1024,
    MOST_UNITS = 1 << 30,   /* pieces of a job that are told apart; of more, some go together */
    WORKER_STACK = 1 << 20, /* far more than kernels use: their frames have at most about 16 KB, as callers may have small stacks too */
    WORKER_WATCH = 200000,  /* ns that a worker watches for the next job: most gaps between the jobs of a step are shorter */
    CALLER_WATCH = 1000000, /* ns that a caller watches for the last pieces: it has nothing else to do */
    LOOKS = 16,             /* pauses between looks at the clock */
    MOVES_APART = 1000000,  /* least ns between two moves of the workers */
    MASKS_APART = 10000000, /* and between two looks at what they may use, while the caller stays where it is */
};

/* What a thread has still to do: from the low half of `rest` up to, not including, the high half. Its owner takes the first, others the
 * last, so that a thread has the same part of every job of that cut, and the data of that part in its caches. */
typedef struct share {
    _Alignas(128) _Atomic uint64_t rest; /* two lines: processors fetch them in pairs */
} share;

/* Worker n is thread n of a job; thread 0 is the caller. */
typedef struct worker {
    pthread_t id;
    pthread_cond_t wake;
    int asleep; /* guarded by lock */
} worker;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* taken only to sleep and to wake */
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER;
static atomic_int limit = 1;      /* threads of one job, the caller included */
static atomic_int busy;           /* 1 while a caller owns the workers */
static atomic_int sleepers;       /* workers about to sleep or asleep */
static atomic_int caller_sleeps;

/* What the owner of `busy` writes, and workers read while the job is open: on one line, which goes to a worker once for each job. Between
 * cores without a common cache each such way takes a fifth of a microsecond. */
static struct {
    _Alignas(128) atomic_uint generation; /* raised once per job, last: what watching workers see */
    atomic_int open;    /* whether a worker that comes may begin; a worker counts itself in `running` before it looks */
    atomic_int called;  /* threads of the last job */
    atomic_int patient; /* whether they had a CPU each: else watching would keep another from working */
    om_task_fn *task;
    void *context;
    ptrdiff_t pieces, unit; /* unit: pieces that go together */
} call;
/* And what workers write. */
static struct {
    _Alignas(128) atomic_int running;
    atomic_int ran; /* workers that ran at least one piece of this job */
} there;
static share shares[MOST_THREADS];
static worker crew[MOST_THREADS];
static int workers;
static int avoided = -1;          /* the CPU that workers are kept from */

static _Thread_local int inside;  /* this thread runs a piece: a nested call stays on it */
static _Thread_local int last = 1;

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static int64_t read_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int64_t now(void) { return read_clock(CLOCK_MONOTONIC); }

/* Waits for something for some ns, or not at all where threads have to share CPUs. */
#define WATCH(done, ns)                                                                     \
    for (int64_t end_ = atomic_load(&call.patient) ? now() + (ns) : 0; !(done) && now() < end_;) \
        for (int i_ = 0; i_ < LOOKS && !(done); i_++) pause_briefly()

/* A woken worker may be queued on the CPU where the caller computes, and wait there for milliseconds while another CPU is idle: the
 * scheduler balances at its ticks only. So workers may not use the CPU of their caller; where that moves to, the next job finds out. Of
 * callers in turn on several CPUs only some move the workers, since moving takes about a microsecond for each. What workers may use can
 * change under a caller that stays (taskset, a cpuset): fewer CPUs make threads share them, more let workers leave the caller's. */
#if defined(__linux__)
static cpu_set_t home, given; /* what workers may use by anyone else's will, and what they were given */
static int known, cpus;       /* whether there is a home, and how many CPUs it has */
static int64_t moved, looked; /* when */

static void keep_apart(void) {
    int cpu = sched_getcpu();
    if (cpu < 0 || workers == 0) return;
    int stays = cpu == avoided;
    int64_t time = read_clock(stays ? CLOCK_MONOTONIC_COARSE : CLOCK_MONOTONIC); /* the coarse one takes some instructions */
    if (stays ? time - looked < MASKS_APART : avoided >= 0 && time - moved < MOVES_APART) return;
    cpu_set_t set;
    looked = time;
    if (pthread_getaffinity_np(crew[1].id, sizeof set, &set)) return;
    int changed = !known || !CPU_EQUAL(&set, &given); /* the first time, or by someone else */
    if (stays && !changed) return;
    if (changed) home = set;
    known = 1;
    given = home;
    cpus = CPU_COUNT(&home);
    if (cpus > 1) CPU_CLR(cpu, &given);
    for (int n = 1; n <= workers; n++) pthread_setaffinity_np(crew[n].id, sizeof given, &given);
    avoided = cpu;
    moved = time;
}
static int crowded(int threads) { return known && threads > cpus; }
static void forget_home(void) { known = 0; }
#else
static void keep_apart(void) {}
static int crowded(int threads) { (void)threads; return 0; }
static void forget_home(void) {}
#endif

/* The next unit of a share, or -1. */
static ptrdiff_t take(share *s, int first) {
    uint64_t rest = atomic_load_explicit(&s->rest, memory_order_relaxed);
    for (;;) {
        uint32_t from = (uint32_t)rest, to = (uint32_t)(rest >> 32);
        if (from >= to) return -1;
        uint64_t left = first ? rest + 1 : rest - (UINT64_C(1) << 32);
        if (atomic_compare_exchange_weak_explicit(&s->rest, &rest, left, memory_order_relaxed, memory_order_relaxed)) return first ? from : to - 1;
    }
}

static ptrdiff_t next(int thread, int threads) {
    ptrdiff_t found = take(&shares[thread], 1);
    for (int i = 1; found < 0 && i < threads; i++) found = take(&shares[(thread + i) % threads], 0);
    return found;
}

/* Whether there was anything to do. */
static int run(int thread, int threads) {
    ptrdiff_t found = next(thread, threads), unit = call.unit;
    if (found < 0) return 0;
    uint64_t old = om_fp_enter();
    inside = 1;
    do {
        ptrdiff_t end = call.pieces - found * unit < unit ? call.pieces : (found + 1) * unit;
        for (ptrdiff_t piece = found * unit; piece < end; piece++) call.task(call.context, piece);
        found = next(thread, threads);
    } while (found >= 0);
    inside = 0;
    om_fp_leave(old);
    return 1;
}

/* Whoever sleeps says so before it looks a last time, and whoever wakes changes what is looked at before it asks who sleeps: one of the
 * two sees the other. The same holds for `running` and `open`. */
static void *work(void *argument) {
    const int number = (int)(intptr_t)argument;
    worker *me = &crew[number];
    unsigned seen = 0;
    for (;;) {
        if (number < atomic_load(&call.called)) WATCH(atomic_load_explicit(&call.generation, memory_order_acquire) != seen, WORKER_WATCH);
        if (atomic_load(&call.generation) == seen || number >= atomic_load(&call.called)) {
            pthread_mutex_lock(&lock);
            atomic_fetch_add(&sleepers, 1);
            me->asleep = 1;
            while (atomic_load(&call.generation) == seen || number >= atomic_load(&call.called)) pthread_cond_wait(&me->wake, &lock);
            me->asleep = 0;
            atomic_fetch_sub(&sleepers, 1);
            pthread_mutex_unlock(&lock);
        }
        seen = atomic_load(&call.generation);
        if (!atomic_load(&call.open)) continue; /* too late: a caller should not have to wait for it */
        atomic_fetch_add(&there.running, 1);
        if (atomic_load(&call.open) && number < atomic_load(&call.called) && run(number, atomic_load(&call.called))) atomic_fetch_add(&there.ran, 1);
        if (atomic_fetch_sub(&there.running, 1) == 1 && atomic_load(&caller_sleeps)) {
            pthread_mutex_lock(&lock);
            pthread_cond_signal(&finished);
            pthread_mutex_unlock(&lock);
        }
    }
    return NULL;
}

/* The child of a fork has no workers and may have inherited any lock held: everything starts anew. */
static void begin_child(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&finished, NULL);
    workers = inside = 0;
    avoided = -1;
    forget_home();
    atomic_store(&sleepers, 0);
    atomic_store(&call.open, 0);
    atomic_store(&there.running, 0);
    atomic_store(&caller_sleeps, 0);
    atomic_store(&busy, 0);
}

/* Before anyone can own the workers: a child of a fork in between would find them owned for ever. */
__attribute__((constructor)) static void register_fork(void) { pthread_atfork(NULL, NULL, begin_child); }

/* Signals stay with the interpreter's threads. A failed start is no error: fewer workers share the job. */
static void start_workers(int count) {
    sigset_t all, old;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes)) return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, WORKER_STACK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (; workers < count; workers++) {
        worker *w = &crew[workers + 1];
        w->asleep = 0;
        pthread_cond_init(&w->wake, NULL);
        if (pthread_create(&w->id, &attributes, work, (void *)(intptr_t)(workers + 1))) break;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
    avoided = -1; /* the new ones have yet to be kept from it */
}

static void run_alone(om_task_fn *task, void *context, ptrdiff_t pieces) {
    int outer = inside; /* a nested call leaves the outer job's thread count and floating-point state as they are */
    uint64_t old = om_fp_enter();
    inside = 1;
    for (ptrdiff_t p = 0; p < pieces; p++) task(context, p);
    inside = outer;
    om_fp_leave(old);
    if (!outer) last = 1;
}

void om_parallel(om_task_fn *job, void *context, ptrdiff_t pieces) {
    int threads = atomic_load_explicit(&limit, memory_order_relaxed);
    if (threads > pieces) threads = (int)pieces;
    if (threads <= 1 || inside || atomic_exchange_explicit(&busy, 1, memory_order_acquire)) {
        run_alone(job, context, pieces);
        return;
    }
    if (workers < threads - 1) start_workers(threads - 1);
    if (threads > workers + 1) threads = workers + 1;
    keep_apart();
    call.task = job;
    call.context = context;
    call.pieces = pieces;
    call.unit = (pieces - 1) / MOST_UNITS + 1;
    ptrdiff_t units = (pieces - 1) / call.unit + 1, from = 0;
    for (int n = 0; n < threads; n++) {
        ptrdiff_t to = from + units / threads + (n < units % threads);
        atomic_store_explicit(&shares[n].rest, (uint64_t)to << 32 | (uint64_t)from, memory_order_relaxed);
        from = to;
    }
    atomic_store_explicit(&there.ran, 0, memory_order_relaxed);
    atomic_store_explicit(&call.called, threads, memory_order_relaxed);
    atomic_store_explicit(&call.patient, !crowded(threads), memory_order_relaxed);
    atomic_store_explicit(&call.open, 1, memory_order_release);
    atomic_fetch_add(&call.generation, 1);
    if (atomic_load(&sleepers)) {
        pthread_mutex_lock(&lock);
        for (int n = 1; n < threads; n++)
            if (crew[n].asleep) pthread_cond_signal(&crew[n].wake);
        pthread_mutex_unlock(&lock);
    }

    int mine = run(0, threads);

    atomic_store(&call.open, 0); /* who has not come by now finds nothing to do */
    WATCH(atomic_load(&there.running) == 0, CALLER_WATCH);
    if (atomic_load(&there.running)) {
        pthread_mutex_lock(&lock);
        atomic_store(&caller_sleeps, 1);
        while (atomic_load(&there.running)) pthread_cond_wait(&finished, &lock);
        atomic_store(&caller_sleeps, 0);
        pthread_mutex_unlock(&lock);
    }
    last = mine + atomic_load(&there.ran);
    atomic_store_explicit(&busy, 0, memory_order_release);
}

void om_set_num_threads(int n) {
    if (n < 1) n = 1;
    if (n > MOST_THREADS) n = MOST_THREADS;
    atomic_store(&limit, n);
}

int om_get_num_threads(void) { return atomic_load(&limit); }

int om_last_threads(void) { return last; }
