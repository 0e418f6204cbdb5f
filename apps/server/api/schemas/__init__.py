"""What requests and answers look like: the documented schema is what is checked."""
