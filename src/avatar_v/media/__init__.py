"""Media files and streams: opened, read, encoded, written and pushed. No network is known here."""
