"""Factorisations as one kernel each, written by hand for processors; other devices run them step by step."""
