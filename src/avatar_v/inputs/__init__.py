"""The files of a request, read and checked: person, sound, consent, policy."""
