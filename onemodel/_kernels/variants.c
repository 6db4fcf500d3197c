/* The list of tables in this build and the description of every row; setup.py defines OM_HAVE_<isa> for each set it compiles. */
#include "kernels.h"

#define OM_TABLES(isa) extern const om_table om_table_##isa##_fast, om_table_##isa##_exact;
OM_TABLES(scalar)
OM_TABLES(sse2)
OM_TABLES(avx2)
OM_TABLES(avx512)
OM_TABLES(neon)

const om_table *const om_tables[] = {
#ifdef OM_HAVE_scalar
    &om_table_scalar_fast, &om_table_scalar_exact,
#endif
#ifdef OM_HAVE_sse2
    &om_table_sse2_fast, &om_table_sse2_exact,
#endif
#ifdef OM_HAVE_avx2
    &om_table_avx2_fast, &om_table_avx2_exact,
#endif
#ifdef OM_HAVE_avx512
    &om_table_avx512_fast, &om_table_avx512_exact,
#endif
#ifdef OM_HAVE_neon
    &om_table_neon_fast, &om_table_neon_exact,
#endif
    NULL,
};

#define OM_INFO_ROW(class, name, doc) {#class, #name, doc},
const om_row_info om_row_infos[OM_ROW_COUNT] = {OM_ROWS(OM_INFO_ROW)};
