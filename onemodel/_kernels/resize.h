/* Resizing of planes, forward and backward. Must not contain threads. */
#ifndef OM_RESIZE_H
#define OM_RESIZE_H

#define OM_RESIZE(ROW)
#endif

#if defined(OM_VARIANT) && !defined(OM_RESIZE_LOOPS)
#define OM_RESIZE_LOOPS
#endif
