"""Training stages: one LightningModule each over the one DiT, started by one recipe each."""
