"""The latent attention block: latents and rotary keys in caches."""
