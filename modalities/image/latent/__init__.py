"""Pictures as continuous tokens: an autoencoder whose latents are the tokens, and the head that draws them."""
