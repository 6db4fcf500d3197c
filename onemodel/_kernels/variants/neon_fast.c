#define OM_ISA neon
#define OM_MODE fast
#define OM_EXACT 0
#define OM_LANE_HEADER "lane_neon.h"
#include "../variant.h"
