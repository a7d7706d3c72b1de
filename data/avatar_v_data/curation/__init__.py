"""The data engine: raw footage to clips of one person who speaks, scored, and to their persons."""
