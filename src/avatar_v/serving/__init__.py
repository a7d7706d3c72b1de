"""Videos over HTTP: a queue in a database, workers that keep weights loaded, and an API."""
