"""Measuring: speed with its causes, acceptance, calibration, and whether the text is really the target's own."""
