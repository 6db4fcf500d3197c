/* The weight gradient of a convolution on the tiles of gemm.h. Must not contain blocking or threads. */
#ifndef OM_CONV_WEIGHT_H
#define OM_CONV_WEIGHT_H

#define OM_CONV_WEIGHT(ROW)
#endif

#if defined(OM_VARIANT) && !defined(OM_CONV_WEIGHT_LOOPS)
#define OM_CONV_WEIGHT_LOOPS
#endif
