"""The engine: everything from a target and a head to events. Imports nothing of ours outside `core`."""
