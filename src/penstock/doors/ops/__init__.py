"""Endpoints for operators: health, figures, documentation."""
