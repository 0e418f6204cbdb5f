"""Images as continuous tokens: an autoencoder whose latents are the tokens, and the head that samples them."""
