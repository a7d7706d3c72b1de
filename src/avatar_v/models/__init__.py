"""The networks: AvatarDiT, its encoders and the conditioner, the VAE, and weights on disk."""
