/* The pool's allocator for C and Cython: 64-byte aligned blocks, counters, limit, trim, check. Knows nothing of tensors or Python. */
#ifndef OM_BLOCKS_H
#define OM_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include "pool_stats.h"

/* A 64-byte aligned block of at least nbytes (0 gives a real block too); NULL when the system or the limit refuses. Thread-safe. */
void *om_take(size_t nbytes);
/* Returns a block of om_take; NULL is allowed. A block that is not in use aborts the process: memory is already corrupt then. */
void om_give(void *block);
/* Bytes the caller may use in a block that is in use; at least what was asked for. */
size_t om_block_capacity(const void *block);

extern const om_pool_counter om_pool_counters[OM_POOL_COUNTER_COUNT];
om_pool_stats om_pool_read(void);
void om_pool_reset_peak(void);
/* Gives free memory back to the system; returns how many bytes. */
int64_t om_pool_trim(void);
/* Upper bound on outstanding bytes and on bytes held; negative removes it. */
void om_pool_set_limit(int64_t nbytes);
int64_t om_pool_get_limit(void); /* negative: none */
/* Free memory that was not used during this many requests goes back to the system; returns the old value. */
int64_t om_pool_set_age(int64_t requests);
/* Fills blocks with a signalling NaN on take and on give; returns the old setting. ONEMODEL_POOL_POISON=1 turns it on from the start. */
int om_pool_set_poison(int on);
/* Walks every invariant; NULL when all hold, else what is broken. */
const char *om_pool_check(void);

#endif
