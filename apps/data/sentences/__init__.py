"""The sentences that `tiny-speech` learns from and is tested on."""
