"""How a transformers model computes here: unforked, over our cache, with bits that do not depend on the batch."""
