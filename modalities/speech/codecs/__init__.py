"""Speech codecs, which turn codes into audio, and streams that decode and time-stretch it in chunks."""
