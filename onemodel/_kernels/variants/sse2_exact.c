#define OM_ISA sse2
#define OM_MODE exact
#define OM_EXACT 1
#define OM_LANE_HEADER "lane_sse2.h"
#include "../variant.h"
