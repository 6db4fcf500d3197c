#include "blocks.h"
