"""Makes `tiny-latent`: autoencoder, backbone with a diffusion head, drafters, from scenes rendered here."""
