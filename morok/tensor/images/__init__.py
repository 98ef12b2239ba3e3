"""Resizing, sampling, folding: what is done to images and their like."""
