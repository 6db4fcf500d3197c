#define OM_ISA avx2
#define OM_MODE exact
#define OM_EXACT 1
#define OM_LANE_HEADER "lane_avx2.h"
#include "../variant.h"
