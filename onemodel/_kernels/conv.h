/* Convolution as a product on the tiles of gemm.h: how panels are read out of an image. Must not contain blocking or threads. */
#ifndef OM_CONV_H
#define OM_CONV_H

#define OM_CONV(ROW)
#endif

#if defined(OM_VARIANT) && !defined(OM_CONV_LOOPS)
#define OM_CONV_LOOPS
#endif
