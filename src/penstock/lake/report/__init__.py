"""A report of a lake: one HTML file with pictures, which needs nothing else.

``facts`` asks the lake, ``words`` says what is noteworthy, ``figures`` draws, ``page`` puts it together.
"""
