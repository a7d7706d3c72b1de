"""One file for each recipe: its LightningModule, its loss and how its networks are updated."""
