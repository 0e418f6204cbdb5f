// All exported functions, as one source, so that products are compiled once per instruction set.
#include "decoder.h"
#include "product.h"
#include "heads.h"
#include "refinement.h"
