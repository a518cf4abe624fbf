"""Batch jobs: what is to run, turned into text for a scheduler, handed over and followed."""
