#define OM_ISA avx512
#define OM_MODE exact
#define OM_EXACT 1
#define OM_LANE_HEADER "lane_avx512.h"
#include "../variant.h"
