"""The doors: the compatible APIs.

A door turns a request into a command for the engine, and renders the answer in its format.
"""
