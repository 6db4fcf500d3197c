/* What this processor and operating system can run, and the floating-point control state around a kernel. */
#ifndef OM_CPU_H
#define OM_CPU_H

#include <stdint.h>

/* 1 if the processor has the set and the operating system saves its registers, else 0; unknown names give 0. */
int om_cpu_supports(const char *isa);

/* Kernels run with round-to-nearest, denormals kept and exceptions masked, whatever the caller has set. The state is read at
 * each dispatch and written only if it differs, since a write drains the pipeline. */
#if defined(__x86_64__)
#include <xmmintrin.h>
enum { OM_FP_DEFAULT = 0x1F80, OM_FP_FLAGS = 0x3F }; /* the low six bits are sticky exception flags, not control */
static inline uint64_t om_fp_enter(void) {
    unsigned int old = _mm_getcsr();
    if ((old & ~OM_FP_FLAGS) != OM_FP_DEFAULT) _mm_setcsr(OM_FP_DEFAULT);
    return old;
}
static inline void om_fp_leave(uint64_t old) {
    if (((unsigned int)old & ~OM_FP_FLAGS) != OM_FP_DEFAULT) _mm_setcsr((unsigned int)old);
}
#elif defined(__aarch64__)
static inline uint64_t om_fp_enter(void) {
    uint64_t old;
    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    if (old != 0) __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return old;
}
static inline void om_fp_leave(uint64_t old) {
    if (old != 0) __asm__ volatile("msr fpcr, %0" : : "r"(old));
}
#endif

#endif
