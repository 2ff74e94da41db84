"""The host side: what run.py scripts talk to."""
