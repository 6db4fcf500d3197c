/* The pool's allocator: address space from the system, cut into chunks, kept in lists by size class. Owns the lock, the counters and
 * every byte the pool holds. Must not contain anything about tensors, scopes or Python.
 *
 * Terms. A *segment* is one reservation of addresses; as a rule there is one, as large as the machine's memory, of which only the
 * beginning is held. It is tiled by *chunks*: a 64-byte header and a payload, the *block*. A free chunk is *parked* (in the list of its
 * class, just as it was given: the fast path) or *loose* (merged with its loose neighbours, in a bin). Each chunk has at most one
 * *hollow* range: whole pages that are not held, because they never were or because they were given back. A request takes a parked
 * chunk of its class; without one, all parked chunks become loose and merge, and it takes the front of the lowest smallest loose chunk
 * that fits. The untouched end of the segment is the largest loose chunk, hence the last choice: memory is taken from the system only
 * when no free range is long enough, and a smaller shape finds room in the memory of the largest one. */
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
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 64, STEPS_PER_DOUBLING = 8, CLASSES = 320, WORDS = CLASSES / 64 };
enum { USED = 0x55534544, PARKED = 0x5041524b, LOOSE = 0x4c4f4f53, END = 0x454e4420 };

/* The bins end here; far below it no sum of sizes can overflow. */
static const size_t LARGEST_CLASS = (size_t)1 << 46;
static const size_t HUGE_PAGE = (size_t)2 << 20;
static const size_t SMALL_SLACK = (size_t)2 << 20;

typedef struct chunk {
    size_t size;          /* bytes with header, a multiple of LINE */
    struct chunk *before; /* the chunk in front in memory, NULL at the segment's start */
    uint32_t state, class;          /* loose: the largest class it serves; else the one it was last asked for */
    struct chunk *next, *previous;  /* in its list; parked lists use next alone */
    int64_t stamp;                  /* the request count when it became free */
    char *hollow_from, *hollow_end; /* whole pages; equal when it has none */
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
static int64_t high_water; /* of outstanding bytes, since the last trim */
static int poison;
static size_t page_size, reservation, largest_request;

const om_pool_counter om_pool_counters[OM_POOL_COUNTER_COUNT] = {
#define OM_POOL_NAME(name, doc) {#name, doc},
    OM_POOL_COUNTERS(OM_POOL_NAME)};

/* -- lock: held for some twenty instructions, so spinning beats a mutex (figures in README.md) -- */
static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Waits grow: a waiter that looks often takes the line from the holder, who then works slower than both would in turn. */
static void wait_for_lock(void) {
    for (unsigned round = 0;; round++) {
        if (round < 8)
            for (unsigned i = 0; i < 16u << round; i++) relax();
        else if (round < 200)
            sched_yield(); /* the holder may have lost its core */
        else
            nanosleep(&(struct timespec){0, 50000}, NULL); /* a holder of lower priority never runs while others only yield */
        if (!atomic_load_explicit(&lock, memory_order_relaxed) && !atomic_exchange_explicit(&lock, 1, memory_order_acquire)) return;
    }
}

static void lock_pool(void) {
    if (__builtin_expect(atomic_exchange_explicit(&lock, 1, memory_order_acquire), 0)) wait_for_lock();
}

static void unlock_pool(void) { atomic_store_explicit(&lock, 0, memory_order_release); }

/* fork copies the lock as it stands: holding it across the fork gives the child a whole pool and a lock it may open. */
__attribute__((constructor)) static void start(void) {
    const char *wish = getenv("ONEMODEL_POOL_POISON");
    poison = wish != NULL && *wish != '\0' && strcmp(wish, "0") != 0;
    page_size = (size_t)sysconf(_SC_PAGESIZE);
    reservation = ((size_t)sysconf(_SC_PHYS_PAGES) * page_size) & ~(HUGE_PAGE - 1);
    /* A system that promises more than it has would kill the process at the first write instead of refusing. */
    largest_request = reservation < LARGEST_CLASS / 2 ? 2 * reservation : LARGEST_CLASS;
    struct rlimit addresses;
    if (getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY && reservation > addresses.rlim_cur / 4)
        reservation = (size_t)addresses.rlim_cur / 4 & ~(HUGE_PAGE - 1); /* others in this process need addresses too */
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

/* Large sizes are whole pages, so that equal blocks side by side would differ by a line modulo the page. Then a load seems to hit the store
 * a line before it, whose address has the same last twelve bits, and waits: relu of 100 000 elements took a third longer. With these
 * bytes more, neighbours differ by 1 536, and no two of them by less than 512. */
static size_t stagger(uint32_t class) { return class_size(class) >= 65536 ? 1536 - LINE : 0; }

/* What a block counts as in use: that of its class with its header, so that equal requests count alike whatever rest their chunks have. */
static size_t counted(const chunk *c) { return class_size(c->class) + LINE; }

static chunk *after(const chunk *c) { return (chunk *)((char *)c + c->size); }
static void *block_of(chunk *c) { return (char *)c + LINE; }
static chunk *chunk_of(const void *block) { return (chunk *)((char *)block - LINE); }
static size_t hollow_size(const chunk *c) { return (size_t)(c->hollow_end - c->hollow_from); }
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

/* Low addresses first keeps the free memory at the end in one piece; a glance at the list's head is enough for that. */
static chunk *lowest(chunk *list) {
    chunk *low = list;
    for (int glance = 0; list && glance < 64; list = list->next, glance++)
        if (list < low) low = list;
    return low;
}

static chunk *bin_find(uint32_t class) {
    uint64_t word = filled[class / 64] & (~(uint64_t)0 << (class % 64));
    for (uint32_t w = class / 64;; word = filled[w]) {
        if (word) return lowest(bins[w * 64 + (uint32_t)__builtin_ctzll(word)]);
        if (++w == WORDS) return NULL;
    }
}

/* c absorbs the chunk behind it; both are in no list */
static void absorb(chunk *c) {
    chunk *behind = after(c);
    if (hollow_size(behind)) {
        /* One range a chunk: the one in front counts as held from now on, and its pages come back by themselves when written. The one
         * behind must stay, for it may be the end of the segment, which faults until it is taken. */
        stats.cached_bytes += (int64_t)hollow_size(c);
        stats.native_bytes += (int64_t)hollow_size(c);
        c->hollow_from = behind->hollow_from;
        c->hollow_end = behind->hollow_end;
    }
    c->size += behind->size;
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
static int within_limit(size_t more) { return (int64_t)more <= limit - stats.native_bytes; }

/* Addresses that fault when touched, on a huge-page boundary. */
static char *reserve(size_t size) {
    char *p = mmap(NULL, size + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    size_t head = (HUGE_PAGE - ((uintptr_t)p & (HUGE_PAGE - 1))) & (HUGE_PAGE - 1);
    if (head) munmap(p, head);
    p += head;
    munmap(p + size, HUGE_PAGE - head);
#ifdef MADV_HUGEPAGE
    madvise(p, size, MADV_HUGEPAGE); /* advice: a kernel without huge pages refuses, and nothing is lost */
#endif
    return p;
}

static int hold(char *from, char *end) { return mprotect(from, (size_t)(end - from), PROT_READ | PROT_WRITE) == 0; }

/* A segment with addresses for a chunk of `size` bytes, as one hollow chunk that is in no list. */
static chunk *new_segment(size_t size) {
    size_t need = (size + SEGMENT_OVERHEAD + 2 * page_size + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    size_t wish = reservation > need ? reservation : need;
    char *p;
    while (!(p = reserve(wish))) {
        if (wish == need) return NULL;
        wish = wish / 2 > need ? (wish / 2) & ~(HUGE_PAGE - 1) : need;
    }
    char *last_page = p + wish - page_size;
    if (!within_limit(2 * page_size) || !hold(p, p + page_size) || !hold(last_page, last_page + page_size)) {
        munmap(p, wish);
        return NULL;
    }
    segment *s = (segment *)p;
    s->size = wish;
    s->previous = NULL;
    s->next = segments;
    if (segments) segments->previous = s;
    segments = s;
    chunk *c = (chunk *)(p + LINE);
    c->size = wish - SEGMENT_OVERHEAD;
    c->before = NULL;
    c->stamp = stats.requests;
    c->hollow_from = p + page_size;
    c->hollow_end = last_page;
    chunk *end = after(c);
    end->size = 0;
    end->state = END;
    end->before = c;
    stats.native_allocations++;
    stats.native_bytes += (int64_t)(2 * page_size);
    stats.cached_bytes += (int64_t)(c->size - hollow_size(c));
    return c;
}

/* c is loose, in no list, and alone in its segment */
static void release_segment(chunk *c) {
    segment *s = (segment *)((char *)c - LINE);
    if (s->next) s->next->previous = s->previous;
    if (s->previous)
        s->previous->next = s->next;
    else
        segments = s->next;
    stats.cached_bytes -= (int64_t)(c->size - hollow_size(c));
    stats.native_bytes -= (int64_t)(s->size - hollow_size(c));
    stats.native_frees++;
    munmap(s, s->size);
}

/* Holds everything of a chunk in front of `end`; 0 when the limit or the system refuses. */
static int fill(chunk *c, char *end) {
    if (!hollow_size(c) || end <= c->hollow_from) return 1;
    size_t room = hollow_size(c), need = (size_t)(end - c->hollow_from + (ptrdiff_t)page_size - 1) & ~(page_size - 1);
    if (need > room) need = room;
    size_t more = need + HUGE_PAGE - 1 - (((uintptr_t)c->hollow_from + need - 1) & (HUGE_PAGE - 1));
    if (more > room) more = room;
    if (!within_limit(more)) more = need;
    if (!within_limit(more) || !hold(c->hollow_from, c->hollow_from + more)) return 0;
    stats.native_allocations++;
    stats.native_bytes += (int64_t)more;
    stats.cached_bytes += (int64_t)more;
    c->hollow_from += more;
    return 1;
}

static void drop_pages(char *from, char *end) {
    if (from < end)
#ifdef __linux__
        madvise(from, (size_t)(end - from), MADV_DONTNEED);
#else
        madvise(from, (size_t)(end - from), MADV_FREE);
#endif
}

/* Gives the whole pages inside a loose chunk back and keeps its addresses. */
static void hollow_out(chunk *c) {
    char *from = (char *)(((uintptr_t)block_of(c) + page_size - 1) & ~(page_size - 1));
    char *end = (char *)((uintptr_t)after(c) & ~(page_size - 1));
    size_t held = (size_t)(end - from) - hollow_size(c);
    if (from >= end || held == 0) return;
    if (hollow_size(c)) {
        drop_pages(from, c->hollow_from);
        drop_pages(c->hollow_end, end);
    } else
        drop_pages(from, end);
    c->hollow_from = from;
    c->hollow_end = end;
    stats.cached_bytes -= (int64_t)held;
    stats.native_bytes -= (int64_t)held;
    stats.native_frees++;
}

/* Gives back memory that became free before the given request count; returns the bytes. */
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

/* A rest that can hold a block is cut off. */
static int worth_cutting(const chunk *c, size_t size) { return c->size - size >= 2 * LINE; }

/* The front of a chunk that is in no list becomes one of `size` bytes, what is behind turns loose. All up to there is held. */
static void cut(chunk *c, size_t size) {
    chunk *behind = (chunk *)((char *)c + size);
    behind->size = c->size - size;
    behind->before = c;
    behind->stamp = c->stamp;
    behind->hollow_from = c->hollow_from;
    behind->hollow_end = c->hollow_end;
    c->size = size;
    after(behind)->before = behind;
    bin_insert(behind);
}

/* No parked chunk of the class: a chunk from anywhere else, in no list; NULL when the limit or the system refuses. */
static chunk *find_chunk(uint32_t class) {
    const size_t least = class_size(class) + LINE;
    int64_t native = stats.native_allocations;
    loosen(INT64_MAX);
    for (int again = 0;; again = 1) {
        chunk *c = bin_find(class);
        if (c)
            bin_remove(c);
        else
            c = new_segment(least);
        const size_t size = c && c->size >= least + stagger(class) ? least + stagger(class) : least;
        if (c && fill(c, worth_cutting(c, size) ? (char *)c + size + LINE : (char *)after(c))) {
            if (worth_cutting(c, size)) cut(c, size);
            c->hollow_from = c->hollow_end = NULL;
            c->class = class;
            stats.hits += stats.native_allocations == native;
            return c;
        }
        if (c) bin_insert(c);
        if (again || !give_back(INT64_MAX)) return NULL;
    }
}

static void fill_with_nan(void *block, size_t nbytes) {
    uint32_t *p = block;
    for (size_t i = 0; i < nbytes / 4; i++) p[i] = 0x7FA00000; /* a signalling NaN: any arithmetic on it shows */
}

/* More is held than was ever in use at once: a later, smaller shape may pack a little worse and must not need the system for that.
 * Only a new high-water mark comes here, so all of it belongs to the warm-up; pages that nobody touches cost no memory. Of 300 random
 * programs, each with 300 random shapes after its largest, 13 needed the system once with no such reserve, 3 with an eighth, 1 so. */
static void hold_slack(void) {
    high_water = stats.outstanding_bytes;
    int64_t mark = high_water + (int64_t)SMALL_SLACK;
    if (mark + high_water / 4 <= stats.native_bytes) return;
    size_t wish = (size_t)(mark + high_water / 3 - stats.native_bytes);
    chunk *last = segments ? ((chunk *)((char *)segments + segments->size - LINE))->before : NULL;
    if (!last || last->state != LOOSE || !hollow_size(last)) return;
    if (wish > hollow_size(last)) wish = hollow_size(last);
    if (within_limit(wish)) fill(last, last->hollow_from + wish);
}

void *om_take(size_t nbytes) {
    if (nbytes > largest_request) return NULL;
    uint32_t class = class_up(nbytes);
    int64_t size = (int64_t)class_size(class) + LINE; /* what it counts: see `counted` */
    lock_pool();
    if (++stats.requests >= next_ageing) {
        next_ageing = stats.requests + (age + 3) / 4;
        give_back(stats.requests - age);
    }
    chunk *c = NULL;
    if (size - LINE <= limit - stats.outstanding_bytes) {
        c = parked[class];
        if (c) {
            parked[class] = c->next;
            stats.hits++;
        } else
            c = find_chunk(class);
    }
    if (c) {
        c->state = USED;
        stats.cached_bytes -= size;
        stats.outstanding_blocks++;
        stats.outstanding_bytes += size;
        if (stats.peak_outstanding_bytes < stats.outstanding_bytes) stats.peak_outstanding_bytes = stats.outstanding_bytes;
        if (high_water < stats.outstanding_bytes) hold_slack();
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
    int64_t size = (int64_t)counted(c);
    lock_pool();
    c->state = PARKED;
    c->stamp = stats.requests;
    c->next = parked[c->class];
    parked[c->class] = c;
    stats.cached_bytes += size;
    stats.outstanding_blocks--;
    stats.outstanding_bytes -= size;
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
    high_water = stats.outstanding_bytes;
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
        if (hollow_size(c) && c->state != LOOSE) return "chunk: hollow, but not loose";
        if (hollow_size(c) && (c->hollow_from < (const char *)c + LINE || c->hollow_end > (const char *)after(c) || c->hollow_from > c->hollow_end))
            return "chunk: its hollow range lies outside of it";
        if (c->state == LOOSE ? c->class != class_down(c->size) : c->class > class_down(c->size)) return "chunk: its class is not that of its size";
        switch (c->state) {
        case USED: t->used += counted(c); t->cached += c->size - counted(c); t->blocks++; break;
        case PARKED: t->cached += c->size; t->parked++; break;
        case LOOSE:
            if (before && before->state == LOOSE) return "chunk: two loose neighbours were not merged";
            t->cached += c->size - hollow_size(c);
            t->native -= hollow_size(c);
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
