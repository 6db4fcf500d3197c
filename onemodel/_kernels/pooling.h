/* Pooling of planes, forward and backward. Must not contain threads. */
#ifndef OM_POOLING_H
#define OM_POOLING_H

#define OM_POOLING(ROW)
#endif

#if defined(OM_VARIANT) && !defined(OM_POOLING_LOOPS)
#define OM_POOLING_LOOPS
#endif
