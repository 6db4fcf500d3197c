/* Feature detection, including the operating system's part (XGETBV): a set counts only if its registers survive a switch. */
#include "cpu.h"
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

static uint64_t xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return ((uint64_t)hi << 32) | lo;
}

static int has_all(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

int om_cpu_supports(const char *isa) {
    if (!strcmp(isa, "scalar") || !strcmp(isa, "sse2")) return 1; /* both are part of x86-64 itself */
    uint32_t a, b, c, d, c1, b7, cx, unused;
    if (!__get_cpuid(1, &a, &b, &c1, &d)) return 0;
    if (!has_all(c1, bit_OSXSAVE)) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c, &d)) return 0;
    if (!__get_cpuid(0x80000001, &a, &b, &cx, &unused)) return 0;
    uint64_t state = xcr0();
    /* x86-64-v3: AVX2 BMI1 BMI2 | AVX F16C FMA MOVBE SSE4.2 POPCNT and older | LZCNT; state: XMM and YMM */
    int v3 = has_all(c1, bit_AVX | bit_F16C | bit_FMA | bit_MOVBE | bit_SSE4_2 | bit_SSE4_1 | bit_SSSE3 | bit_SSE3 | bit_POPCNT) &&
             has_all(b7, bit_AVX2 | bit_BMI | bit_BMI2) && has_all(cx, 1u << 5) && (state & 0x6) == 0x6;
    if (!strcmp(isa, "avx2")) return v3;
    /* x86-64-v4: AVX-512 F BW CD DQ VL; state: also the opmask and both halves of ZMM */
    int v4 = v3 && has_all(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL) && (state & 0xE6) == 0xE6;
    if (!strcmp(isa, "avx512")) return v4;
    return 0;
}
#elif defined(__aarch64__)
int om_cpu_supports(const char *isa) { return !strcmp(isa, "scalar") || !strcmp(isa, "neon"); } /* both are part of ARMv8-A */
#else
#error "onemodel: x86-64 or aarch64 only"
#endif
