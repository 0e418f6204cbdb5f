"""What a token is: adapters between the core loop and images, speech or vision-language models."""
