"""What our decoding is timed against: plain loops over transformers alone, and the faster of them and ours."""
