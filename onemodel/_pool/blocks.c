/* The pool's allocator: segments from the system, cut into chunks, kept in lists by size class. Owns the lock, the counters and every
 * byte the pool holds. Must not contain anything about tensors, scopes or Python.
 *
 * Terms. A *segment* is one mapping from the system. It is tiled by *chunks*: a 64-byte header and a payload, the *block*. A free chunk
 * is *parked* (in the list of its class, exactly as it was given: the fast path) or *loose* (merged with its loose neighbours, in a
 * bin). A request takes a parked chunk of its class; else cuts the smallest fitting loose one; else makes all parked chunks loose,
 * which merges them, and cuts again; only then asks the system. So after the largest shape every smaller one finds room.
 * A *hollow* chunk is loose and has given its inner pages back: its addresses stay ours, its bytes count as returned. */
#if !defined(_GNU_SOURCE) && defined(__linux__)
#define _GNU_SOURCE 1 /* madvise and its huge-page advice stand outside C11 */
#endif
#if !defined(_DARWIN_C_SOURCE) && defined(__APPLE__)
#define _DARWIN_C_SOURCE 1
#endif
#include "blocks.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 64, STEPS_PER_DOUBLING = 8, CLASSES = 320, WORDS = CLASSES / 64 };
enum { USED = 0x55534544, PARKED = 0x5041524b, LOOSE = 0x4c4f4f53, END = 0x454e4420 };

/* No machine has more; below this bound no sum of sizes can overflow. */
static const size_t LARGEST_REQUEST = (size_t)1 << 46;
static const size_t HUGE_PAGE = (size_t)2 << 20;
static const size_t SMALLEST_SEGMENT = (size_t)1 << 20;
static const size_t LARGEST_SLACK = (size_t)64 << 20;
static const size_t ROUND = (size_t)64 << 10; /* the largest page size of the supported systems */

typedef struct chunk {
    size_t size;          /* bytes with header, a multiple of LINE */
    struct chunk *before; /* the chunk in front in memory, NULL at the segment's start */
    uint32_t state, class;
    struct chunk *next, *previous; /* in its list; parked lists use next alone */
    int64_t stamp;                 /* the request count when it became free */
    size_t hollow;                 /* bytes of it given back to the system */
    size_t padding;
} chunk;

typedef struct segment {
    struct segment *next, *previous;
    size_t size;
    size_t padding[5];
} segment;

_Static_assert(sizeof(chunk) == LINE && sizeof(segment) == LINE, "headers must keep payloads on 64-byte lines");

/* A segment is its own header, chunks, and an end mark in the place of a chunk's header. */
enum { SEGMENT_OVERHEAD = 2 * LINE };

static atomic_int lock;
static om_pool_stats stats;
static chunk *parked[CLASSES], *bins[CLASSES];
static uint64_t filled[WORDS]; /* bit c: bins[c] is not empty */
static segment *segments;
static int64_t limit = INT64_MAX;
static int64_t age = (int64_t)1 << 22;
static int64_t next_ageing = (int64_t)1 << 20;
static int poison;
static size_t page_size;

const om_pool_counter om_pool_counters[OM_POOL_COUNTER_COUNT] = {
#define OM_POOL_NAME(name, doc) {#name, doc},
    OM_POOL_COUNTERS(OM_POOL_NAME)};

/* -- lock: held for some twenty instructions, so spinning beats a mutex (figures in README.md); a preempted holder gets the core -- */
static void lock_pool(void) {
    for (int spins = 0; atomic_exchange_explicit(&lock, 1, memory_order_acquire);)
        while (atomic_load_explicit(&lock, memory_order_relaxed)) {
            if (++spins < 100) {
#if defined(__x86_64__)
                __builtin_ia32_pause();
#elif defined(__aarch64__)
                __asm__ volatile("yield");
#endif
            } else if (spins < 1000)
                sched_yield();
            else /* a holder of lower priority than the waiters would never run if they only yielded */
                nanosleep(&(struct timespec){0, 50000}, NULL);
        }
}

static void unlock_pool(void) { atomic_store_explicit(&lock, 0, memory_order_release); }

/* fork copies the lock as it stands: holding it across the fork gives the child a whole pool and a lock it may open. */
__attribute__((constructor)) static void start(void) {
    const char *wish = getenv("ONEMODEL_POOL_POISON");
    poison = wish != NULL && *wish != '\0' && strcmp(wish, "0") != 0;
    page_size = (size_t)sysconf(_SC_PAGESIZE);
    pthread_atfork(lock_pool, unlock_pool, unlock_pool);
}

/* -- size classes: every line up to 16 lines, then eight per doubling, so a block is at most 1/8 larger than asked -- */
static uint32_t class_shift(size_t x) { return x < 2 * STEPS_PER_DOUBLING ? 0 : (uint32_t)(60 - __builtin_clzll(x)); }

/* the smallest class whose blocks hold nbytes */
static uint32_t class_up(size_t nbytes) {
    size_t x = nbytes == 0 ? 0 : (nbytes - 1) / LINE;
    uint32_t s = class_shift(x);
    return 8 * s + (uint32_t)(x >> s);
}

static size_t class_size(uint32_t c) {
    uint32_t s = c < 2 * STEPS_PER_DOUBLING ? 0 : c / 8 - 1;
    return ((size_t)(c - 8 * s) + 1) << s << 6;
}

/* the largest class that a chunk of this size serves */
static uint32_t class_down(size_t size) {
    uint32_t c = class_up(size - LINE);
    return class_size(c) > size - LINE ? c - 1 : c;
}

static chunk *after(const chunk *c) { return (chunk *)((char *)c + c->size); }
static void *block_of(chunk *c) { return (char *)c + LINE; }
static chunk *chunk_of(const void *block) { return (chunk *)((char *)block - LINE); }
static segment *segment_of_first(chunk *c) { return (segment *)((char *)c - LINE); }
static int is_whole_segment(const chunk *c) { return c->before == NULL && after(c)->state == END; }

/* -- loose chunks -- */
static void bin_insert(chunk *c) {
    uint32_t k = class_down(c->size);
    c->state = LOOSE;
    c->class = k;
    c->previous = NULL;
    c->next = bins[k];
    if (c->next) c->next->previous = c;
    bins[k] = c;
    filled[k / 64] |= (uint64_t)1 << (k % 64);
}

static void bin_remove(chunk *c) {
    if (c->next) c->next->previous = c->previous;
    if (c->previous)
        c->previous->next = c->next;
    else if (!(bins[c->class] = c->next))
        filled[c->class / 64] &= ~((uint64_t)1 << (c->class % 64));
}

static chunk *bin_find(uint32_t class) {
    uint64_t word = filled[class / 64] & (~(uint64_t)0 << (class % 64));
    for (uint32_t w = class / 64;; word = filled[w]) {
        if (word) return bins[w * 64 + (uint32_t)__builtin_ctzll(word)];
        if (++w == WORDS) return NULL;
    }
}

/* c absorbs the chunk behind it; both are in no list */
static void absorb(chunk *c) {
    chunk *behind = after(c);
    c->size += behind->size;
    c->hollow += behind->hollow;
    if (c->stamp < behind->stamp) c->stamp = behind->stamp;
    after(c)->before = c;
}

static void make_loose(chunk *c) {
    if (after(c)->state == LOOSE) {
        bin_remove(after(c));
        absorb(c);
    }
    if (c->before && c->before->state == LOOSE) {
        c = c->before;
        bin_remove(c);
        absorb(c);
    }
    bin_insert(c);
}

/* Parked chunks that became free before the given request count turn loose. */
static void loosen(int64_t before) {
    for (uint32_t k = 0; k < CLASSES; k++)
        for (chunk **link = &parked[k]; *link;) {
            chunk *c = *link;
            if (c->stamp < before) {
                *link = c->next;
                make_loose(c);
            } else
                link = &c->next;
        }
}

/* -- the system -- */
static char *map_pages(size_t size) {
    int huge = size >= HUGE_PAGE;
    size_t extra = huge ? HUGE_PAGE : 0; /* to cut the start to a huge-page boundary */
    char *p = mmap(NULL, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (huge) {
        size_t head = (HUGE_PAGE - ((uintptr_t)p & (HUGE_PAGE - 1))) & (HUGE_PAGE - 1);
        if (head) munmap(p, head);
        p += head;
        if (extra > head) munmap(p + size, extra - head);
#ifdef MADV_HUGEPAGE
        madvise(p, size, MADV_HUGEPAGE); /* advice: a kernel without huge pages refuses, and nothing is lost */
#endif
    }
    return p;
}

/* c is loose, in no list, and alone in its segment */
static void release_segment(chunk *c) {
    segment *s = segment_of_first(c);
    if (s->next) s->next->previous = s->previous;
    if (s->previous)
        s->previous->next = s->next;
    else
        segments = s->next;
    stats.cached_bytes -= (int64_t)(c->size - c->hollow);
    stats.native_bytes -= (int64_t)(s->size - c->hollow);
    stats.native_frees++;
    munmap(s, s->size);
}

/* Gives the whole pages inside a loose chunk back, and keeps its addresses: its neighbours are in use. */
static size_t hollow_out(chunk *c) {
    char *from = (char *)(((uintptr_t)block_of(c) + page_size - 1) & ~(page_size - 1));
    char *to = (char *)((uintptr_t)after(c) & ~(page_size - 1));
    if (from >= to || c->hollow >= (size_t)(to - from)) return 0;
#ifdef __linux__
    if (madvise(from, (size_t)(to - from), MADV_DONTNEED)) return 0;
#else
    if (madvise(from, (size_t)(to - from), MADV_FREE)) return 0;
#endif
    size_t fresh = (size_t)(to - from) - c->hollow;
    c->hollow += fresh;
    stats.cached_bytes -= (int64_t)fresh;
    stats.native_bytes -= (int64_t)fresh;
    stats.native_frees++;
    return fresh;
}

/* Gives back loose memory that became free before the given request count; returns the bytes. */
static int64_t give_back(int64_t before) {
    int64_t held = stats.native_bytes;
    loosen(before);
    for (segment *s = segments, *next; s; s = next) {
        next = s->next;
        chunk *c = (chunk *)((char *)s + LINE);
        if (c->state == LOOSE && c->stamp < before && is_whole_segment(c)) {
            bin_remove(c);
            release_segment(c);
            continue;
        }
        for (; c->state != END; c = after(c))
            if (c->state == LOOSE && c->stamp < before) hollow_out(c);
    }
    return held - stats.native_bytes;
}

static int within_limit(size_t more) { return (int64_t)more <= limit - stats.native_bytes; }

/* A new segment with room for a chunk of `size` bytes, as one loose chunk that is in no list. */
static chunk *new_segment(size_t size) {
    size_t need = size + SEGMENT_OVERHEAD;
    /* An eighth of what is held goes on top: fewer and larger segments merge better, and untouched pages cost nothing. */
    size_t wish = (size_t)stats.native_bytes / 8;
    if (wish > LARGEST_SLACK) wish = LARGEST_SLACK;
    if (wish < SMALLEST_SEGMENT) wish = SMALLEST_SEGMENT;
    if (wish < need) wish = need;
    size_t round = wish >= HUGE_PAGE ? HUGE_PAGE : ROUND;
    wish = (wish + round - 1) & ~(round - 1);
    need = (need + page_size - 1) & ~(page_size - 1);
    if (!within_limit(wish)) wish = need;
    if (!within_limit(wish)) give_back(INT64_MAX);
    if (!within_limit(wish)) return NULL;
    segment *s = (segment *)map_pages(wish);
    if (!s && give_back(INT64_MAX)) s = (segment *)map_pages(wish);
    if (!s) {
        wish = need;
        s = (segment *)map_pages(wish);
    }
    if (!s) return NULL;
    s->size = wish;
    s->previous = NULL;
    s->next = segments;
    if (segments) segments->previous = s;
    segments = s;
    chunk *c = (chunk *)((char *)s + LINE);
    c->size = wish - SEGMENT_OVERHEAD;
    c->before = NULL;
    c->hollow = 0;
    c->stamp = stats.requests;
    chunk *end = after(c);
    end->size = 0;
    end->state = END;
    end->before = c;
    stats.native_allocations++;
    stats.native_bytes += (int64_t)wish;
    stats.cached_bytes += (int64_t)c->size;
    return c;
}

/* The front of a chunk that is in no list becomes one of `size` bytes; what is behind turns loose if it can hold a block. */
static void cut(chunk *c, size_t size) {
    size_t rest = c->size - size;
    if (rest < 2 * LINE) return;
    chunk *behind = (chunk *)((char *)c + size);
    behind->size = rest;
    behind->before = c;
    behind->hollow = 0;
    behind->stamp = c->stamp;
    c->size = size;
    after(behind)->before = behind;
    bin_insert(behind);
}

/* No parked chunk of the class: a chunk from anywhere else, in no list. */
static chunk *find_chunk(uint32_t class) {
    size_t size = class_size(class) + LINE;
    int native = 0;
    chunk *c = bin_find(class);
    if (!c) {
        loosen(INT64_MAX);
        c = bin_find(class);
    }
    if (c && c->hollow && !within_limit(c->hollow)) {
        give_back(INT64_MAX);
        c = bin_find(class);
    }
    if (c && c->hollow) {
        /* Which of its pages were given back is not known after a merge: all count as taken anew. */
        if (!within_limit(c->hollow)) return NULL;
        stats.native_bytes += (int64_t)c->hollow;
        stats.cached_bytes += (int64_t)c->hollow;
        stats.native_allocations++;
        c->hollow = 0;
        native = 1;
    }
    if (c)
        bin_remove(c);
    else {
        c = new_segment(size);
        if (!c) return NULL;
        native = 1;
    }
    cut(c, size);
    c->class = class_down(c->size);
    stats.hits += !native;
    return c;
}

static void fill_with_nan(void *block, size_t nbytes) {
    uint32_t *p = block;
    for (size_t i = 0; i < nbytes / 4; i++) p[i] = 0x7FA00000; /* a signalling NaN: any arithmetic on it shows */
}

void *om_take(size_t nbytes) {
    if (nbytes > LARGEST_REQUEST) return NULL;
    uint32_t class = class_up(nbytes);
    lock_pool();
    if (++stats.requests >= next_ageing) {
        next_ageing = stats.requests + (age + 3) / 4;
        give_back(stats.requests - age);
    }
    chunk *c = NULL;
    if ((int64_t)class_size(class) <= limit - stats.outstanding_bytes) {
        c = parked[class];
        if (c) {
            parked[class] = c->next;
            stats.hits++;
        } else
            c = find_chunk(class);
    }
    if (c) {
        c->state = USED;
        stats.cached_bytes -= (int64_t)c->size;
        stats.outstanding_blocks++;
        stats.outstanding_bytes += (int64_t)c->size;
        if (stats.peak_outstanding_bytes < stats.outstanding_bytes) stats.peak_outstanding_bytes = stats.outstanding_bytes;
    }
    unlock_pool();
    if (!c) return NULL;
    if (poison) fill_with_nan(block_of(c), c->size - LINE);
    return block_of(c);
}

void om_give(void *block) {
    if (!block) return;
    chunk *c = chunk_of(block);
    if (c->state != USED) {
        fprintf(stderr, "onemodel: pool: block %p returned twice, or its header overwritten; memory is corrupt\n", block);
        abort();
    }
    if (poison) fill_with_nan(block, c->size - LINE);
    lock_pool();
    c->state = PARKED;
    c->stamp = stats.requests;
    c->next = parked[c->class];
    parked[c->class] = c;
    stats.cached_bytes += (int64_t)c->size;
    stats.outstanding_blocks--;
    stats.outstanding_bytes -= (int64_t)c->size;
    unlock_pool();
}

size_t om_block_capacity(const void *block) { return chunk_of(block)->size - LINE; }

om_pool_stats om_pool_read(void) {
    lock_pool();
    om_pool_stats copy = stats;
    unlock_pool();
    return copy;
}

void om_pool_reset_peak(void) {
    lock_pool();
    stats.peak_outstanding_bytes = stats.outstanding_bytes;
    unlock_pool();
}

int64_t om_pool_trim(void) {
    lock_pool();
    int64_t freed = give_back(INT64_MAX);
    unlock_pool();
    return freed;
}

void om_pool_set_limit(int64_t nbytes) {
    lock_pool();
    limit = nbytes < 0 ? INT64_MAX : nbytes;
    if (stats.native_bytes > limit) give_back(INT64_MAX);
    unlock_pool();
}

int64_t om_pool_get_limit(void) {
    lock_pool();
    int64_t now = limit;
    unlock_pool();
    return now == INT64_MAX ? -1 : now;
}

int64_t om_pool_set_age(int64_t requests) {
    lock_pool();
    int64_t old = age;
    age = requests;
    next_ageing = stats.requests + (age + 3) / 4;
    unlock_pool();
    return old;
}

int om_pool_set_poison(int on) {
    int old = poison;
    poison = on;
    return old;
}

/* -- invariants -- */
typedef struct tally {
    size_t native, used, cached, blocks, loose, parked;
} tally;

static const char *check_segment(const segment *s, tally *t) {
    if (s->next && s->next->previous != s) return "segment list: a back link is wrong";
    const char *end = (const char *)s + s->size - LINE;
    const chunk *before = NULL, *c = (const chunk *)((const char *)s + LINE);
    t->native += s->size;
    for (; (const char *)c != end; before = c, c = after(c)) {
        if (c->size % LINE || c->size < 2 * LINE || c->size > (size_t)(end - (const char *)c)) return "chunk: its size does not fit its segment";
        if (c->before != before) return "chunk: the link to the chunk in front is wrong";
        if (c->hollow && c->state != LOOSE) return "chunk: hollow, but not loose";
        if (c->hollow > c->size) return "chunk: more hollow than large";
        if (c->class != class_down(c->size)) return "chunk: its class is not that of its size";
        switch (c->state) {
        case USED: t->used += c->size; t->blocks++; break;
        case PARKED: t->cached += c->size; t->parked++; break;
        case LOOSE:
            if (before && before->state == LOOSE) return "chunk: two loose neighbours were not merged";
            t->cached += c->size - c->hollow;
            t->native -= c->hollow;
            t->loose++;
            break;
        default: return "chunk: its state is none of used, parked, loose";
        }
    }
    return c->state != END || c->before != before ? "segment: its end mark is damaged" : NULL;
}

static const char *check_lists(const tally *t) {
    size_t parked_count = 0, loose_count = 0;
    for (uint32_t k = 0; k < CLASSES; k++) {
        for (const chunk *c = parked[k]; c; c = c->next) {
            if (c->state != PARKED || c->class != k) return "parked list: holds a chunk of another state or class";
            if (++parked_count > t->parked) return "parked lists: hold more chunks than the segments";
        }
        if (!(filled[k / 64] >> (k % 64) & 1) != !bins[k]) return "bins: the bit map disagrees with a list";
        for (const chunk *c = bins[k]; c; c = c->next) {
            if (c->state != LOOSE || c->class != k) return "bin: holds a chunk of another state or class";
            if (c->next && c->next->previous != c) return "bin: a back link is wrong";
            if (++loose_count > t->loose) return "bins: hold more chunks than the segments";
        }
    }
    if (parked_count != t->parked) return "parked lists: a parked chunk is in none";
    return loose_count != t->loose ? "bins: a loose chunk is in none" : NULL;
}

const char *om_pool_check(void) {
    tally t = {0};
    const char *broken = NULL;
    lock_pool();
    for (const segment *s = segments; s && !broken; s = s->next) broken = check_segment(s, &t);
    if (!broken) broken = check_lists(&t);
    if (!broken && (t.native != (size_t)stats.native_bytes || t.used != (size_t)stats.outstanding_bytes ||
                    t.cached != (size_t)stats.cached_bytes || t.blocks != (size_t)stats.outstanding_blocks))
        broken = "counters: they disagree with a walk over the segments";
    unlock_pool();
    return broken;
}
