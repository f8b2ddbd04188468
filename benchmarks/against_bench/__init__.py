"""Sections of against.py."""
