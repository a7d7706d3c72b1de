"""What a user asks for: values, their checks, what weights decide of them, and the record."""
