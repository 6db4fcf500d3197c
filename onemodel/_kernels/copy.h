/* Copies of strided blocks, casts, and the 8 x 8 transpose that reductions use too; shapes, threads and types belong to copy.pyx.
 *
 * Copies move bits, so a NaN keeps its payload in both modes. A cast of a float to an integer truncates, saturates and makes NaN 0. */
#ifndef OM_COPY_H
#define OM_COPY_H

#define OM_COPY(ROW) \
    ROW(copy, copy_1, "strided block of 1-byte elements") \
    ROW(copy, copy_4, "strided block of 4-byte elements, 8 x 8 tiles where it is a transpose") \
    ROW(copy, copy_8, "strided block of 8-byte elements, 8 x 8 tiles where it is a transpose") \
    ROW(cast, cast_f4_i4, "float32 to int32") \
    ROW(cast, cast_f4_i8, "float32 to int64") \
    ROW(cast, cast_f4_u1, "float32 to uint8") \
    ROW(cast, cast_f4_b1, "float32 to bool: x != 0, so NaN is true") \
    ROW(cast, cast_i4_f4, "int32 to float32, nearest even") \
    ROW(cast, cast_i4_i8, "int32 to int64") \
    ROW(cast, cast_i4_u1, "int32 to uint8, low bits") \
    ROW(cast, cast_i4_b1, "int32 to bool: x != 0") \
    ROW(cast, cast_i8_f4, "int64 to float32, nearest even") \
    ROW(cast, cast_i8_i4, "int64 to int32, low bits") \
    ROW(cast, cast_i8_u1, "int64 to uint8, low bits") \
    ROW(cast, cast_i8_b1, "int64 to bool: x != 0") \
    ROW(cast, cast_u1_f4, "uint8 or bool to float32") \
    ROW(cast, cast_u1_i4, "uint8 or bool to int32") \
    ROW(cast, cast_u1_i8, "uint8 or bool to int64") \
    ROW(cast, cast_u1_b1, "uint8 to bool: x != 0")

#endif

#if defined(OM_VARIANT) && !defined(OM_COPY_LOOPS)
#define OM_COPY_LOOPS
#include <string.h>

/* Compiler vectors, not lanes: a transpose is the same eight rows on every instruction set, and the compiler splits it as needed. */
typedef float f8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));
#if defined(__clang__) || __GNUC__ >= 12
#define OM_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define OM_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (i8){__VA_ARGS__})
#endif

/* f8 anywhere in memory: one load, where a memcpy in a loop goes by halves over the stack. */
typedef float f8_any __attribute__((vector_size(32), aligned(4), may_alias));

/* t[c] = column c of the 8 x 8 block at x. */
static inline __attribute__((always_inline)) void transpose_8x8(const float *const row[8], f8 t[8]) {
    f8 a[8] = {*(const f8_any *)row[0], *(const f8_any *)row[1], *(const f8_any *)row[2], *(const f8_any *)row[3],
               *(const f8_any *)row[4], *(const f8_any *)row[5], *(const f8_any *)row[6], *(const f8_any *)row[7]}, b[8];
    for (int r = 0; r < 8; r += 2) {
        b[r] = OM_SHUFFLE(a[r], a[r + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        b[r + 1] = OM_SHUFFLE(a[r], a[r + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int h = 0; h < 8; h += 4)
        for (int k = 0; k < 2; k++) {
            a[h + 2 * k] = OM_SHUFFLE(b[h + k], b[h + k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            a[h + 2 * k + 1] = OM_SHUFFLE(b[h + k], b[h + k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int c = 0; c < 4; c++) {
        t[c] = OM_SHUFFLE(a[c], a[c + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        t[c + 4] = OM_SHUFFLE(a[c], a[c + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* A tile of a transpose: the source runs along r, the destination along c. */
static inline void tile_4(const uint32_t *src, ptrdiff_t src_col, uint32_t *dst, ptrdiff_t dst_row) {
    const float *row[8];
    f8 t[8];
    for (int c = 0; c < 8; c++) row[c] = (const float *)(src + c * src_col);
    transpose_8x8(row, t);
    for (int r = 0; r < 8; r++) memcpy(dst + r * dst_row, &t[r], sizeof t[r]);
}
static inline void tile_8(const uint64_t *src, ptrdiff_t src_col, uint64_t *dst, ptrdiff_t dst_row) {
    for (int r = 0; r < 8; r++)
        for (int c = 0; c < 8; c++) dst[r * dst_row + c] = src[r + c * src_col];
}
static inline void tile_1(const uint8_t *src, ptrdiff_t src_col, uint8_t *dst, ptrdiff_t dst_row) {
    for (int r = 0; r < 8; r++)
        for (int c = 0; c < 8; c++) dst[r * dst_row + c] = src[r + c * src_col];
}

#define OM_COPY_LOOP(size, type) \
    static inline void plain_##size(const type *src, ptrdiff_t src_row, ptrdiff_t src_col, type *dst, ptrdiff_t dst_row, ptrdiff_t dst_col, \
                                    ptrdiff_t rows, ptrdiff_t cols) { \
        for (ptrdiff_t r = 0; r < rows; r++) \
            for (ptrdiff_t c = 0; c < cols; c++) dst[r * dst_row + c * dst_col] = src[r * src_row + c * src_col]; \
    } \
    static void k_copy_##size(const void *src_, ptrdiff_t src_row, ptrdiff_t src_col, void *dst_, ptrdiff_t dst_row, ptrdiff_t dst_col, \
                              ptrdiff_t rows, ptrdiff_t cols) { \
        const type *restrict src = (const type *)src_; \
        type *restrict dst = (type *)dst_; \
        if (dst_col != 1) { \
            plain_##size(src, src_row, src_col, dst, dst_row, dst_col, rows, cols); \
        } else if (src_col == 1) { \
            if (cols >= 16) \
                for (ptrdiff_t r = 0; r < rows; r++) memcpy(dst + r * dst_row, src + r * src_row, (size_t)cols * sizeof(type)); \
            else plain_##size(src, src_row, 1, dst, dst_row, 1, rows, cols); \
        } else if (src_col == 0) { \
            for (ptrdiff_t r = 0; r < rows; r++) { \
                type value = src[r * src_row]; \
                for (ptrdiff_t c = 0; c < cols; c++) dst[r * dst_row + c] = value; \
            } \
        } else if (src_row == 1) { \
            ptrdiff_t r8 = rows & ~(ptrdiff_t)7, c8 = cols & ~(ptrdiff_t)7; \
            /* Bands of 32 rows, so that each cache line of the source is read whole while it is near. */ \
            for (ptrdiff_t band = 0; band < r8; band += 32) \
                for (ptrdiff_t c = 0; c < c8; c += 8) \
                    for (ptrdiff_t r = band; r < r8 && r < band + 32; r += 8) \
                        tile_##size(src + r + c * src_col, src_col, dst + r * dst_row + c, dst_row); \
            plain_##size(src + c8 * src_col, 1, src_col, dst + c8, dst_row, 1, r8, cols - c8); \
            plain_##size(src + r8, 1, src_col, dst + r8 * dst_row, dst_row, 1, rows - r8, cols); \
        } else { \
            plain_##size(src, src_row, src_col, dst, dst_row, 1, rows, cols); \
        } \
    }
OM_COPY_LOOP(1, uint8_t)
OM_COPY_LOOP(4, uint32_t)
OM_COPY_LOOP(8, uint64_t)
#undef OM_COPY_LOOP

/* The comparisons come first, so the conversion that C leaves undefined is never the one chosen. */
static inline int32_t i4_from_f4(float x) {
    return x >= 2147483648.0f ? INT32_MAX : x < -2147483648.0f ? INT32_MIN : x != x ? 0 : (int32_t)x;
}
static inline int64_t i8_from_f4(float x) {
    return x >= 9223372036854775808.0f ? INT64_MAX : x < -9223372036854775808.0f ? INT64_MIN : x != x ? 0 : (int64_t)x;
}
static inline uint8_t u1_from_f4(float x) { return x >= 255.0f ? 255 : x > 0.0f ? (uint8_t)(int32_t)x : 0; }

#define OM_CAST(name, from, to, expression) \
    static void k_cast_##name(const void *src_, ptrdiff_t stride, void *dst_, ptrdiff_t n) { \
        const from *restrict src = (const from *)src_; \
        to *restrict dst = (to *)dst_; \
        if (stride == 1) \
            for (ptrdiff_t i = 0; i < n; i++) { \
                from x = src[i]; \
                dst[i] = (expression); \
            } \
        else \
            for (ptrdiff_t i = 0; i < n; i++) { \
                from x = src[i * stride]; \
                dst[i] = (expression); \
            } \
    }
OM_CAST(f4_i4, float, int32_t, i4_from_f4(x))
OM_CAST(f4_i8, float, int64_t, i8_from_f4(x))
OM_CAST(f4_u1, float, uint8_t, u1_from_f4(x))
OM_CAST(f4_b1, float, uint8_t, x != 0.0f)
OM_CAST(i4_f4, int32_t, float, (float)x)
OM_CAST(i4_i8, int32_t, int64_t, x)
OM_CAST(i4_u1, int32_t, uint8_t, (uint8_t)x)
OM_CAST(i4_b1, int32_t, uint8_t, x != 0)
OM_CAST(i8_f4, int64_t, float, (float)x)
OM_CAST(i8_i4, int64_t, int32_t, (int32_t)x)
OM_CAST(i8_u1, int64_t, uint8_t, (uint8_t)x)
OM_CAST(i8_b1, int64_t, uint8_t, x != 0)
OM_CAST(u1_f4, uint8_t, float, (float)x)
OM_CAST(u1_i4, uint8_t, int32_t, x)
OM_CAST(u1_i8, uint8_t, int64_t, x)
OM_CAST(u1_b1, uint8_t, uint8_t, x != 0)
#undef OM_CAST
#endif
