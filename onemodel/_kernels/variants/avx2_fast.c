#define OM_ISA avx2
#define OM_MODE fast
#define OM_EXACT 0
#define OM_LANE_HEADER "lane_avx2.h"
#include "../variant.h"
