"""Training of `tiny-latent`: autoencoder, backbone with a diffusion head, and drafters, from rendered scenes."""
