"""Training losses as pure functions of tensors; no network lives here."""
