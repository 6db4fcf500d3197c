/* One small pool for the process: sleeping workers, one job at a time, pieces handed out by an atomic counter.
 *
 * Owns thread start, wake, join and fork; knows nothing about kernels or sizes. Not OpenMP, whose runtimes hang in a forked
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

enum {
    MOST_THREADS = 1024,
    WORKER_STACK = 1 << 20, /* kernels keep their scratch in the pool or in at most 256 KB of stack */
    SPIN = 2000,            /* pauses before sleeping: 10 to 40 µs, about what one sleep and wake costs both sides */
};

typedef struct job {
    om_task_fn *task;
    void *context;
    ptrdiff_t pieces;
    _Atomic ptrdiff_t next;
    atomic_int ran; /* threads that ran at least one piece */
} job;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, finished = PTHREAD_COND_INITIALIZER;
static atomic_int limit = 1;      /* threads of one job, the caller included */
static atomic_int busy;           /* 1 while a caller owns the workers */
static atomic_uint generation;    /* raised once per job: what spinning workers watch */
static atomic_int running;        /* workers inside the current job */
/* below: guarded by lock */
static int workers, sleepers, openings, caller_sleeps, caller_cpu = -1;
static job *current;

static _Thread_local int inside;  /* this thread runs a piece: a nested call stays on it */
static _Thread_local int last = 1;

static pthread_once_t once = PTHREAD_ONCE_INIT;

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* A woken worker may be queued on the CPU where the caller computes, and wait there for milliseconds while another CPU is idle: the
 * scheduler balances at its ticks only. Such a worker asks to be moved, once; the set of CPUs it may use stays what it was. */
#if defined(__linux__)
static int this_cpu(void) { return sched_getcpu(); }
static void leave_caller(void) { /* with the lock held */
    cpu_set_t allowed, others;
    int cpu = sched_getcpu();
    if (cpu != caller_cpu || cpu < 0) return;
    pthread_mutex_unlock(&lock);
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
        others = allowed;
        CPU_CLR(cpu, &others);
        if (CPU_COUNT(&others) && !sched_setaffinity(0, sizeof others, &others)) sched_setaffinity(0, sizeof allowed, &allowed);
    }
    pthread_mutex_lock(&lock);
}
#else
static int this_cpu(void) { return -1; }
static void leave_caller(void) {}
#endif

static void run(job *j) {
    ptrdiff_t piece = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
    if (piece >= j->pieces) return;
    atomic_fetch_add_explicit(&j->ran, 1, memory_order_relaxed);
    uint64_t old = om_fp_enter();
    inside = 1;
    do {
        j->task(j->context, piece);
        piece = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
    } while (piece < j->pieces);
    inside = 0;
    om_fp_leave(old);
}

static void *work(void *unused) {
    (void)unused;
    unsigned seen = 0; /* never a live generation at start: a new worker takes the job it was started for */
    pthread_mutex_lock(&lock);
    leave_caller();
    pthread_mutex_unlock(&lock);
    for (;;) {
        for (int i = 0; i < SPIN && atomic_load_explicit(&generation, memory_order_acquire) == seen; i++) pause_briefly();
        pthread_mutex_lock(&lock);
        while (openings == 0) {
            sleepers++;
            pthread_cond_wait(&wake, &lock);
            sleepers--;
            leave_caller(); /* also when it came too late: for the sake of the next job */
        }
        openings--;
        seen = atomic_load_explicit(&generation, memory_order_relaxed);
        job *j = current;
        atomic_fetch_add_explicit(&running, 1, memory_order_relaxed);
        pthread_mutex_unlock(&lock);
        run(j);
        if (atomic_fetch_sub_explicit(&running, 1, memory_order_release) == 1) {
            pthread_mutex_lock(&lock);
            if (caller_sleeps) pthread_cond_signal(&finished);
            pthread_mutex_unlock(&lock);
        }
    }
    return NULL;
}

/* The child of a fork has no workers and may have inherited any lock held: everything starts anew. */
static void begin_child(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&wake, NULL);
    pthread_cond_init(&finished, NULL);
    workers = sleepers = openings = caller_sleeps = 0;
    current = NULL;
    atomic_store(&running, 0);
    atomic_store(&busy, 0);
    inside = 0;
}

static void register_fork(void) { pthread_atfork(NULL, NULL, begin_child); }

/* Signals stay with the interpreter's threads. A failed start is no error: fewer workers share the job. */
static void start_workers(int count) {
    sigset_t all, old;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes)) return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, WORKER_STACK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_t id;
    while (workers < count && pthread_create(&id, &attributes, work, NULL) == 0) workers++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
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

void om_parallel(om_task_fn *task, void *context, ptrdiff_t pieces) {
    int threads = atomic_load_explicit(&limit, memory_order_relaxed);
    if (threads > pieces) threads = (int)pieces;
    if (threads <= 1 || inside || atomic_exchange_explicit(&busy, 1, memory_order_acquire)) {
        run_alone(task, context, pieces);
        return;
    }
    pthread_once(&once, register_fork);
    job j = {.task = task, .context = context, .pieces = pieces};
    pthread_mutex_lock(&lock);
    if (workers < threads - 1) start_workers(threads - 1);
    current = &j;
    caller_cpu = this_cpu();
    openings = threads - 1 < workers ? threads - 1 : workers;
    atomic_fetch_add_explicit(&generation, 1, memory_order_release);
    for (int i = openings < sleepers ? openings : sleepers; i > 0; i--) pthread_cond_signal(&wake);
    pthread_mutex_unlock(&lock);

    run(&j);

    pthread_mutex_lock(&lock);
    openings = 0; /* who has not come by now finds nothing to do */
    current = NULL;
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < SPIN && atomic_load_explicit(&running, memory_order_acquire); i++) pause_briefly();
    if (atomic_load_explicit(&running, memory_order_acquire)) {
        pthread_mutex_lock(&lock);
        caller_sleeps = 1;
        while (atomic_load_explicit(&running, memory_order_acquire)) pthread_cond_wait(&finished, &lock);
        caller_sleeps = 0;
        pthread_mutex_unlock(&lock);
    }
    last = atomic_load_explicit(&j.ran, memory_order_relaxed);
    atomic_store_explicit(&busy, 0, memory_order_release);
}

void om_set_num_threads(int n) {
    if (n < 1) n = 1;
    if (n > MOST_THREADS) n = MOST_THREADS;
    atomic_store(&limit, n);
}

int om_get_num_threads(void) { return atomic_load(&limit); }

int om_last_threads(void) { return last; }
