"""Trainer callbacks: moving averages, samples, throughput, and the record of a run."""
