"""Measurements of quality: `avatar-v-eval study NAME` runs the module of that name."""

STUDIES = {
    "systems": "videos of weights beside the truth and other weights: lips, faces, habits, looks",
    "motion": "the motion of motion networks beside the truth and others, without a pixel",
    "latency": "how late a live voice is answered against lips: blocks, and look-ahead of motion",
    "listening": "somebody who listens: nods in the pictures, and what else changes",
    "dialogues": "who listens in a dialogue: nods, brows and gaze, in motion without a pixel",
    "hearing": "sound encoded by windows against whole recordings, and what it costs",
    "drift": "identity, colours and lips of long videos, and the seams of their chunks",
    "critics": "the critics themselves, on test persons and through the VAE",
    "vae": "the video autoencoder, on drawn people and on real faces",
    "refiner": "the super-resolution refiner against bicubic enlarging",
    "own_face": "a real face from one clip: trained, generated and scored",
    "known_people": "the warning about people whom the weights do not know",
    "reader": "what reads motion from a face, of drawn and filmed people",
    "watermark": "the mark in generated frames: what it survives, and what it changes",
    "sound_mark": "the mark in a sound: what it survives, false alarms, and how loud it is",
    "curation": "what the data engine takes of drawn footage, whose truth is known",
    "voices": "voices trained here, of speakers never heard: likeness, phonemes, pauses, time",
    "sound": "what the data engine hears: second speakers, speech, words, whose voice it is",
    "cells": "ways to schedule a fleet of GPU cells, simulated: use, waste, waits and price",
    "identity_graph": "persons, scenes and copies among planted clips, and their cost",
    "world70": "the order in which the benchmark's metrics put known systems",
}
"""Name → one line, in the order of the list."""
