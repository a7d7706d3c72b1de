"""From a request to an mp4: sampling, guidance, chunks, streaming decode, files."""
