"""Settings that scenes stand in, painted anew from every seed, and things set into them."""
