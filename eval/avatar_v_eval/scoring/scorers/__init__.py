"""Files of scorers, found as those of avatar_v.scoring.scorers are."""
