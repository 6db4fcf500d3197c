#define OM_ISA sse2
#define OM_MODE fast
#define OM_EXACT 0
#define OM_LANE_HEADER "lane_sse2.h"
#include "../variant.h"
