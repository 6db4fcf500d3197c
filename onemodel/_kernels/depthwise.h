/* Convolutions of one channel per group, forward and backward, without a product. Must not contain threads. */
#ifndef OM_DEPTHWISE_H
#define OM_DEPTHWISE_H

#define OM_DEPTHWISE(ROW)
#endif

#if defined(OM_VARIANT) && !defined(OM_DEPTHWISE_LOOPS)
#define OM_DEPTHWISE_LOOPS
#endif
