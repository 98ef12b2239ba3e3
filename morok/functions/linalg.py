"""`morok.linalg`"""
