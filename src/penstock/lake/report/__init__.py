"""A report of a lake: one HTML file with charts, without other files.

``data`` queries the lake, ``highlights`` finds notable facts, ``figures`` draws charts, ``html`` writes the page.
"""
