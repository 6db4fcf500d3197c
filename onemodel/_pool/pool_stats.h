/* The one list of the pool's counters: field of om_pool_stats, attribute of onemodel.PoolStats, line of docs. Must not contain logic. */
#ifndef OM_POOL_STATS_H
#define OM_POOL_STATS_H

#include <stdint.h>

#define OM_POOL_COUNTERS(ROW)                                                                                     \
    ROW(requests, "blocks asked for since the start")                                                             \
    ROW(hits, "requests served without asking the operating system")                                              \
    ROW(native_allocations, "times memory was taken from the operating system")                                   \
    ROW(native_frees, "times memory was given back to the operating system")                                      \
    ROW(native_bytes, "bytes held from the operating system now")                                                 \
    ROW(outstanding_bytes, "bytes of the blocks in use now, headers and rounding included")                       \
    ROW(outstanding_blocks, "blocks in use now")                                                                  \
    ROW(peak_outstanding_bytes, "largest outstanding_bytes since the start or the last reset")                    \
    ROW(cached_bytes, "bytes held and free now")

#define OM_POOL_FIELD(name, doc) int64_t name;
typedef struct om_pool_stats {
    OM_POOL_COUNTERS(OM_POOL_FIELD)
} om_pool_stats;

typedef struct om_pool_counter {
    const char *name, *doc;
} om_pool_counter;

#define OM_POOL_COUNT_ONE(name, doc) +1
enum { OM_POOL_COUNTER_COUNT = 0 OM_POOL_COUNTERS(OM_POOL_COUNT_ONE) };

#endif
