"""Scores of a set of videos and of a system (`scorers/`); those of one are avatar_v.scoring's.

Here is what they are made of: Fréchet distances, networks that a user gives, and reported times.
"""
