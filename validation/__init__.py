"""What is checked, and what is baked into the image to check it.

Nothing here imports ``images``: what the gate must know arrives as one file, ``expected.json``.
"""
